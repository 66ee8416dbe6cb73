"""The Target interface: writes programs as text of one format and reads them back."""

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
    """A program that was read back.

    findings:     faults of the text that a Program cannot express
    out_of_place: the same instructions for the other placement, if the text is for both
    notices:      what runtimes ignore silently, although the author may not have meant it
    """

    program: P_co
    findings: tuple[ProgramViolation, ...]
    out_of_place: Program | None = None
    notices: tuple[ProgramViolation, ...] = ()


class Target(Protocol):
    """Writes programs as text of one format and reads them back.

    Contract, checked by `tests/conformance/target_kit.py`: `emit` is deterministic and never writes what its reader
    refuses; reading the text gives an equal program without findings. A target has no state.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> TargetLimits: ...

    def emit(self, program: Program) -> str:
        """Return the text of `program`; InvalidInput if the target cannot express it."""
        ...


@dataclass(frozen=True, slots=True)
class XmlTarget:
    """A target whose documents nest algo > gpu > tb > step.

    Targets with the same form of steps, with one wait at most or with all (`limits.single_wait`), read the same bodies.
    """

    name: str
    limits: TargetLimits

    def emit(self, program: Program) -> str:
        """Return the text of `program`."""
        require_valid_structure(program, self.limits, self.name)
        return document_text(self.root(program), program.ranks, self.limits.single_wait)

    @abstractmethod
    def recognises(self, root: str, attributes: Mapping[str, str]) -> bool:
        """Return whether a document with the outermost element `root` and its `attributes` is for this target."""

    @abstractmethod
    def root(self, program: Program) -> dict[str, Attribute]:
        """Return the attributes of the outermost element for `program`."""

    @abstractmethod
    def assemble(self, attributes: XmlAttributes, body: DocumentBody) -> Lifted[Program]:
        """Return the program that `attributes` of the root and `body` describe for this target."""

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return the value of `maxBytes` of a file for vectors of up to `max_bytes`."""
        return max_bytes
