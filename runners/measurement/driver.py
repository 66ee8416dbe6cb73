"""Decides how many repetitions to measure, with any runner: a fixed number, or until a result is precise."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from chorale.runners.api.base import (
    FailureKind,
    Measurement,
    Outcome,
    RunFailure,
    Runner,
    RunRequest,
    library_result,
)
from chorale.runners.api.config import RunnerConfig
from chorale.runners.api.units import format_size, format_us, full_bandwidth
from chorale.runners.measurement.precision import MIN_SAMPLES, Goal, launch_medians, median_interval, ratio_interval
from chorale.synth.bounds.lower_bound import in_network_bound, lower_bound
from chorale.synth.collective import Collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.programs.memory import collective_of_ranks
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.topology import Topology

MOST_EFFICIENCY = 1.01
"""Highest credible efficiency of a measurement; above 1 because clocks of different processes are compared."""


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """Lower bound for the time of any schedule of a collective, in seconds per byte of the vector.

    Derived from a proven bound for the links, including switches that add and multicast if the network has them;
    it does not include latencies and headers.
    """

    seconds_per_byte: float

    def least_s(self, size_bytes: int) -> float:
        return self.seconds_per_byte * size_bytes

    def efficiency(self, time_s: float, size_bytes: int) -> float:
        """Return the limit's time divided by `time_s`: 1 means as fast as the links allow."""
        return self.least_s(size_bytes) / time_s


def link_limit(topology: Topology, collective: Collective, environment: Mapping[str, Any]) -> LinkLimit | None:
    """Return the limit that the links impose on `collective`; `environment` contains the links' rate.

    Returns None if the rate is unknown, and for custom collectives, which have no bound.
    """
    network = None if collective.custom else model_of_run(topology, environment.get("link_mbps"))
    return None if network is None else _limit(topology, collective, network)


@lru_cache(maxsize=64)
def _limit(topology: Topology, collective: Collective, network: NetworkModel) -> LinkLimit:
    bound = in_network_bound(topology, collective) or lower_bound(topology, collective)
    return LinkLimit(float(bound.value / network.unit_bytes_per_s(topology)))


def model_of_run(topology: Topology, link_mbps: Any) -> NetworkModel | None:
    """Return the network model in which the `full_bandwidth` is `link_mbps` (10^6 bit/s); None if that is no number."""
    if not isinstance(link_mbps, (int, float, Fraction, str)):
        return None
    rate_gbps = Fraction(str(link_mbps)) / 1000
    if topology.bandwidth_unit == "link":
        return NetworkModel.of(link_gbps=rate_gbps)
    full = NetworkModel().unit_bytes_per_s(topology) * full_bandwidth(topology)
    return replace(NetworkModel(), efficiency=rate_gbps * 10**9 / 8 / full)


def believable(request: RunRequest, outcome: Outcome) -> Outcome:
    """Return `outcome`, or a failure if a median is faster than the links allow."""
    if isinstance(outcome, RunFailure) or not request.programs:
        return outcome
    collective = collective_of_ranks(next(iter(request.programs.values())))
    limit = link_limit(request.topology, collective, outcome.environment)
    if limit is None:
        return outcome
    for name, size in ((name, size) for name, sizes in outcome.results.items() for size in sizes):
        if limit.efficiency(size.median_s, size.size_bytes) > MOST_EFFICIENCY:
            least, rate = format_us(limit.least_s(size.size_bytes)), outcome.environment["link_mbps"]
            message = (
                f"{name} took {format_us(size.median_s)} for {format_size(size.size_bytes)}, less than the {least} "
                f"that links of {rate} Mbit/s allow: they are faster than stated, or the clock is wrong"
            )
            return RunFailure(FailureKind.IMPOSSIBLE, message, environment=outcome.environment)
    return outcome


