"""The nccl runner on the stand-in library: the kit of every runner, settings, and what the library does not take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from chorale.runners.api.base import RunRequest
from chorale.runners.engine.build import has_compiler
from chorale.runners.nccl.ranks import RankOptions
from chorale.runners.nccl.runner import NcclRunner
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from tests.conformance import runner_kit
from tests.conformance.runner_kit import RING, Lent, request_of
from tests.live.checks import params
from tests.stand_ins.nccl import stand_in_library

pytestmark = pytest.mark.skipif(not has_compiler(), reason="THE NCCL RUNNER IS NOT TESTED: there is no C++ compiler")


def _runner(iterations: int = 1, **variables: str) -> NcclRunner:
    options = RankOptions(library=str(stand_in_library()), memory="host", iterations=iterations, variables=variables)
    return NcclRunner(options)


@pytest.fixture(scope="module")
def shared() -> Iterator[NcclRunner]:
    with _runner() as running:
        yield running


IN_EACH_RUN = tuple(check for check in runner_kit.CHECKS if check is not runner_kit.closing_twice_is_harmless)


@pytest.mark.parametrize("check", params(runner_kit.CHECKS, pytest.mark.alone, IN_EACH_RUN))
def test_conformance(check: Callable[[runner_kit.Factory], None], shared: NcclRunner) -> None:
    check(_runner if check is runner_kit.closing_twice_is_harmless else lambda: Lent(shared))


def call(
    collective: CollectiveName = CollectiveName.ALLREDUCE, in_place: bool = True, **settings: object
) -> LibraryCall:
    return LibraryCall(Collective(collective), 4, in_place, LibrarySettings(**settings))  # type: ignore[arg-type]


def asked(*calls: LibraryCall, **others: object) -> RunRequest:
    programs = {str(number): each for number, each in enumerate(calls)}
    return replace(request_of(RING), **{"programs": programs, "repeats": 1, "library": ("nccl",), **others})  # type: ignore[arg-type]
