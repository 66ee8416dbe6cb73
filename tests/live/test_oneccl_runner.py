"""The oneCCL runner on real processes: the kit of every runner, faults on purpose, oneCCL's own algorithms.

`make setup` installs the parts of oneCCL's packages; without them these tests are skipped, and say so.
"""

import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from chorale.runners.api.base import FailureKind, ProgramSettings, RunRequest, library_result
from chorale.runners.oneccl import runner as runner_module
from chorale.runners.oneccl.install import PACKAGES
from chorale.runners.oneccl.runner import OneCclRunner, RankPlacement
from chorale.runners.process_launch.processes import LocalHost
from chorale.runners.ray import hosts
from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from tests.conformance import live_kit, runner_kit
from tests.conformance.example_programs import ring_allreduce, with_deadlock
from tests.conformance.live_kit import descendants
from tests.conformance.runner_kit import RING, failed, measured, request_of
from tests.live.support import needs_oneccl, params
from tests.synthesis import schedule_for

pytestmark = needs_oneccl
PAIR = ring_allreduce(range(2))


ON_LOOPBACK = partial(OneCclRunner, where="loopback")


def _pair(program: Program = PAIR, **others: object) -> RunRequest:
    return request_of(program, "complete:2", **others)


@pytest.mark.parametrize("check", params(runner_kit.CHECKS_WITH_TRACES))
def test_conformance(check: Callable[[runner_kit.Factory], None]) -> None:
    check(ON_LOOPBACK)


def test_every_library_algorithm_is_right_and_takes_its_turn() -> None:
    with ON_LOOPBACK() as runner:
        names = runner.library("allreduce")
        assert len(names) == 6
        results = measured(runner.submit(request_of(RING, library=names, sizes_bytes=(4096, 4097)))).results
    assert list(results) == ["program", *map(library_result, names)]
    for name in names:
        small, large = results[library_result(name)]
        assert len(small.times_s) == 2
        assert 4096 <= small.size_bytes <= 4096 + 16 * 12
        assert large.requested_bytes == 4097
    assert len({one.size_bytes for name in names for one in results[library_result(name)]}) == 12


def test_an_algorithm_that_does_not_serve_is_rejected_and_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner_module.ALGORITHMS, CollectiveName.ALLREDUCE, ("direct",))  # needs MPI underneath
    with ON_LOOPBACK() as runner:
        failure = failed(runner.submit(_pair(library=("direct",))), FailureKind.REJECTED)
    assert "can not select algo" in failure.message


TOPOLOGY = parse_topology("ring:3")


DTYPES = {
    CollectiveName.ALLREDUCE: "bfloat16", CollectiveName.ALLGATHER: "float64", CollectiveName.REDUCE_SCATTER: "int32",
    CollectiveName.BROADCAST: "int64", CollectiveName.REDUCE: "float16", CollectiveName.ALLTOALL: "float32",
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items(), ids=str)
def test_every_collective_is_right(name: CollectiveName, dtype: str) -> None:
    schedule = schedule_for(name, TOPOLOGY)
    lowered = partial(LoweringOptions, "oneccl-xml")
    options = {
        "in place": lowered(),
        "out of place": lowered(in_place=False),
        "two channels": lowered(channels=2, instances=2, fuse=True),
        "in parts": lowered(channels=2, in_place=False),
    }
    request = RunRequest(
        TOPOLOGY,
        {key: lower(schedule, option) for key, option in options.items()},
        (6000, 70_001),
        repeats=1,
        dtype=dtype,
        settings={"in parts": ProgramSettings(buffer_bytes=500)},
    )
    with ON_LOOPBACK() as runner:
        algorithms = runner.library(name)
        results = measured(runner.submit(replace(request, library=algorithms))).results
    assert algorithms
    assert set(results) == {*options, *map(library_result, algorithms)}


@pytest.mark.parametrize("check", params([*live_kit.CHECKS[:4], *live_kit.CHECKS[5:]]))
def test_faults_on_purpose(check: Callable[[live_kit.LiveFactory], None]) -> None:
    check(ON_LOOPBACK)
    assert not descendants()


ELSEWHEN = ("unshare", "--user", "--map-root-user", "--time", "--fork", "--monotonic", "1000")


@pytest.mark.skipif(
    subprocess.run([*ELSEWHEN, "true"], check=False).returncode != 0,
    reason="RANKS WITH CLOCKS OF THEIR OWN ARE NOT TESTED: run as root on Linux 5.6 or newer, for time namespaces",
)
@pytest.mark.parametrize("other", [0, 1])
def test_ranks_with_clocks_of_their_own_agree_on_times(monkeypatch: pytest.MonkeyPatch, other: int) -> None:
    places = [LocalHost(), LocalHost()]
    places[other] = LocalHost(prefix=ELSEWHEN)
    monkeypatch.setattr(runner_module, "place_ranks", lambda *_: RankPlacement(places, {}))
    with ON_LOOPBACK() as runner:
        (result,) = measured(runner.submit(_pair(repeats=5))).results["program"]
    assert 0 < result.median_s < 5


def test_runs_leak_neither_processes_nor_files_nor_descriptors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = psutil.Process()
    with ON_LOOPBACK() as runner:
        environment = measured(runner.submit(_pair())).environment
        assert {name: environment[name] for name in PACKAGES} == PACKAGES
        descriptors = own.num_fds()
        for _ in range(3):
            measured(runner.submit(_pair(warmup=0, repeats=1)))
        assert own.num_fds() == descriptors
    assert not descendants()
    assert not list(tmp_path.iterdir())


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_ranks_run_on_the_nodes_of_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    # The one node of the cluster of these tests takes every rank, as if it had the resource of each.
    monkeypatch.setattr(hosts, "nodes_by_rank", lambda alive, ranks: [alive[0]] * ranks)
    with OneCclRunner() as runner:
        environment = measured(runner.submit(_pair())).environment
        failed(runner.submit(_pair(with_deadlock(PAIR, 1), timeout_s=1.0)), FailureKind.TIMEOUT)
    assert environment["network"] == "cluster"
