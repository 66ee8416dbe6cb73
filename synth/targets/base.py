"""The Target interface: writes programs as text of one format and reads them back; the raw document of XML targets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from chorale.synth.custom_collective import CustomCollective
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import (
    Buffer,
    BufferRef,
    Instruction,
    Program,
    ProgramViolation,
    RankProgram,
    Wait,
)

P_co = TypeVar("P_co", bound=AnyProgram, covariant=True)


@dataclass(frozen=True, slots=True)
class Lifted(Generic[P_co]):
    """A program that was read back.

    findings: faults of the text that a Program cannot express
    out_of_place: the same instructions for the other placement, if the text promises both
    notices: what runtimes pass over in silence, though it may not be what the author meant
    """

    program: P_co
    findings: tuple[ProgramViolation, ...]
    out_of_place: Program | None = None
    notices: tuple[ProgramViolation, ...] = ()


class Target(Protocol):
    """Writes programs as text of one format and reads them back.

    Contract, checked by `tests/conformance/target_kit.py`: `emit` is deterministic and never writes what its
    reader refuses; reading the text gives an equal program without findings. A target is stateless.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> TargetLimits: ...

    def emit(self, program: Program) -> str:
        """Return the text of `program`; InvalidInput where the target cannot express it."""
        ...


_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,18})\Z")
LARGEST_INTEGER = 2**63 - 1
_BUFFERS: Mapping[str, Buffer] = {"i": "i", "o": "o", "s": "s"}


@dataclass(frozen=True, slots=True)
class RawStep:
    """One step element. `published` says whether the text allows others to wait on it."""

    number: int
    type: str
    src: BufferRef
    dst: BufferRef
    count: int
    waits: tuple[Wait, ...]
    published: bool


@dataclass(slots=True)
class RawBlock:
    """One thread block element with its steps in file order."""

    id: int
    send: int
    recv: int
    channel: int
    steps: list[RawStep] = field(default_factory=list)


@dataclass(slots=True)
class RawRank:
    """One rank element with its blocks in file order."""

    id: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: list[RawBlock] = field(default_factory=list)


@dataclass(slots=True)
class RawProgram:
    """The whole document; `notices` says what of it every reader passes over."""

    attributes: XmlAttributes
    ranks: list[RawRank] = field(default_factory=list)
    notices: list[ProgramViolation] = field(default_factory=list)


class XmlAttributes:
    """The attributes of one element, read with checks. Errors name the element and its line.

    collective: what the program is to do, where somebody says so besides the file
    """

    __slots__ = ("_element", "_line", "_values", "collective")

    def __init__(
        self, element: str, line: int, values: Mapping[str, str], collective: CustomCollective | None = None
    ) -> None:
        self._element = element
        self._line = line
        self._values = values
        self.collective = collective

    def for_collective(self, collective: CustomCollective | None) -> XmlAttributes:
        """Return the attributes of a program that is for `collective`, whatever `coll` says."""
        return XmlAttributes(self._element, self._line, self._values, collective)

    @property
    def location(self) -> str:
        return f"<{self._element}> in line {self._line}"

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def names(self) -> frozenset[str]:
        return frozenset(self._values)

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if value is None:
            raise InvalidInput(f"{self.location} must have {name}", "nothing", f'add {name}="..."')
        return value

    def integer(self, name: str, default: int | None = None, least: int = -LARGEST_INTEGER) -> int:
        """Return a plain decimal integer of 64 bits, at least `least`."""
        value = self.text(name, None if default is None else str(default))
        if not _INTEGER.match(value) or not least <= int(value) <= LARGEST_INTEGER:
            bound = f" of 64 bits and not below {least}" if least > -LARGEST_INTEGER else " of 64 bits"
            rule = f"{name} of {self.location} must be a plain decimal integer{bound}"
            raise InvalidInput(rule, repr(value), "write it as in 0, 12 or -1")
        return int(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self.text(name, None if default is None else str(int(default)))
        if value not in ("0", "1"):
            raise InvalidInput(f"{name} of {self.location} must be 0 or 1", repr(value), "write 0 or 1")
        return value == "1"

    def buffer_ref(self, buffer: str, offset: str) -> BufferRef:
        """Return the operand named by a buffer letter and a first chunk; -1 marks an operand without use."""
        letter = self.text(buffer)
        if letter not in _BUFFERS:
            raise InvalidInput(
                f"{buffer} of {self.location} must be i, o or s", repr(letter), "name one of the buffers"
            )
        return BufferRef(_BUFFERS[letter], self.integer(offset, least=-1))


@dataclass(frozen=True, slots=True)
class DocumentBody:
    """What stands below the root of a document.

    ranks:         what each executes
    findings:      faults of elements that a Program cannot express
    text_findings: where the text breaks the rules of the scanner of MSCCL, for steps of one wait
    notices:       what readers pass over
    """

    ranks: tuple[RankProgram, ...]
    findings: tuple[ProgramViolation, ...] = ()
    text_findings: tuple[ProgramViolation, ...] = ()
    notices: tuple[ProgramViolation, ...] = ()


class XmlTarget(Target, Protocol):
    """A target whose documents nest algo > gpu > tb > step. Targets with the same form of steps, with one wait at most
    or with all (`limits.single_wait`), read the same bodies."""

    def recognises(self, root: str, attributes: Mapping[str, str]) -> bool:
        """Return whether a document whose outermost element is `root` with `attributes` is of this target."""
        ...

    def parts(self, head: Program, ranks: Iterable[RankProgram]) -> Iterator[bytes]:
        """Return the text of a program rank by rank, unchecked; `head` is the program with empty ranks."""
        ...

    def read_step(self, attributes: XmlAttributes) -> RawStep:
        """Return the step that `attributes` describe."""
        ...

    def instructions(
        self, rank: int, blocks: Sequence[RawBlock], findings: list[ProgramViolation]
    ) -> list[tuple[Instruction, ...]]:
        """Return what the steps of the blocks of a rank, in the order of their ids, mean; add faults to `findings`."""
        ...

    def assemble(self, attributes: XmlAttributes, body: DocumentBody) -> Lifted[Program]:
        """Return the program that a root with `attributes` and `body` mean in this target."""
        ...

    def stated_max_bytes(self, max_bytes: int) -> int:
        """Return what `maxBytes` of a file has to say for vectors of up to `max_bytes`."""
        ...
