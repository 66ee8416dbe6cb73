"""Interface `Target` of program formats: a target writes programs as text and reads them back."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from chorale.synth.programs.check_structure import require_valid_structure
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program, ProgramViolation
from chorale.synth.targets.xml_reading import DocumentBody, XmlAttributes
from chorale.synth.targets.xml_writing import Attribute, document_text

P_co = TypeVar("P_co", bound=AnyProgram, covariant=True)


@dataclass(frozen=True, slots=True)
class Lifted(Generic[P_co]):
    """A program read from text, with remarks about the text.

    findings:     faults in the text that a Program cannot represent
    out_of_place: the out-of-place version of the program, if the text is valid both in place and out of place
    notices:      parts of the text that runtimes silently ignore, although the author may have intended them
    """

    program: P_co
    findings: tuple[ProgramViolation, ...]
    out_of_place: Program | None = None
    notices: tuple[ProgramViolation, ...] = ()


class Target(Protocol):
    """A program format for one runtime: writes programs as text and reads them back.

    Requirements, checked by `tests/conformance/target_kit.py`: `emit` is deterministic, and reading its output always
    gives an equal program without findings. A target has no state.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> TargetLimits: ...

    def emit(self, program: Program) -> str:
        """Return `program` as text. Raises InvalidInput if the target cannot express it."""
        ...


@dataclass(frozen=True, slots=True)
class XmlTarget:
    """A target whose XML documents nest the elements algo > gpu > tb > step.

    A step element has either at most one wait or all its waits (see `limits.single_wait`). Targets with the same form
    of step can read the bodies of each other's documents.
    """

    name: str
    limits: TargetLimits

    def emit(self, program: Program) -> str:
        require_valid_structure(program, self.limits, self.name)
        return document_text(self.root(program), program.ranks, self.limits.single_wait)

    @abstractmethod
    def recognises(self, root: str, attributes: Mapping[str, str]) -> bool:
        """Return whether a document is for this target, given its root element's name and `attributes`."""

    @abstractmethod
    def root(self, program: Program) -> dict[str, Attribute]:
        """Return the root element's attributes for `program`."""

    @abstractmethod
    def assemble(self, attributes: XmlAttributes, body: DocumentBody) -> Lifted[Program]:
        """Build the program from the root element's `attributes` and the `body`, following the rules of this target."""

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return the value of the attribute `maxBytes` in a file for vectors of up to `max_bytes` bytes."""
        return max_bytes
