"""Plans in which the switch adds and multicasts, from stars of every rank."""

import json
from dataclasses import replace

import numpy as np
import pytest

from chorale.synth.build.build import build_switch_plan
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import switch_plan
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.costs.pricing import program_time_per_byte
from tests.unit.synth.programs.plans.weak import WeakRun

OPTIONS = LoweringOptions("mscclpp-json")


def stars(spec: str) -> Schedule:
    """Each rank is the root of one shard: sums go up to the switch and to it, results from it back to all others."""
    topology = parse_topology(spec)
    ranks, links = topology.compute_count, topology.links
    switch = min(topology.abilities)
    up = {src: link for link, (src, dst) in enumerate(zip(links.src, links.dst, strict=True)) if dst == switch}
    down = {dst: link for link, (src, dst) in enumerate(zip(links.src, links.dst, strict=True)) if src == switch}
    rows = []
    for root in range(ranks):
        others = [rank for rank in range(ranks) if rank != root]
        rows += [(0, up[rank], root, 0, 1, 1) for rank in others] + [(0, down[root], root, 0, 1, 1)]
        rows += [(1, up[root], root, 0, 1, 0)] + [(1, down[rank], root, 0, 1, 0) for rank in others]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    transfers = ColumnBounds(2, len(links), ranks, 1).pack(columns)
    return Schedule(topology, ALLREDUCE, "pipelined", 2, 1, transfers, Routes.direct(len(links)), "stars", {})


def made(spec: str, **options: object) -> ExecutionPlan:
    plan = switch_plan(stars(spec), replace(OPTIONS, **options))  # type: ignore[arg-type]
    return parse_plan(plan_text(plan).encode())


@pytest.mark.parametrize("in_place", [True, False], ids=["inplace", "outofplace"])
@pytest.mark.parametrize("group", [1, 2])
def test_plans_are_right(group, in_place):
    plan = made("h100:1", block_group=group, in_place=in_place)
    assert check_program(plan) == []
    sums = [
        each
        for body in plan.ranks
        for block in body.blocks
        for each in block.operations
        if each.action is Action.GROUP_LOAD_REDUCE_STORE
    ]
    assert len(sums) == 8 * group
    for seed in range(2):
        assert WeakRun(json.loads(plan_text(plan)), 2, seed).is_right() or not in_place


def test_many_peers_take_blocks_enough_for_a_channel_with_each():
    plan = made("able(switch:18,450)")
    assert check_program(plan) == []
    assert {len(body.blocks) for body in plan.ranks} == {2}
    assert {len(body.blocks) for body in made("nvl72:1").ranks} == {5}


def test_the_switch_takes_and_gives_each_chunk_once():
    """Each GPU sends its chunk for every sum and its own sum, 9/8 of the vector, at 450 GB/s."""
    topology = parse_topology("h100:1")
    assert 1 / program_time_per_byte(made("h100:1"), topology) == 400


def test_what_is_synthesized_for_a_box_has_a_plan_and_for_two_has_none():
    """Over two boxes each switch adds for one rank only, an operation that no release of MSCCL++ reads."""
    box = synthesize("in-network", parse_topology("h100:1"), ALLREDUCE, None, SerialExecutor())
    built = build_switch_plan(box, OPTIONS)
    assert built.read_back.origin == box.schedule.id
    boxes = synthesize("in-network", parse_topology("h100:2"), ALLREDUCE, None, SerialExecutor())
    with pytest.raises(InvalidInput, match="stars around one switch"):
        build_switch_plan(boxes, OPTIONS)


@pytest.mark.parametrize(
    "options", [{"target": "msccl-xml"}, {"protocol": "LL"}, {"reads": True}, {"max_bytes": 2**40}], ids=str
)
def test_what_does_not_fit_is_refused(options):
    with pytest.raises(InvalidInput):
        made("h100:1", **options)


def test_trees_that_are_no_stars_are_refused():
    schedule = stars("h100:1")
    some = replace(schedule, transfers=schedule.transfers.select(np.arange(1, len(schedule.transfers))))
    with pytest.raises(InvalidInput, match="stars around one switch"):
        switch_plan(some, OPTIONS)
