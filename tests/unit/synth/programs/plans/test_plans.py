"""Programs become plans of one-sided operations that do what they must, by the check and by a plain executor."""

import json
from pathlib import Path

import pytest

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans.plan import Action
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import read_checked, read_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.topology.spec import parse_topology
from tests.unit.synth.lowering.programs import exchange_schedule, lowered, verified
from tests.unit.synth.programs.plans.examples import made
from tests.unit.synth.programs.plans.weak import WeakRun

GOLDEN = Path(__file__).parents[4] / "golden" / "mscclpp-json-ring3-allreduce-inplace.json"
PLACES = pytest.mark.parametrize("in_place", [True, False], ids=["inplace", "outofplace"])
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")


@pytest.mark.parametrize(
    ("spec", "method", "options", "collective", "in_place"),
    [
        ("complete:4", "bfb", {"channels": 2, "instances": 2}, "allgather", False),
        ("complete:4", "bfb", {"fuse": True}, "allreduce", True),
        ("ring:5", "ring", {"fuse": True}, "reduce_scatter", False),
        ("complete:4", "bfb", {}, "allgather", True),
        ("torus:2x3", "bfb", {}, "allreduce", False),
        ("complete:4", "bfb", {}, "reduce_scatter", True),
    ],
)
def test_plans_are_right(spec, method, options, collective, in_place):
    """By the check, and on an executor that shares nothing with it."""
    text = made(spec, collective, method, in_place=in_place, **options)
    plan = parse_plan(text.encode())
    assert check_program(plan) == []
    assert plan_text(plan) == text
    assert WeakRun(json.loads(text), 2, 0).is_right()


@PLACES
@pytest.mark.parametrize(
    ("spec", "method", "collective"),
    [*(("a100:1", "forest", name) for name in COLLECTIVES), ("hypercube:3", "recursive-doubling", "allreduce")],
)
def test_trees_and_exchanges(spec, method, collective, in_place):
    text = made(spec, collective, method, in_place=in_place, channels=2)
    assert check_program(parse_plan(text.encode())) == []
    assert WeakRun(json.loads(text), 1, 0).is_right()


def test_the_text_is_as_recorded():
    assert made("ring:3", "allreduce") == GOLDEN.read_text()


def test_an_allgather_in_place_needs_no_scratch_and_no_copies():
    plan = plan_of(lowered("complete:4", "allgather"))
    assert all(body.scratch_chunks == 0 for body in plan.ranks)
    actions = {item.action for body in plan.ranks for block in body.blocks for item in block.operations}
    assert not actions & {Action.COPY, Action.REDUCE}


def test_what_an_exchange_overwrites_waits_in_scratch():
    """Both send what they then overwrite, and neither knows when the other has."""
    plan = plan_of(lower(exchange_schedule(3), LoweringOptions("mscclpp-json")))
    assert check_program(plan) == []
    assert max(body.scratch_chunks for body in plan.ranks) >= 6


def test_long_blocks_are_cut_until_there_are_too_many():
    schedule = verified("ring:16", "allreduce", "ring")
    whole = plan_of(lower(schedule, LoweringOptions("mscclpp-json", channels=2)))
    cut = plan_of(lower(schedule, LoweringOptions("mscclpp-json", sm_count=7)))
    for plan in (whole, cut):
        assert check_program(plan) == []
        assert max(len(block.operations) for body in plan.ranks for block in body.blocks) <= 64
    assert len(cut.ranks[0].blocks) > len(lower(schedule, LoweringOptions("mscclpp-json")).ranks[0].blocks)
    with pytest.raises(InvalidInput, match=r"thread blocks that must run at once: 7 is above the limit 6"):
        lower(schedule, LoweringOptions("mscclpp-json", sm_count=6))


def test_wrapping_offsets_are_refused():
    with pytest.raises(InvalidInput, match="offsets have 32 bits"):
        made("ring:8", "allreduce", method="ring", max_bytes=2**32 - 1, instances=2, in_place=False, fuse=True)


def test_a_plan_is_checked_on_its_network():
    text = made("ring:4", "allreduce").encode()
    reading = read_program(text, parse_topology("ring:4"))
    assert not reading.verdict.violations
    assert (reading.program.target, len(reading.program.ranks)) == ("mscclpp-json", 4)
    assert reading.fitting_targets == ("mscclpp-json",)
    assert reading.text.encode() == text
    with pytest.raises(CheckFailed, match="ranks"):
        read_checked(text, parse_topology("ring:5"))