def measure_on(config: RunnerConfig, home: Path, request: RunRequest) -> Measurement:
    """Measure `request` on a new runner and close it. Raises CheckFailed if nothing was measured."""
    with closing(config.create(home)) as running:
        outcome = running.submit(request)
    if isinstance(outcome, RunFailure):
        rule = f"the {config.name} runner must measure ({outcome.kind})"
        raise CheckFailed(rule, outcome.message, "see `chorale doctor`")
    return outcome


Clock = Callable[[], float]
"""A monotonic clock in seconds."""

Turn = Callable[[], AbstractContextManager[None]]
"""Returns a block during which nobody else measures."""


class StopReason(StrEnum):
    """Why no more repetitions were measured at a size."""

    FIXED = "fixed"  # their number was given
    PRECISE = "precise"  # the interval has the required precision
    REPEATS = "repeats"  # the repetition budget is used up
    SECONDS = "seconds"  # the time budget is used up


@dataclass(frozen=True, slots=True)
class Precision:
    """Half-width of an interval relative to its middle: the goal and the value reached.

    reached: None if there are too few samples for an interval
    """

    goal: float
    reached: float | None

    @property
    def is_met(self) -> bool:
        return self.reached is not None and self.reached <= self.goal


@dataclass(frozen=True, slots=True)
class AdaptiveMeasurement:
    """A measurement, and why it ended at each of its sizes.

    per_launch: repetitions of each launch if a launch counts as one sample; 1 if every repetition counts
    precisions: one per size; empty without a goal
    """

    measurement: Measurement
    stop_reasons: tuple[StopReason, ...]
    per_launch: int = 1
    precisions: tuple[Precision, ...] = ()


def measure_once(runner: Runner, request: RunRequest) -> AdaptiveMeasurement | RunFailure:
    """Measure exactly `request.repeats` repetitions; return the measurement or the failure."""
    outcome = believable(request, runner.submit(request))
    if isinstance(outcome, RunFailure):
        return outcome
    return AdaptiveMeasurement(outcome, (StopReason.FIXED,) * len(request.sizes_bytes))


