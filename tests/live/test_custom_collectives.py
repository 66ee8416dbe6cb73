"""Collectives that no library has, and those of given sizes, on real processes: every chunk is compared."""

import json
from dataclasses import replace

import pytest

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.local.config import LocalConfig
from chorale.runners.local.runner import LocalRunner
from chorale.synth.build.build import build_program
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift_with_findings
from chorale.synth.targets.mscclpp_text import parse_plan
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.collective_files import parse_collective_file
from tests.command import chorale
from tests.conformance.plan_cases import ENTRY, local, meet, move, plan, remote
from tests.custom_programs import PROGRAMS, SCAN, scan_program

TRIANGLE, PAIR = parse_topology("complete:3"), parse_topology("complete:2")
SIZES = (4096, 100_000)

SWAP = """
{"format": "chorale-collective/1", "name": "swap", "ranks": 2, "input_chunks": 1, "output_chunks": 2,
 "outputs": [{"rank": 0, "chunk": 1, "from": 1, "source": 0}, {"rank": 1, "chunk": 1, "from": 0, "source": 0}]}
"""


@pytest.fixture(scope="module")
def loopback():
    with LocalRunner(LocalConfig(where="loopback")) as opened:
        yield opened


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_programs_give_right_results(loopback, name):
    collective, text = PROGRAMS[name]
    program = lift_with_findings(text.encode(), parse_collective_file(collective)).program
    outcome = loopback.submit(RunRequest(TRIANGLE, {name: program}, SIZES, repeats=2, timeout_s=60))
    assert isinstance(outcome, Measurement), outcome


def test_a_wrong_sum_is_seen(loopback):
    text = scan_program([("r", "o", 0, "o", 0, 2)])  # rank 2 keeps its own contribution for itself
    program = lift_with_findings(text.encode(), parse_collective_file(SCAN)).program
    outcome = loopback.submit(RunRequest(TRIANGLE, {"scan": program}, SIZES, repeats=1, timeout_s=60))
    assert (outcome.kind, outcome.rank) == (FailureKind.WRONG_RESULT, 2), outcome


def test_plans_have_custom_collectives_too(loopback):
    document = plan(
        "swap", (1, 2, 0), lambda rank: [[*ENTRY, move("put", [local("i", 0)], [remote(1)]), *meet()]], in_place=False
    )
    swap = parse_plan(json.dumps(document).encode(), collective=parse_collective_file(SWAP))
    assert check_program(swap) == []
    outcome = loopback.submit(RunRequest(PAIR, {"swap": swap}, SIZES, repeats=2, timeout_s=60))
    assert isinstance(outcome, Measurement), outcome


def test_the_command_runs_a_program_against_its_collective(tmp_path, capsys):
    (tmp_path / "scan.yaml").write_text(SCAN)
    (tmp_path / "scan.xml").write_text(scan_program())
    options = ("--runner", "local", "--sizes", "64KiB", "--set", "where=loopback", "--repeats", 2, "--json")
    done = chorale(capsys, "run", tmp_path / "scan.xml", "--collective-file", tmp_path / "scan.yaml", *options)
    assert done.code == 0, done.stderr
    assert [row["correct"] for row in done.document["results"]] == [True]


AMOUNTS, OTHERS = [[1, 3, 2], [0, 0, 4], [5, 0, 1]], [[2, 2, 2], [0, 0, 4], [4, 1, 1]]


def program_of(amounts):
    plan = plan_traffic(TRIANGLE, traffic_matrix("m", amounts), chunks=max(map(max, amounts)))
    return build_program(verify(traffic_schedule(plan)), LoweringOptions("msccl-xml")).program


def test_an_all_to_all_of_given_sizes_gives_right_results_and_one_for_other_sizes_wrong_ones(loopback):
    right, wrong = program_of(AMOUNTS), program_of(OTHERS)
    outcome = loopback.submit(RunRequest(TRIANGLE, {"right": right}, SIZES, repeats=2, timeout_s=60))
    assert isinstance(outcome, Measurement), outcome
    assert right.chunks == wrong.chunks
    programs = {"wrong": replace(wrong, collective=right.collective)}
    outcome = loopback.submit(RunRequest(TRIANGLE, programs, (4096,), repeats=1, timeout_s=60))
    assert outcome.kind is FailureKind.WRONG_RESULT, outcome
