"""Comparisons end as soon as more repetitions could not change what they say."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chorale.job.table.model import Table
from chorale.runners.api.base import Measurement, RunRequest, SizeMeasurement
from chorale.synth.errors import InvalidInput
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.watch.canary import CANDIDATE, PRESENT, Canary, Publication, Publisher
from chorale.tuner.watch.replanning import Planner, PlanRequest

_SIZE = 1 << 16


class _TakenTurn:
    """A turn that another comparison gives up after four seconds."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock

    def acquire(self, timeout: float) -> bool:
        self._clock[0] += min(timeout, 4.0)
        return timeout > 4

    def release(self) -> None:
        pass


def _measure(ratios: Iterator[float]) -> Callable[[RunRequest], Measurement]:
    def measure(request: RunRequest) -> Measurement:
        times = {PRESENT: 1.0, CANDIDATE: next(ratios)}
        size = request.sizes_bytes[0]
        return Measurement("fake", {name: (SizeMeasurement(size, size, (times[name],), True),) for name in times})

    return measure


def _tables() -> list[Table]:
    planner = Planner(PlanRequest(("allreduce",), (_SIZE,), ("bfb",), NetworkModel.of(0, 0, 0, "1/10")))
    return [planner.plan(spec).table for spec in ("complete:4", "without(complete:4;link=0-1)")]


@pytest.mark.parametrize(
    ("ratios", "measured", "is_slower"),
    [
        ([0.9], 1, False),  # though its connections are new
        ([1.5, 1.2, 1.1, 0.99], 3, False),
        ([9.0, 1.2, 1.1, 1.3, 1.2, 1.2, 1.001], 6, True),
        ([9.0, 1.2, 1.1, 1.3, 1.2, 1.2, 1.0], 6, False),
    ],
)
def test_six_ratios_above_one_are_slower_and_the_first_that_is_not_ends_it(
    ratios: list[float], measured: int, is_slower: bool
) -> None:
    canary = Canary(parse_topology("complete:4"), _measure(iter(ratios)), (_SIZE,), 6, 10.0, lambda: 0.0)
    (row,) = canary.compare(*_tables(), ("allreduce",)).rows
    assert (row.ratio.samples, row.is_slower) == (measured, is_slower)


def test_waiting_for_another_comparison_is_part_of_the_limit() -> None:
    clock, limits_s = [0.0], list[float]()

    def measure(request: RunRequest) -> Measurement:
        limits_s.append(request.timeout_s)
        return _measure(iter([0.9]))(request)

    canary = Canary(parse_topology("complete:4"), measure, (_SIZE,), 6, 10.0, lambda: clock[0])
    turn: Any = _TakenTurn(clock)
    object.__setattr__(canary, "_turn", turn)
    assert canary.compare(*_tables(), ("allreduce",)).failures == ()
    assert limits_s == [6.0]


def _publications() -> tuple[Publication, Publication]:
    """Return publications of a whole and of a cut network."""
    planner = Planner(PlanRequest(("allreduce",), (1 << 20,), ("bfb",), NetworkModel.of(0, 0, 0, "1/10")))
    plans = [planner.plan(spec) for spec in ("complete:4", "without(complete:4;link=0>1)")]
    first, second = (
        Publication(replace(plan, seconds=0.0), 1000.0, {"why": "a test", "spec": plan.spec, "costs": plan.costs})
        for plan in plans
    )
    return first, second


def test_a_publisher_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    """Killed before the file was replaced, and after it: the file decides what is published."""
    (tmp_path / "record").mkdir()
    first, second = _publications()
    Publisher(tmp_path / "table", tmp_path / "record").publish(first, None)
    for is_replaced in (False, True):
        dying = Publisher(tmp_path / "table", tmp_path / "record")
        dying.resume()
        assert dying.present == first
        dying._write(second)
        if is_replaced:
            (tmp_path / "table").write_bytes(second.plan.data)
        again = Publisher(tmp_path / "table", tmp_path / "record")
        again.resume()
        assert (again.present, again.former) == ((second, first) if is_replaced else (first, None))


def test_without_its_folder_nothing_is_published(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Publisher(tmp_path / "none" / "table", tmp_path).publish(_publications()[0], None)