def measure_until(
    runner: Runner, request: RunRequest, goal: Goal, clock_s: Clock, turn: Turn = nullcontext
) -> AdaptiveMeasurement | RunFailure:
    """Measure the programs of `request` together until every ratio to the reference is precise or a budget is used up.

    turn: entered for each request, so that others can measure in between; waiting for it does not use the budget

    The first request has `request.repeats` repetitions, or more if an interval needs them. Later requests contain only
    the sizes that are not precise yet. Their number of repetitions is estimated from the intervals and at most
    doubles the total. Every request warms up, shuffles the programs and has its own time limit `request.timeout_s`. If
    one request fails, the result is its failure, because a program that fails now and then has no valid time. With
    `Goal.launches`, every request has the same small number of repetitions and counts as one sample, its median. Times
    stay in the order of measurement. Raises InvalidInput for a reference that is not measured.
    """
    names = (*request.programs, *map(library_result, request.library))
    if goal.reference is not None and goal.reference not in names:
        raise InvalidInput("the reference '{}' is not measured", goal.reference, f"use {', '.join(names)}")
    spent_s = 0.0
    if goal.launches > 1:
        repeats = max(1, min(request.repeats, goal.max_repeats // goal.launches))
    else:
        repeats = min(max(request.repeats, MIN_SAMPLES), goal.max_repeats)
    current = replace(request, repeats=repeats)
    collected = _Collected(request.sizes_bytes, goal, current.repeats if goal.launches > 1 else 1)
    while True:
        with turn():
            start_s = clock_s()
            outcome = believable(current, runner.submit(current))
            seconds = clock_s() - start_s
        if isinstance(outcome, RunFailure):
            return outcome
        collected.add(outcome, current.repeats)
        spent_s += seconds
        repeats = collected.next_repeats((goal.max_seconds - spent_s) / max(seconds / current.repeats, 1e-9))
        if repeats == 0:
            return collected.driven()
        current = replace(current, sizes_bytes=collected.open_sizes, repeats=repeats, seed=current.seed + 1)


class _Collected:
    """Times measured so far. A size is open while it needs more repetitions; all open sizes have equally many."""

    def __init__(self, sizes_bytes: tuple[int, ...], goal: Goal, per_launch: int = 1) -> None:
        self._sizes_bytes = sizes_bytes
        self._per_launch = per_launch
        self._goal = goal
        self._outcomes: list[Measurement] = []
        self._repeats = 0
        self._stops: dict[int, StopReason] = {}  # by position of the size; sizes without an entry are open
        self._times_s: dict[str, list[tuple[float, ...]]] = {}

    @property
    def open_sizes(self) -> tuple[int, ...]:
        return tuple(self._sizes_bytes[number] for number in self._open)

    @property
    def _open(self) -> list[int]:
        return [number for number in range(len(self._sizes_bytes)) if number not in self._stops]

    def add(self, outcome: Measurement, repeats: int) -> None:
        """Add the times of `outcome`, which contains the open sizes, and close the sizes that are now precise."""
        for name, measured in outcome.results.items():
            times_s = self._times_s.setdefault(name, [()] * len(self._sizes_bytes))
            for number, one in zip(self._open, measured, strict=True):
                times_s[number] += one.times_s
        self._outcomes.append(outcome)
        self._repeats += repeats
        self._stops |= {number: StopReason.PRECISE for number in self._open if self._width(number) <= 1}

    def next_repeats(self, affordable: float) -> int:
        """Return the number of repetitions for the next request, at most `affordable`; 0 if all sizes are finished.

        The width of an interval shrinks with the square root of the number of samples. The result is what the size
        closest to its goal still needs, but at least half and at most all of the number of repetitions so far.
        """
        if not self._open:
            return 0
        width = min(self._width(number) for number in self._open)
        needed = math.ceil(self._repeats * min(max(width**2 - 1, 0.5), 1))
        repeats = min(needed, self._goal.max_repeats - self._repeats)
        if self._goal.launches > 1:
            repeats = self._per_launch if self._goal.max_repeats - self._repeats >= self._per_launch else 0
        if repeats <= 0:
            self._stops |= dict.fromkeys(self._open, StopReason.REPEATS)
        elif affordable < self._per_launch:
            self._stops |= dict.fromkeys(self._open, StopReason.SECONDS)
        else:
            return repeats if self._goal.launches > 1 else min(repeats, math.floor(affordable))
        return 0

    def driven(self) -> AdaptiveMeasurement:
        first, last = self._outcomes[0], self._outcomes[-1]
        results = {
            name: tuple(replace(one, times_s=times) for one, times in zip(first.results[name], times_s, strict=True))
            for name, times_s in self._times_s.items()
        }
        environment = {**last.environment, "requests": len(self._outcomes)}
        stops = tuple(self._stops[number] for number in range(len(self._sizes_bytes)))
        measurement = Measurement(first.runner, results, environment, first.traces)
        widths = (self._width(number) for number in range(len(self._sizes_bytes)))
        goal = self._goal.precision
        precisions = tuple(Precision(goal, goal * width if math.isfinite(width) else None) for width in widths)
        return AdaptiveMeasurement(measurement, stops, self._per_launch, precisions)

    def _width(self, number: int) -> float:
        """Return the half-width of the widest interval at a size, relative to the required precision; infinite if there
        are too few samples.
        """
        goal, reference = self._goal, self._goal.reference
        compared = [name for name in self._times_s if name != reference] or list(self._times_s)
        widest = 0.0
        for name in compared:
            own = self._times_s[name][number]
            if reference is None:
                interval = median_interval(launch_medians(own, self._per_launch), goal.confidence)
            else:
                interval = ratio_interval(own, self._times_s[reference][number], goal.confidence, self._per_launch)
            if interval.confidence < goal.confidence:
                return math.inf
            widest = max(widest, interval.half_width / goal.precision)
        return widest
