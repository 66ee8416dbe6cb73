"""Switches that add and multicast as processes of the local runner: real bytes, every element compared."""

from dataclasses import replace

import pytest

from chorale.experiments.framework.experiment import synthesized
from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.execution.rounds import SWITCH_PROCESS
from chorale.runners.local.config import LocalConfig
from chorale.runners.local.runner import LocalRunner
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Op
from chorale.synth.topology.spec import parse_topology

OPTIONS = LoweringOptions("oneccl-xml")


def program(spec, collective, method):
    return lower(synthesized(method, spec, collective), OPTIONS)


@pytest.mark.parametrize(
    ("spec", "collective"),
    [
        ("able(switch:4,1)", "allreduce"),
        ("able(switch:4,1)", "reduce_scatter"),
        ("railclos:2,2,1,2", "allreduce"),
        ("railclos:2,2,1,2", "allgather"),
    ],
)
def test_sums_and_copies_of_switches_are_right_beside_ranks_alone(spec, collective):
    programs = {name: program(spec, collective, name) for name in ("in-network", "forest")}
    request = RunRequest(parse_topology(spec), programs, (10_000,), repeats=1, timeout_s=60)
    with LocalRunner(LocalConfig(link_mbps=200, probe=False)) as runner:
        outcome = runner.submit(request)
    assert isinstance(outcome, Measurement), outcome
    assert all(size.correct for sizes in outcome.results.values() for size in sizes)
    assert outcome.environment["switches"] == SWITCH_PROCESS
    assert outcome.environment["switch_processes"] == len(parse_topology(spec).abilities)


def test_a_switch_that_forgets_a_summand_is_seen():
    right = program("able(switch:4,1)", "allreduce", "in-network")
    [*ranks, switch] = right.ranks
    blocks = tuple(
        replace(block, instructions=tuple(_stored(item) for item in block.instructions)) for block in switch.blocks
    )
    wrong = replace(right, ranks=(*ranks, replace(switch, blocks=blocks)))
    request = RunRequest(parse_topology("able(switch:4,1)"), {"wrong": wrong}, (4096,), repeats=1, timeout_s=60)
    with LocalRunner(LocalConfig(link_mbps=200, probe=False)) as runner:
        outcome = runner.submit(request)
    assert outcome.kind == FailureKind.WRONG_RESULT, outcome


def _stored(item):
    return replace(item, op=Op.RECV) if item.op is Op.RECV_REDUCE_COPY else item
