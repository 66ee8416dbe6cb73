"""The nccl runner on the stand-in library: the kit of every runner, settings, and what the library does not take."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.api.base import FailureKind, RunRequest
from chorale.runners.engine.build import has_compiler
from chorale.runners.nccl.config import NcclConfig
from chorale.runners.nccl.runner import NcclRunner
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from tests.conformance import runner_kit
from tests.conformance.example_programs import ring_allgather
from tests.conformance.runner_kit import RING, Lent, failed, measured, request_of
from tests.live.support import params
from tests.stand_ins.nccl import stand_in_library

pytestmark = pytest.mark.skipif(not has_compiler(), reason="THE NCCL RUNNER IS NOT TESTED: apt-get install g++")

SITE = Path(__file__).parents[2] / "stand_ins" / "nccl" / "site"


def _runner(**options: Any) -> NcclRunner:
    library = str(stand_in_library())
    return NcclRunner(NcclConfig(**{"library": library, "memory": "host", "iterations": 1, **options}))


@pytest.fixture(scope="module")
def shared() -> Iterator[NcclRunner]:
    with _runner() as running:
        yield running


IN_EACH_RUN = tuple(check for check in runner_kit.CHECKS if check is not runner_kit.closing_twice_is_harmless)


@pytest.mark.parametrize("check", params(runner_kit.CHECKS, IN_EACH_RUN))
def test_conformance(check: Callable[[runner_kit.Factory], None], shared: NcclRunner) -> None:
    check(_runner if check is runner_kit.closing_twice_is_harmless else lambda: Lent(shared))


def call(
    collective: CollectiveName = CollectiveName.ALLREDUCE, in_place: bool = True, **settings: object
) -> LibraryCall:
    return LibraryCall(Collective(collective), 4, in_place, LibrarySettings(**settings))  # type: ignore[arg-type]


def asked(*calls: LibraryCall, **others: object) -> RunRequest:
    programs = {str(number): each for number, each in enumerate(calls)}
    changes = {"programs": programs, "repeats": 1, "library": ("nccl",), "timeout_s": 120.0, **others}
    return replace(request_of(RING), **changes)  # type: ignore[arg-type]


def test_settings_of_all_kinds_are_applied_and_what_the_library_does_not_take_is_no_result(shared: NcclRunner) -> None:
    for name in (CollectiveName.ALLGATHER, CollectiveName.ALLREDUCE):
        measured(shared.submit(asked(call(name, name is CollectiveName.ALLREDUCE, algorithm="ring", protocol="LL128"))))
    calls = (
        call(algorithm="tree", protocol="Simple", ctas=3, buffer_bytes=1 << 20, threads=128),
        call(algorithm="ring", protocol="Simple", ctas=2, chunk_bytes=1 << 12),
        call(algorithm="symmetric", cta_policy="zero"),
    )
    assert set(measured(shared.submit(asked(*calls))).results) == {"0", "1", "2", "library:nccl"}
    failed(shared.submit(asked(call(algorithm="nvls", protocol="Simple"))), FailureKind.NOT_APPLIED)


def test_the_log_of_an_older_version_shows_it_too() -> None:
    with _runner(variables={"STAND_IN_VERSION": "2.22.3", "STAND_IN_SWITCHES": "1"}) as runner:
        measured(runner.submit(asked(call(algorithm="nvls", protocol="Simple"))))
        failed(runner.submit(asked(call(algorithm="ring", protocol="LL", chunk_bytes=4096))), FailureKind.NOT_APPLIED)


@pytest.mark.parametrize(
    ("variables", "settings", "message"),
    [
        ({"STAND_IN_IGNORES": "NCCL_NTHREADS"}, {"threads": 128}, "did not read NCCL_NTHREADS=128"),
        ({"STAND_IN_INTERFACE": "5"}, {"chunk_bytes": 4096}, "did not ask for the size of chunks"),
        ({"NCCL_MAX_CTAS": "65"}, {}, "Config maxCTAs=65 is ignored"),
    ],
    ids=["threads", "chunks", "ctas"],
)
def test_what_is_ignored_without_a_word_or_at_the_start_is_not_applied(
    variables: dict[str, str], settings: dict[str, object], message: str
) -> None:
    with _runner(variables=variables) as runner:
        outcome = runner.submit(asked(call(algorithm="ring", protocol="Simple", **settings)))
    assert message in failed(outcome, FailureKind.NOT_APPLIED).message


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_memory_of_a_gpu_by_its_runtime(cuda_graph: bool) -> None:
    gpu = {"memory": "gpu", "runtime": str(stand_in_library()), "gpus_per_node": 1}
    with _runner(**gpu, iterations=2, cuda_graph=cuda_graph) as runner:
        measured(runner.submit(asked(call(algorithm="ring", protocol="Simple"))))
        gather = {"gather": ring_allgather(4, in_place=False)}  # messages and a copy
        measured(runner.submit(asked(programs=gather, library=())))


def test_a_call_has_its_own_configuration() -> None:
    with _runner(per_call=True) as runner:
        applied = call(algorithm="tree", protocol="LL", ctas=2), call(algorithm="ring", protocol="LL128")
        measured(runner.submit(asked(*applied)))
        for name in CollectiveName.REDUCE, CollectiveName.BROADCAST, CollectiveName.REDUCE_SCATTER:
            measured(runner.submit(asked(call(name, algorithm="ring", protocol="Simple"), library=())))
        for wrong in call(algorithm="ring", protocol="LL", chunk_bytes=4096), call(algorithm="nvls", protocol="Simple"):
            failed(runner.submit(asked(wrong)), FailureKind.NOT_APPLIED)


@pytest.mark.timeout(400)  # eight processes that import torch
def test_pytorch_makes_the_calls() -> None:
    pytest.importorskip("torch", reason="CALLS OF NCCL BY PYTORCH ARE NOT TESTED: pip install torch")
    folders = os.pathsep.join([str(SITE), str(SITE.parents[3])])
    variables = {"STAND_IN_LIBRARY": str(stand_in_library()), "PYTHONPATH": folders}
    with _runner(torch="stand_in", variables=variables) as runner:
        settings = call(algorithm="ring", protocol="LL128"), call(algorithm="tree", protocol="Simple")
        assert measured(runner.submit(replace(asked(*settings), library=("nccl",)))).environment["torch"] == "stand_in"
        for name in CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE:
            one = call(name, name is CollectiveName.REDUCE, algorithm="ring", protocol="LL")
            measured(runner.submit(asked(one)))
        measured(runner.submit(asked(programs={"ring": RING}, sizes_bytes=(2**20,))))
        failed(runner.submit(asked(call(algorithm="symmetric"))), FailureKind.NOT_APPLIED)
