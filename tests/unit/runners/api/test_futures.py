"""Futures are completed once, and waiting for all of them drives whoever does the work."""

from __future__ import annotations

import pytest

from chorale.runners.api.base import RunRequest
from chorale.runners.api.workers import Completion, Future, completions
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.spec import parse_topology
from tests.fakes import FakeRunner, InlineWorkers


def test_a_future_is_completed_once() -> None:
    future: Future[int] = Future()
    assert not future.done
    with pytest.raises(RuntimeError, match="before"):
        _ = future.completion
    future.complete(Completion(1))
    assert future.done
    assert future.completion.value == 1
    with pytest.raises(RuntimeError, match="once"):
        future.complete(Completion(2))


@pytest.mark.parametrize("newest_first", [False, True])
def test_all_come_back_in_the_order_of_their_futures(newest_first: bool) -> None:
    workers = InlineWorkers(FakeRunner(), newest_first)
    source = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "no such method")
    build = workers.builder.submit(BuildRequest(source, LoweringOptions("oneccl-xml")))
    measurement = workers.measurer.submit(RunRequest(source.topology, {}, (64,)))
    failure, measured = (completion.value for completion in completions(workers, [build, measurement]))
    assert isinstance(failure, BuildFailure)
    assert failure.kind == BuildFailureKind.INVALID
    assert measured.results == {}
    assert completions(workers, []) == []
