"""Which recorded runs of a schedule were none: the runtime took an algorithm of its own, without a word.

A runtime executes a schedule only for calls that it fits, by placement and by size, and answers all others with its
own algorithm. The record gives both away. A file serves a placement or not, whatever the size, and what it does not
serve takes as long as under any other file that does not serve it either. Of sizes that double, those below some
bound cannot be cut into the schedule's chunks: there both placements take the same time, as the library's do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from chorale.runners.recorded.reader import RecordedConfiguration, RecordedRun, ScheduleOrigin

MIN_SLOWDOWN = 1.5
"""Out of place over in place; a single run may be an accident, so that it takes as many as witnesses below."""

SAME_TIME = 0.03
"""How far most times of one and the same algorithm are apart at most."""

MIN_SAME_SHARE = 0.5
"""The part of the other schedules that must take the same time, in the median over sizes and buffers."""

MIN_WITNESSES = 3
"""Runs that must be far slower, or schedules whose times must agree, before that says that no schedule ran."""

NEAR_TOLERANCE, EQUAL_TOLERANCE = 0.05, 0.008
"""How far both placements are apart, median over all buffers, where one algorithm served both: that long, from the
smallest size on, up to a size where the two are equal."""


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """What the runtime did not execute: out of place the schedules in `in_place_only`, in place what is too small.

    largest_small_bytes: the largest size that fell back in place, 0 if none did
    """

    in_place_only: frozenset[ScheduleOrigin]
    largest_small_bytes: Mapping[ScheduleOrigin, int]

    def applies(self, configuration: RecordedConfiguration, size_bytes: int) -> bool:
        """Return whether the runtime took its own algorithm."""
        if configuration.origin not in self.in_place_only:
            return False
        return not configuration.in_place or size_bytes <= self.largest_small_bytes[configuration.origin]


def find_fallbacks(runs: Iterable[RecordedRun]) -> Fallbacks:
    """Return what fell back among `runs` of schedules (the library's own runs must not be among them)."""
    times = _times(runs)
    ratios = _ratios(times)
    in_place_only = frozenset(_far_slower(ratios) | _alike(times))
    return Fallbacks(in_place_only, {origin: _largest_small(ratios.get(origin, {})) for origin in in_place_only})


MedianTimes = Mapping[tuple[RecordedConfiguration, int], float]


def _times(runs: Iterable[RecordedRun]) -> MedianTimes:
    grouped: dict[tuple[RecordedConfiguration, int], list[float]] = defaultdict(list)
    for run in runs:
        grouped[run.configuration, run.size_bytes].append(run.time_s)
    return {key: median(times) for key, times in grouped.items()}


def _ratios(times: MedianTimes) -> dict[ScheduleOrigin, dict[int, list[float]]]:
    """Return out of place over in place by size, one for each buffer."""
    grouped: dict[ScheduleOrigin, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (configuration, size_bytes), out_s in times.items():
        other = RecordedConfiguration(configuration.origin, configuration.buffer_bytes, in_place=True)
        if not configuration.in_place and (other, size_bytes) in times:
            grouped[configuration.origin][size_bytes].append(out_s / times[other, size_bytes])
    return grouped


def _far_slower(ratios: Mapping[ScheduleOrigin, Mapping[int, list[float]]]) -> set[ScheduleOrigin]:
    """Return the schedules with enough runs that take far longer out of place."""
    far = {origin: sum(r >= MIN_SLOWDOWN for at in sizes.values() for r in at) for origin, sizes in ratios.items()}
    return {origin for origin, runs in far.items() if runs >= MIN_WITNESSES}


def _alike(times: MedianTimes) -> set[ScheduleOrigin]:
    """Return the schedules that take as long out of place as the others do: schedules differ, the library does not."""
    together: dict[object, dict[ScheduleOrigin, float]] = defaultdict(dict)
    for (configuration, size_bytes), time_s in times.items():
        origin = configuration.origin
        if not configuration.in_place:
            together[origin.fabric, origin.collective, configuration.buffer_bytes, size_bytes][origin] = time_s
    shares: dict[ScheduleOrigin, list[float]] = defaultdict(list)
    for group in together.values():
        if len(group) >= MIN_WITNESSES:
            for origin, time_s in group.items():
                like = sum(abs(other_s / time_s - 1) <= SAME_TIME for other_s in group.values()) - 1
                shares[origin].append(like / (len(group) - 1))
    return {origin for origin, like in shares.items() if median(like) > MIN_SAME_SHARE}


def _largest_small(ratios: Mapping[int, list[float]]) -> int:
    largest = 0
    for size_bytes in sorted(ratios):
        apart = abs(median(ratios[size_bytes]) - 1)
        if apart > NEAR_TOLERANCE:
            break
        if apart <= EQUAL_TOLERANCE:
            largest = size_bytes
    return largest
