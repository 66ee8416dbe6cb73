"""The backend for torch on four ranks: calls, groups, training, refusals, and a rank that dies."""

import importlib
import json
import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.command import python
from tests.live.job.torch.launch import environment_of_jobs, needs_torch, results_of, start_ranks, wait_for
from tests.waiting import until

pytestmark = [needs_torch, pytest.mark.timeout(700)]

APART = ("endless", "overhead_of_the_library")
LAST = ("abort_ends_threads", "rank_that_does_not_come", "exit_without_destroy")
SCENARIO = re.compile(r"^def ([a-z]\w*)\(meeting: Meeting\) -> None:", re.MULTILINE)
FOUND = [name for path in sorted(Path(__file__).parent.glob("*.py")) for name in SCENARIO.findall(path.read_text())]
QUICK = [*(name for name in FOUND if name not in APART + LAST), *LAST]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment_of_jobs(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def results(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, list[str]]:
    """How the scenarios that are asked for ended, one after the other in the same four processes."""
    cases = {item.name for item in request.session.items}
    asked = [name for name in QUICK if f"test_scenario[{name}]" in cases]
    folder = tmp_path_factory.mktemp("scenarios")
    codes = wait_for(start_ranks(folder, 4, environment, asked), 600)  # a minute where nothing else runs
    assert codes == [0] * 4, "\n".join((folder / f"{rank}.log").read_text()[-3000:] for rank in range(4))
    return results_of(folder, 4)


@pytest.mark.parametrize("name", QUICK)
def test_scenario(name: str, results: dict[str, list[str]]) -> None:
    wrong = [f"rank {rank}: {result}" for rank, result in enumerate(results[name]) if result != "ok"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("transport", ["engine", pytest.param("batched", marks=pytest.mark.slow)])
def test_a_killed_rank_is_an_error_of_the_others(transport: str, environment: dict[str, str], tmp_path: Path) -> None:
    processes = start_ranks(tmp_path, 4, environment | {"CHORALE_TRANSPORT": transport}, ["endless"])
    until(lambda: all((tmp_path / f"{rank}.ready").exists() for rank in range(4)), 200)
    os.kill(processes[2].pid, signal.SIGKILL)
    codes = wait_for(processes, 30 if transport == "engine" else 120)  # gloo waits for messages until its time-out
    assert codes == [0, 0, -signal.SIGKILL, 0]
    for rank in (0, 1, 3):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {"endless": "ok"}


def test_ranks_that_die_or_stall_while_others_train_are_errors_of_these(tmp_path: Path) -> None:
    """DDP by itself, with hooks and while its table is replaced, and FSDP; none of the others ends by a signal."""
    kinds = ("ddp killed", "ddp stalled", "compressed killed", "hook killed", "reload stalled", "fsdp killed")
    chosen = [word for kind in kinds for word in ("--kind", kind)]
    python("-m", "tests.live.job.torch.rank_failures", "--rounds", "1", *chosen, timeout_s=380)


@pytest.mark.skipif(os.getuid() != 0, reason="SEVERAL NETWORKS ARE NOT TESTED: run the tests as root")
def test_bytes_leave_by_the_device_that_was_chosen() -> None:
    """On two hosts that are joined by four networks, beside a device that is the same everywhere; in torch and MPI."""
    command = ["unshare", "--net", sys.executable, "-W", "ignore", "-m", "tests.live.job.torch.networks"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    devices = {"gloo": ["ib0"], "nccl": ["ib1"], "excluded": ["ib1"], "route": ["ib0"], "anything": ["eno1"]}
    devices |= {"gloo alone": ["ib0"], "several": ["ib0", "ib1"], "six": ["six0"], "route without a table": ["six0"]}
    if find_spec("mpi4py") is not None:
        devices |= {"mpi alone": ["ib0"], "mpi": ["ib0"], "mpi excluded": ["ib1"], "mpi anything": ["eno1"]}
        devices |= {"mpi several": ["ib0", "ib1"], "mpi six": ["six0"]}
    networks = importlib.import_module("tests.live.job.torch.networks")  # it needs torch
    for rank, found in enumerate(json.loads(done.stdout)):
        said = found.pop("nowhere")
        assert {case: networks.chosen(sent) for case, sent in found.items()} == devices
        way = r"no way from 172.17.0.1:\d+ \(docker0\) to 172.17.0.1:\d+ \(docker0\).* set CHORALE_INTERFACE"
        assert re.search(f"rank {1 - rank} could not be connected in time: {way}", said), said


def test_the_library_s_calls_cost_little_more(environment: dict[str, str], tmp_path: Path) -> None:
    assert wait_for(start_ranks(tmp_path, 1, environment, ["overhead_of_the_library"]), 60) == [0]
    assert results_of(tmp_path, 1) == {"overhead_of_the_library": ["ok"]}
