"""The local runner without an emulated network: on a fabric and on loopback, and Gloo's collectives beside programs."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec

import pytest

from chorale.runners.api.base import FailureKind, RunRequest, library_result
from chorale.runners.fabric.fabric import EmulatedFabric, processes_in
from chorale.runners.local.config import LocalConfig
from chorale.runners.local.runner import LocalRunner
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from tests.conformance import live_kit, runner_kit
from tests.conformance.example_programs import ring_allgather, ring_reduce_scatter, star_broadcast
from tests.conformance.live_kit import descendants, long_request, submit_and_meanwhile
from tests.conformance.runner_kit import RING, failed, measured, request_of
from tests.live.support import fabric_of, params, takes_as_long_as_the_links_do

NAME = f"local-{os.getpid()}"

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="GLOO IS NOT TESTED: pip install torch")


def _on_loopback() -> LocalRunner:
    return LocalRunner(LocalConfig(where="loopback"))


@pytest.fixture(scope="module")
def ring() -> Iterator[EmulatedFabric]:
    with fabric_of(NAME, "THE LOCAL RUNNER") as fabric:
        yield fabric


ON_LOOPBACK = {
    runner_kit.right_programs_give_times,
    runner_kit.every_element_type_is_exact,
    runner_kit.a_hang_is_a_timeout_that_names_the_blocks,
    runner_kit.closing_twice_is_harmless,
}
"""What is tried on loopback each time; the others each time on emulated links, in test_local_runner.py."""


@pytest.mark.parametrize("check", params(runner_kit.CHECKS, ON_LOOPBACK))
def test_conformance_on_loopback(check: Callable[[runner_kit.Factory], None]) -> None:
    check(_on_loopback)
    assert not descendants()


@pytest.mark.parametrize("check", params(live_kit.CHECKS[:2], {live_kit.a_killed_rank_is_a_crash_that_names_it}))
def test_faults_on_a_fabric(check: Callable[[live_kit.LiveFactory], None], ring: EmulatedFabric) -> None:
    check(lambda: LocalRunner(LocalConfig(where="fabric", fabric=ring.name)))
    assert not processes_in(ring.networks()) or processes_in(ring.networks()) == [ring.pid]


def test_messages_longer_than_shared_memory_arrive() -> None:
    with _on_loopback() as runner:
        measured(runner.submit(request_of(star_broadcast(5, root=2), "mesh:5", size_bytes=2**22)))


@needs_torch
@pytest.mark.alone
def test_ranks_and_gloo_run_in_the_namespaces_at_the_pace_of_the_links(ring: EmulatedFabric) -> None:
    with LocalRunner(LocalConfig(where="fabric", fabric=ring.name)) as runner:
        takes_as_long_as_the_links_do(runner, "gloo")
        assert {f"net:[{os.stat(f'/proc/{pid}/ns/net').st_ino}]" for pid in runner.pids} <= ring.networks()
        assert len({os.stat(f"/proc/{pid}/ns/net").st_ino for pid in runner.pids}) == 4


@pytest.mark.parametrize(
    ("config", "library", "kind", "message"),
    [
        (LocalConfig(where="fabric", fabric="nothing"), (), FailureKind.UNAVAILABLE, "chorale fabric up"),
        (LocalConfig(link_mbps=100, probe=False), ("gloo",), FailureKind.REJECTED, "gloo"),
        (LocalConfig(where="loopback"), ("gloo",), FailureKind.UNAVAILABLE, "pip install torch"),
    ],
    ids=["no fabric", "gloo over emulated links", "gloo without torch"],
)
def test_what_is_not_there_is_said(
    config: LocalConfig, library: tuple[str, ...], kind: FailureKind, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chorale.runners.local.runner.find_spec", lambda name: None)
    with LocalRunner(config) as runner:
        assert message in failed(runner.submit(request_of(RING, library=library)), kind).message


def test_options_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(InvalidInput, match="only emulated links have a rate"):
        LocalRunner(LocalConfig(link_mbps=100, where="loopback"))


PROGRAMS = {
    "ring:4": (RING, ring_allgather(4, in_place=True), ring_reduce_scatter(4)),
    "mesh:5": (star_broadcast(5, root=2),),
}


@pytest.fixture(scope="module")
def beside_gloo() -> Iterator[LocalRunner]:
    with _on_loopback() as runner:
        yield runner


@needs_torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", pytest.param("int32", marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", ["ring:4", pytest.param("mesh:5", marks=pytest.mark.slow)])
def test_gloo_is_measured_beside_programs(dtype: str, spec: str, beside_gloo: LocalRunner) -> None:
    for program in PROGRAMS[spec]:
        request = RunRequest(parse_topology(spec), {"program": program}, (4096,), dtype=dtype, library=("gloo",))
        assert set(measured(beside_gloo.submit(request)).results) == {"program", library_result("gloo")}


@pytest.mark.slow
@needs_torch
def test_a_rank_that_is_killed_in_gloo_is_to_blame(ring: EmulatedFabric) -> None:
    request = replace(long_request(), repeats=500, library=("gloo",))
    with LocalRunner(LocalConfig(where="fabric", fabric=ring.name)) as runner:
        measured(runner.submit(request_of(RING, library=("gloo",))))
        outcome = submit_and_meanwhile(runner, request, lambda pids: os.kill(pids[2], signal.SIGKILL))
    assert failed(outcome, FailureKind.CRASH).rank == 2
