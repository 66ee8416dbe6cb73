"""Waiting for all futures drives whoever does the work."""

import pytest

from chorale.runners.api.base import RunRequest
from chorale.runners.api.workers import completions
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.topology.spec import parse_topology
from tests.fakes import FakeRunner, InlineWorkers


@pytest.mark.parametrize("newest_first", [False, True])
def test_all_come_back_in_the_order_of_their_futures(newest_first: bool) -> None:
    workers = InlineWorkers(FakeRunner(), newest_first)
    source = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "no such method")
    build = workers.build(BuildRequest(source, LoweringOptions("oneccl-xml")))
    measurement = workers.measure(RunRequest(source.topology, {}, (64,)))
    failure, measured = (completion.value for completion in completions(workers, [build, measurement]))
    assert isinstance(failure, BuildFailure)
    assert failure.kind == BuildFailureKind.INVALID
    assert measured.results == {}
    assert completions(workers, []) == []
