"""Tables for what is left of a fabric."""

from fractions import Fraction

import pytest

from chorale.job.table.layout import parse_table
from chorale.job.table.verification import checked_table
from chorale.synth.errors import InvalidInput
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.tuner.watch.replanning import Planner, PlanRequest, table_entry

_SIZES = (1024, 1 << 20)
_CUT = "without(hypercube:3;link=0>1;link=1>0)"
_REQUEST = PlanRequest(("allreduce",), _SIZES, ("bfb", "forest"), NetworkModel.of(100, 0, 0, "1/10"))


def _planner(*methods: str) -> Planner:
    return Planner(PlanRequest(("allreduce",), _SIZES, methods, _REQUEST.model))


def test_a_plan_is_a_sound_table_with_proven_costs() -> None:
    plan = _planner("forest").plan(_CUT)
    table, violations = checked_table(plan.data)
    assert table is not None
    assert violations == []
    assert parse_table(plan.data)[1] == plan.digest
    costs = plan.costs["allreduce"]
    assert (Fraction(costs["achieved"]), Fraction(costs["gap"])) == (Fraction(7, 8), Fraction(3, 8))


def test_the_same_state_gives_the_same_bytes_and_is_looked_up() -> None:
    planner = _planner("bfb")
    plan = planner.plan(_CUT)
    assert planner.has(_CUT)
    assert planner.plan(_CUT) is plan
    assert _planner("bfb").plan(_CUT).data == plan.data


def test_methods_that_do_not_suit_are_left_out() -> None:
    assert _planner("hamiltonian-ring", "bfb").plan("hypercube:3").table.programs
    with pytest.raises(InvalidInput):
        _planner("hamiltonian-ring").plan("hypercube:3")


def test_a_network_in_two_parts_has_no_plan() -> None:
    with pytest.raises(InvalidInput, match="no path"):
        _planner("bfb").plan("without(ring:4;link=0-1;link=2-3)")


def test_programs_of_the_present_table_stay_where_they_are_faster() -> None:
    present = _planner("bfb").plan("hypercube:3").table
    planner = _planner("forest")
    plan = planner.plan(_CUT)
    mixed = planner.with_present(plan, present, [("allreduce", _SIZES[0])])
    small, large = (table_entry(mixed.table, "allreduce", size) for size in _SIZES)
    assert small is not None
    assert large is not None
    assert small.digest in present.programs
    assert large.digest in plan.table.programs
    _, violations = checked_table(mixed.data)
    assert violations == []
    entry = next(each for each in mixed.table.entries if each.program == small.digest)
    assert entry.certificate is not None
    assert Fraction(entry.certificate["achieved"]) > Fraction(7, 12)  # over detours, on what is left
