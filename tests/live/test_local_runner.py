"""The local runner on real processes: the kit of every runner, and faults in the middle of a run."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from chorale.runners.api.base import FailureKind
from chorale.runners.local.config import LocalConfig
from chorale.runners.local.runner import LocalRunner
from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from chorale.synth.verify.verify import verify
from tests.conformance import live_kit, runner_kit
from tests.conformance.example_programs import ring_allreduce, star_broadcast, with_deadlock
from tests.conformance.live_kit import descendants, long_request, submit_and_meanwhile
from tests.conformance.runner_kit import RING, Lent, failed, measured, request_of
from tests.live.support import params


def _runner() -> LocalRunner:
    return LocalRunner(LocalConfig(link_mbps=200, probe=False))


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalRunner]:
    with _runner() as running:
        yield running


@pytest.mark.parametrize("check", params(runner_kit.CHECKS_WITH_TRACES))
def test_conformance(check: Callable[[runner_kit.Factory], None], shared: LocalRunner) -> None:
    check(_runner if check is runner_kit.closing_twice_is_harmless else lambda: Lent(shared))


@pytest.mark.parametrize("check", params(live_kit.CHECKS))
def test_faults_on_purpose(check: Callable[[live_kit.LiveFactory], None]) -> None:
    check(_runner)
    assert not descendants()


def test_a_killed_launcher_is_a_crash_and_takes_the_ranks_along(shared: LocalRunner) -> None:
    ranks: list[psutil.Process] = []

    def kill_launcher(pids: list[int]) -> None:
        ranks.extend(psutil.Process(pid) for pid in pids)
        ranks[0].parent().kill()  # type: ignore[union-attr]

    failed(submit_and_meanwhile(shared, long_request(), kill_launcher), FailureKind.CRASH)
    _, alive = psutil.wait_procs(ranks, timeout=30)
    assert not [rank for rank in alive if rank.status() != psutil.STATUS_ZOMBIE]
    measured(shared.submit(request_of(RING)))


def test_a_killed_network_is_a_crash_of_nobody_among_the_ranks(shared: LocalRunner) -> None:
    def kill_network(pids: list[int]) -> None:
        siblings = psutil.Process(pids[0]).parent().children()  # type: ignore[union-attr]
        (network,) = [process for process in siblings if process.pid not in pids]
        network.kill()

    failure = failed(submit_and_meanwhile(shared, long_request(), kill_network), FailureKind.CRASH)
    assert (failure.rank, failure.message) == (None, "the emulated network was killed by SIGKILL")
    measured(shared.submit(request_of(RING)))


def test_a_hang_shows_what_each_block_waits_for(shared: LocalRunner) -> None:
    failure = failed(shared.submit(request_of(with_deadlock(RING, 1), timeout_s=5.0)), FailureKind.TIMEOUT)
    assert "rank 1 block 1 instruction 0: cpy waits for block 2 instruction 0" in failure.message
    assert set(failure.blocked) == {(1, 1, 0), (1, 2, 0)}


@pytest.mark.parametrize("stopped", [None, 3], ids=["running", "one rank stopped"])
@pytest.mark.parametrize("cause", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda cause: cause.name)
def test_nothing_outlives_the_process_that_ran_it(cause: signal.Signals, stopped: int | None, tmp_path: Path) -> None:
    make = "from tests.live.test_local_runner import _runner; runner = _runner()"
    live_kit.nothing_outlives_its_owner(make, tmp_path, cause, stopped)


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "out of place"])
def test_lowered_trees_and_alltoalls_compute_the_collective(shared: LocalRunner, in_place: bool) -> None:
    topology = parse_topology("ring:4")
    rooted = [Collective(CollectiveName.BROADCAST, 1), Collective(CollectiveName.REDUCE, 2)]
    made = [verify(double_binary_tree(topology, collective).schedule(6)) for collective in (ALLREDUCE, *rooted)]
    for verified in (*made, verify(alltoall_schedule(topology))):
        for fuse in (False, True):
            program = lower(verified, LoweringOptions("oneccl-xml", in_place=in_place, sm_count=3, fuse=fuse))
            measured(shared.submit(request_of(program, "ring:4", size_bytes=3 * 2**12)))


@pytest.mark.alone
def test_no_run_is_faster_than_its_links() -> None:
    # 6 steps of 64 KiB at 50 Mbit/s. An idle machine needs a few percent more; a busy one can need any time.
    ideal_s = 6 * 2**16 * 8 / 50e6
    with LocalRunner(LocalConfig(link_mbps=50, probe=False)) as runner:
        (result,) = measured(runner.submit(request_of(RING, size_bytes=2**18))).results["program"]
    assert ideal_s <= result.min_s < 10 * ideal_s


def test_a_slower_link_takes_its_share_of_time(shared: LocalRunner) -> None:
    def seconds(bandwidth: int) -> float:
        links = [Link(0, 1, bandwidth), Link(1, 0, 4)]
        topology = Topology("", ("a", "b"), 2, Links.build(links), "GB/s")
        request = replace(request_of(star_broadcast(2, root=0), size_bytes=2**20), topology=topology)
        return measured(shared.submit(request)).results["program"][0].min_s

    assert seconds(4) >= 2**20 * 8 / 200e6
    assert seconds(1) >= 2**20 * 8 / 50e6


def test_switches_forward_for_a_runner_that_is_used_by_a_thread_and_too_many_links_are_unavailable(
    shared: LocalRunner,
) -> None:
    links = [Link(0, 3), Link(3, 0), Link(1, 3), Link(3, 1), Link(2, 3), Link(3, 2)]
    topology = Topology("", ("a", "b", "c", "switch"), 3, Links.build(links))
    with ThreadPoolExecutor(1) as thread:
        request = replace(request_of(ring_allreduce(range(3))), topology=topology)
        measured(thread.submit(shared.submit, request).result())
    assert len(shared.pids) == 3
    failure = failed(shared.submit(request_of(ring_allreduce(range(70)), "complete:70")), FailureKind.UNAVAILABLE)
    assert "at most 512 nodes and 4096 links" in failure.message
