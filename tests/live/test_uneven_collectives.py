"""Collectives of given sizes on real processes: every element of every output is compared."""

from dataclasses import replace

import pytest

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.local.runner import LocalRunner
from chorale.synth.build.build import build_program
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify

TRIANGLE = parse_topology("complete:3")
AMOUNTS, OTHERS = [[1, 3, 2], [0, 0, 4], [5, 0, 1]], [[2, 2, 2], [0, 0, 4], [4, 1, 1]]


@pytest.fixture(scope="module")
def runner():
    with LocalRunner(where="loopback") as opened:
        yield opened


def program_of(amounts):
    plan = plan_traffic(TRIANGLE, traffic_matrix("m", amounts), chunks=max(map(max, amounts)))
    return build_program(verify(traffic_schedule(plan)), LoweringOptions("msccl-xml")).program


def test_an_all_to_all_of_given_sizes_gives_right_results(runner):
    programs = {"alltoallv": program_of(AMOUNTS)}
    outcome = runner.submit(RunRequest(TRIANGLE, programs, (4096, 100_000), repeats=2, timeout_s=60))
    assert isinstance(outcome, Measurement), outcome


def test_one_for_other_sizes_gives_wrong_ones(runner):
    right, wrong = program_of(AMOUNTS), program_of(OTHERS)
    assert right.chunks == wrong.chunks
    programs = {"wrong": replace(wrong, collective=right.collective)}
    outcome = runner.submit(RunRequest(TRIANGLE, programs, (4096,), repeats=1, timeout_s=60))
    assert outcome.kind is FailureKind.WRONG_RESULT, outcome
