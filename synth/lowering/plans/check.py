"""Checks a plan of one-sided operations, wherever it came from."""

from __future__ import annotations

from synth.lowering.plans.check_execution import plan_execution_violations
from synth.lowering.plans.check_structure import plan_structure_violations
from synth.lowering.plans.plan import Plan
from synth.lowering.violation import Violation

_HARMLESS_TO_EXECUTE = frozenset({"limit", "idle rank", "never used"})


def check_plan(plan: Plan) -> list[Violation]:
    """Return every rule that `plan` breaks; an empty list means that it does what its collective says.

    First the rules that show in the text, then, if it can be executed at all, what it does: races (also those that a
    missing `nop` makes, and with what was there before the call), deadlocks, chunks read before they are written, wrong
    sums, wrong results, a changed input, writes that may come after the call.
    """
    found = plan_structure_violations(plan)
    if all(violation.rule in _HARMLESS_TO_EXECUTE for violation in found):
        found.extend(plan_execution_violations(plan))
    return found
