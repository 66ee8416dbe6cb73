"""Plans of MSCCL++ on real processes: every rule of the executor, and collectives of more ranks."""

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunRequest
from chorale.runners.local.config import LocalConfig
from chorale.runners.local.runner import LocalRunner
from chorale.runners.plans.rank_plans import IMPLEMENTED
from chorale.synth.build.build import verified_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.judge import check_program
from chorale.synth.topology.spec import parse_topology
from tests.conformance.plan_cases import CASES, plan_case as case

PAIR = parse_topology("complete:2")
SIZES = (4096, 100_000)  # the second is no multiple of anything


@pytest.fixture(scope="module")
def runner():
    with LocalRunner() as opened:
        yield opened


def submit(runner: LocalRunner, plan: ExecutionPlan, timeout_s: float = 60.0, **more) -> Outcome:
    """Several calls with other data each: what is left in scratch and counters by one must not harm the next."""
    request = RunRequest(PAIR, {"plan": plan}, SIZES, repeats=4, warmup=1, timeout_s=timeout_s, **more)
    return runner.submit(request)


@pytest.mark.parametrize("name", CASES)
def test_right_plans_give_right_results(runner, name):
    outcome = submit(runner, case(name))
    assert isinstance(outcome, Measurement), outcome
    assert [size.correct for size in outcome.results["plan"]] == [True, True]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("put", "another chunk"),
        ("read and reduce", "a sum of other chunks"),
        ("res", "one source twice"),
        ("switch sums", "the chunk of the other"),
        ("groups and barriers", "both do the same part"),
    ],
)
def test_wrong_results_are_seen(runner, name, wrong):
    outcome = submit(runner, case(name, wrong))
    assert outcome.kind is FailureKind.WRONG_RESULT, outcome
    assert check_program(case(name, wrong))


HANGS = [("packets", "nobody sends", "upkt"), ("packets through a port", "nothing to send on", "rppkt")]


@pytest.mark.parametrize(("name", "wrong", "operation"), HANGS)
def test_a_plan_that_hangs_is_ended_and_says_where(runner, name, wrong, operation):
    outcome = submit(runner, case(name, wrong), timeout_s=6.0)  # the ranks start within it
    assert outcome.kind is FailureKind.TIMEOUT
    assert f"rank 0 block 0 instruction 0: {operation} waits for packets" in outcome.message
    assert isinstance(submit(runner, case("packets")), Measurement)  # what failed leaves nothing behind


def test_what_breaks_a_rule_of_structure_and_ranks_without_shared_memory_are_refused(runner):
    outcome = submit(runner, case("put", "a chunk outside"))
    assert outcome.kind is FailureKind.REJECTED
    assert "o[2..2] of rank 1 is outside its 2 chunks" in outcome.message
    with LocalRunner(LocalConfig(where="emulated")) as emulated:
        outcome = submit(emulated, case("put"))
    assert outcome.kind is FailureKind.REJECTED
    assert "set where to loopback" in outcome.message


@pytest.mark.parametrize("dtype", ["float64", "int32", "float16", "bfloat16"])
def test_elements_of_other_types_are_summed(runner, dtype):
    plans = {name: case(name) for name in ("reduce and send packets", "switch")}
    outcome = runner.submit(RunRequest(PAIR, plans, (1 << 16,), repeats=2, timeout_s=60, dtype=dtype))
    assert isinstance(outcome, Measurement), outcome


def test_the_environment_names_what_stands_for_hardware(runner):
    switch = submit(runner, case("switch")).environment
    assert (switch["memory_channels"], switch["switch_channels"]) == (IMPLEMENTED["memory"], IMPLEMENTED["switch"])
    port = submit(runner, case("port put with signal")).environment
    assert port["port_channels"] == IMPLEMENTED["port"]
    assert "switch_channels" not in port


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce", "broadcast"])
def test_plans_of_more_ranks_and_their_programs_side_by_side(collective):
    network = parse_topology("complete:4")
    verified = verified_schedule(ScheduleRequest(network, parse_collective(collective), "auto"))
    program = lower(verified, LoweringOptions("msccl-xml"))
    plan = plan_of(program)
    with LocalRunner() as opened:
        outcome = opened.submit(RunRequest(network, {"program": program, "plan": plan}, SIZES, 3, timeout_s=60))
    assert isinstance(outcome, Measurement), outcome
    assert outcome.environment["network"] == "loopback"
    assert {size.correct for sizes in outcome.results.values() for size in sizes} == {True}
