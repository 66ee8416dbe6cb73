"""The device runner on CPUs that stand in for GPUs: results, refusals, ranks that stall or die, a campaign."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="THE DEVICE RUNNER IS NOT TESTED: pip install torch")

from chorale.runners.api.base import FailureKind, RunRequest
from chorale.runners.api.registry import create_runner
from chorale.runners.device.runner import DeviceRunner
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.conformance.runner_kit import failed, measured
from tests.unit.synth.lowering.programs import lowered

TUNE = (
    "sizes=[4KiB]", "budget.trials=2", "repeats=2", "runner.iterations=1", "final.launches=1", "topology=complete:4",
)  # fmt: skip
EXAMPLE = Path(__file__).parents[3] / "examples" / "plans-as-kernels.yaml"


@pytest.fixture(scope="module")
def runner() -> Iterator[DeviceRunner]:
    made = create_runner("device", {"memory": "host", "iterations": 2})
    assert isinstance(made, DeviceRunner)
    yield made
    made.close()


def request(collective: str, **others: object) -> RunRequest:
    plans = {
        "plan": plan_of(lowered("complete:4", collective, "mscclpp-json")),
        "packets": plan_of(lowered("complete:4", collective, "mscclpp-json", in_place=False, threads=64)),
    }
    made = RunRequest(parse_topology("complete:4"), plans, (1000, 8192), repeats=2, timeout_s=20.0, library=("gloo",))
    return replace(made, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("collective", "dtype"), [("allreduce", "bfloat16"), ("allgather", "int64"), ("reduce_scatter", "float32")]
)
def test_plans_and_the_library_are_measured_side_by_side(runner: DeviceRunner, collective: str, dtype: str) -> None:
    found = measured(runner.submit(request(collective, dtype=dtype)))
    assert set(found.results) == {"plan", "packets", "library:gloo"}
    assert all(size.correct and len(size.times_s) == 2 for sizes in found.results.values() for size in sizes)
    assert "stand in for GPUs" in str(found.environment["warning"])


def test_what_is_no_plan_or_has_no_type_is_refused(runner: DeviceRunner) -> None:
    program = lowered("complete:4", "allreduce", "oneccl-xml")
    outcome = runner.submit(request("allreduce", programs={"program": program}))
    assert "lower it with --target mscclpp-json" in failed(outcome, FailureKind.REJECTED).message
    failed(runner.submit(request("allreduce", library=("torch-one-shot",))), FailureKind.REJECTED)
    measured(runner.submit(request("allreduce", repeats=1)))
    assert runner._group is not None
    runner._group.most_blocks = 2
    outcome = runner.submit(request("allreduce"))
    assert "6 thread blocks, but only 2 certainly run at the same time" in failed(outcome, FailureKind.REJECTED).message


@pytest.mark.parametrize(("sent", "kind"), [(signal.SIGSTOP, FailureKind.TIMEOUT), (signal.SIGKILL, FailureKind.CRASH)])
def test_a_rank_that_stalls_or_dies_is_named(runner: DeviceRunner, sent: signal.Signals, kind: FailureKind) -> None:
    measured(runner.submit(request("allreduce")))
    victim, stop = runner.pids[2], threading.Event()
    threading.Timer(0.5, lambda: (os.kill(victim, sent), stop.set())).start()
    begin_s = time.monotonic()
    outcome = failed(runner.submit(request("allreduce", repeats=500, timeout_s=6.0, library=())), kind)
    assert stop.is_set()
    assert time.monotonic() - begin_s < 60
    assert outcome.rank == 2
    assert "rank 2" in outcome.message
    measured(runner.submit(request("allreduce")))


def test_a_campaign_gives_a_table_of_plans(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("runner.memory=host", "baselines=[ring]", "search.methods=[one-shot,bfb]", "search.block_group=[1]")
    words = [word for setting in (*TUNE, *more) for word in ("--set", setting)]
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    done = chorale(capsys, "tune", EXAMPLE, *words, "--json")
    assert done.code == 0, done.stderr
    assert done.document["trials"]["failed"] == 0
    assert done.document["trials"]["complete"] > 0
    written = chorale(
        capsys, "table", "write", "--campaign", "plans-as-kernels", "-o", tmp_path / "t", "--json"
    ).document
    assert {each["target"] for each in written["programs"].values()} <= {"mscclpp-json"}
    assert chorale(capsys, "table", "verify", tmp_path / "t").code == 0
