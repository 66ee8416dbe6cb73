"""What a program file of any kind holds, and whether it is right on a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chorale.synth.errors import CheckFailed
from chorale.synth.lowering.definition import AnyProgram
from chorale.synth.lowering.lift import fitting_targets, lift_with_findings, violations_on
from chorale.synth.lowering.plans.check_structure import plan_structure_violations
from chorale.synth.lowering.plans.plan import ExecutionPlan
from chorale.synth.lowering.plans.read import parse_plan
from chorale.synth.lowering.plans.text import plan_text
from chorale.synth.lowering.program import Program
from chorale.synth.lowering.target import Lifted
from chorale.synth.lowering.targets import target_named
from chorale.synth.lowering.violation import ProgramViolation
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class LiftResult:
    """A program that was read back and checked.

    dialects: the targets whose rules of text, structure and limits the file keeps
    """

    program: AnyProgram
    violations: tuple[ProgramViolation, ...]
    fitting_targets: tuple[str, ...]

    @property
    def text(self) -> str:
        """The same again, as its target writes it; only of programs without violations."""
        if isinstance(self.program, ExecutionPlan):
            return plan_text(self.program)
        assert isinstance(self.program, Program)
        return target_named(self.program.target).emit(self.program)


def read_program(text: bytes, topology: Topology) -> LiftResult:
    """Return what `text` holds, checked on `topology`; InvalidInput for text that is no program of a known target."""
    lifted = read_unchecked(text)
    return reading_of(lifted, text, violations_on(lifted, topology))


def reading_of(lifted: Lifted[AnyProgram], text: bytes, violations: Sequence[ProgramViolation] = ()) -> LiftResult:
    """Return what is to be said of `lifted`, read from `text`, whose check found `violations`."""
    program = lifted.program
    if isinstance(program, ExecutionPlan):
        dialects = [] if plan_structure_violations(program) else [program.target]
    else:
        dialects = fitting_targets(text)
    return LiftResult(program, tuple(violations), tuple(dialects))


def read_checked(text: bytes, topology: Topology) -> AnyProgram:
    """Return what `text` holds, checked: CheckFailed unless it does what its collective says on `topology`."""
    lifted = read_unchecked(text)
    for violation in violations_on(lifted, topology):
        rule = f"a program must do what its collective says ({violation.rule})"
        raise CheckFailed(rule, violation.message, "report this: the lowering is at fault")
    return lifted.program


def read_unchecked(text: bytes) -> Lifted[AnyProgram]:
    """Return the program that `text` holds, before any check of what it does."""
    return Lifted(parse_plan(text), ()) if text.lstrip()[:1] == b"{" else lift_with_findings(text)
