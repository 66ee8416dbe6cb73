"""Channels tell rails apart where the ranks of a box share them, and only there."""

from functools import lru_cache

import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.program import Program
from chorale.synth.targets.judge import check_program
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule


@lru_cache
def made(method: str, spec: str, collective: Collective) -> VerifiedSchedule:
    return synthesize(method, parse_topology(spec), collective, None, SerialExecutor())


def channels_of_ports(program: Program) -> dict[tuple[int, bool], set[int]]:
    """Return the channels by parity of the sender and by whether it sends to another box (of 8 ranks)."""
    found: dict[tuple[int, bool], set[int]] = {}
    for rank, body in enumerate(program.ranks):
        for block in body.blocks:
            if block.send_peer is not None:
                key = (rank % 2, rank // 8 != block.send_peer // 8)
                found.setdefault(key, set()).add(block.channel)
    return found


@pytest.mark.parametrize("method", ["forest", "ring"])
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER], ids=str)
def test_even_and_odd_ports_take_even_and_odd_channels(method, collective):
    program = lower(made(method, "a100:2", collective), LoweringOptions("msccl-xml", channels=2))
    channels = channels_of_ports(program)
    assert {channel % 2 for channel in channels[0, True]} == {0}
    assert {channel % 2 for channel in channels[1, True]} == {1}
    assert check_program(program) == []


@pytest.mark.parametrize("in_place", [True, False])
def test_both_halves_of_allreduce_keep_to_rails(in_place):
    program = lower(made("forest", "a100:2", ALLREDUCE), LoweringOptions("msccl-xml", in_place=in_place))
    assert program.channels == 2
    assert check_program(program) == []


def test_a_tree_that_takes_one_rail_keeps_to_one_channel():
    schedule = made("forest", "a100:2", ALLGATHER)
    program = lower(schedule, LoweringOptions("msccl-xml"))
    taken: dict[int, set[int]] = {}
    crossed: dict[int, set[int]] = {}
    for rank, body in enumerate(program.ranks):
        for block in body.blocks:
            for item in block.instructions if block.send_peer is not None else ():
                for chunk in range(item.src.offset, item.src.offset + item.count):
                    taken.setdefault(chunk, set()).add(block.channel)
                    if rank // 8 != block.send_peer // 8:
                        crossed.setdefault(chunk, set()).add(rank % 2)
    assert len(crossed) == program.chunks
    for chunk, rails in crossed.items():
        if len(rails) == 1:
            assert taken[chunk] == rails


@pytest.mark.parametrize(("method", "spec"), [("forest", "h100:2"), ("forest", "a100:1"), ("forest", "mi250half:2")])
def test_other_boxes_need_no_channels_for_rails(method, spec):
    assert lower(made(method, spec, ALLGATHER), LoweringOptions("oneccl-xml")).channels == 1
