"""The Target port: one dialect of program text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from chorale.synth.lowering.definition import AnyProgram
from chorale.synth.lowering.limits import TargetLimits
from chorale.synth.lowering.program import Program
from chorale.synth.lowering.violation import ProgramViolation

P_co = TypeVar("P_co", bound=AnyProgram, covariant=True)


@dataclass(frozen=True, slots=True)
class Lifted(Generic[P_co]):
    """A program that was read back.

    findings: faults of the text that a Program cannot express
    twin:     the same instructions for the other placement, if the text promises both
    """

    program: P_co
    findings: tuple[ProgramViolation, ...]
    out_of_place: Program | None = None


class Target(Protocol):
    """Writes programs as the text of one dialect and reads them back.

    Contract, checked by `tests/conformance/target_kit.py`: `emit` is deterministic and never writes what its
    reader refuses; reading the text gives an equal program without findings. A target is stateless.
    """

    @property
    def name(self) -> str: ...

    @property
    def limits(self) -> TargetLimits: ...

    def emit(self, program: Program) -> str:
        """Return the text of `program`; InvalidInput where the dialect cannot express it."""
        ...
