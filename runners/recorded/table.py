"""Recorded runs by their configuration, and repetitions drawn from them.

A recorded time is the mean of many calls in one launch, and most configurations were launched once. But every launch
whose schedule did not serve calls out of place timed the library instead: one operation, measured in as many launches
as there are schedules. Their distances from their median are real deviations from launch to launch. A drawn repetition
is a recorded time multiplied by such a deviation of the same fabric and size. So it stands for a launch: differences
between calls, drift, and schedules that are more or less steady than the library are not in the record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from gzip import decompress
from importlib.resources import files
from statistics import median

import numpy as np

from chorale.runners.api.units import format_size
from chorale.runners.recorded.fallbacks import find_fallbacks
from chorale.runners.recorded.reader import RecordedConfiguration, RecordedRun, read_runs
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id

MIN_LAUNCHES = 3
"""Launches of one thing whose deviations from their median mean something."""

SAME_SETTINGS_TOLERANCE = 0.1
"""Several times of one configuration that are further above the fastest were made with other settings, unrecorded."""


@dataclass(frozen=True, slots=True)
class LaunchNoise:
    """Times of launches over their median, by fabric and size; empty where nothing was launched often enough."""

    deviations: Mapping[tuple[str, int], tuple[float, ...]]

    def draw_s(
        self, key: str, fabric: str, size_bytes: int, times_s: Sequence[float], repeats: int, seed: int
    ) -> tuple[float, ...]:
        """Return the seconds of `repeats` launches: each one of `times_s`, with a deviation.

        Of several times only those made with the settings of the fastest count, see `SAME_SETTINGS_TOLERANCE`.
        `key` and `seed` fix the draw, so that it does not depend on what else is drawn. Without deviations on record
        there are none.
        """
        usable = [time_s for time_s in times_s if time_s <= min(times_s) * (1 + SAME_SETTINGS_TOLERANCE)]
        random = np.random.default_rng([seed, int(content_id({"key": key, "size_bytes": size_bytes})[:16], 16)])
        deviations = self.deviations.get((fabric, size_bytes), (1.0,))
        launches = zip(random.choice(usable, repeats), random.choice(deviations, repeats), strict=True)
        return tuple(float(time_s * deviation) for time_s, deviation in launches)


def launch_noise(runs: Iterable[RecordedRun]) -> LaunchNoise:
    """Return the deviations among `runs`, which must all be of the library's own algorithm.

    Runs are of the same thing if fabric, collective, placement, buffer and size are.
    """
    same: dict[tuple[str, str, bool, int | None, int], list[float]] = defaultdict(list)
    for run in runs:
        made = run.configuration
        same[made.origin.fabric, made.origin.collective, made.in_place, made.buffer_bytes, run.size_bytes].append(
            run.time_s
        )
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (fabric, _, _, _, size_bytes), times in same.items():
        if len(times) >= MIN_LAUNCHES:
            middle = median(times)
            found[fabric, size_bytes] += [time_s / middle for time_s in times]
    return LaunchNoise({key: tuple(deviations) for key, deviations in found.items()})


LIBRARY_GENERATORS = ("RCCL", "NCCL")
"""Generators that are a vendor's library: what they did is the baseline, not a schedule."""

MI250_SOURCE = (
    "rccl-tests on two boxes of 16 MI250 GPUs each, and on half of each box; ForestColl and TACCL schedules run in "
    "place by MSCCL in RCCL 2.18; logs published by an author of ForestColl, github.com/liangyuRain/mscclpp-public, "
    "branch rocm, MIT licence"
)


class RecordedTable:
    """What was measured once: for each configuration the mean times of its launches at each size. Immutable."""

    def __init__(self, runs: Iterable[RecordedRun]) -> None:
        self._runs: dict[RecordedConfiguration, dict[int, list[RecordedRun]]] = {}
        for run in runs:
            self._runs.setdefault(run.configuration, {}).setdefault(run.size_bytes, []).append(run)
        every = (run for sizes in self._runs.values() for same in sizes.values() for run in same)
        schedules = [run for run in every if not is_library(run.configuration)]
        self._fallbacks = find_fallbacks(schedules)
        self._noise = launch_noise(run for run in schedules if not run.configuration.in_place and self._fell_back(run))

    @classmethod
    def read(cls, text: str) -> RecordedTable:
        """Return the table in `text`; InvalidInput if it is not one, see `read_runs`."""
        return cls(read_runs(text))

    @property
    def fabrics(self) -> tuple[str, ...]:
        """Everything that was measured on, in the order of the table."""
        return tuple(dict.fromkeys(configuration.origin.fabric for configuration in self._runs))

    def collectives(self, fabric: str) -> tuple[str, ...]:
        """Return what was measured on `fabric`, in the order of the table."""
        found = (one.origin.collective for one in self._runs if one.origin.fabric == fabric)
        return tuple(dict.fromkeys(found))

    def configurations(self, fabric: str, collective: str) -> tuple[RecordedConfiguration, ...]:
        """Return all configurations of schedules, in the order of the table; those that fell back are among them."""
        return tuple(
            one
            for one in self._runs
            if (one.origin.fabric, one.origin.collective) == (fabric, collective) and not is_library(one)
        )

    def libraries(self, fabric: str, collective: str) -> tuple[RecordedConfiguration, ...]:
        """Return the configurations of vendors' libraries."""
        return tuple(
            one
            for one in self._runs
            if (one.origin.fabric, one.origin.collective) == (fabric, collective) and is_library(one)
        )

    def sizes_bytes(self, configuration: RecordedConfiguration) -> tuple[int, ...]:
        """Return at which sizes `configuration` was measured, smallest first; none if it was not."""
        return tuple(sorted(self._runs.get(configuration, {})))

    def times_s(self, configuration: RecordedConfiguration, size_bytes: int) -> tuple[float, ...]:
        """Return the recorded time of each launch, as it was recorded, fallen back or not.

        Raises InvalidInput for what was not measured.
        """
        return tuple(run.time_s for run in self._at(configuration, size_bytes))

    def fell_back(self, configuration: RecordedConfiguration, size_bytes: int) -> bool:
        """Return whether the runtime took its own algorithm instead of the schedule, see `find_fallbacks`."""
        return self._fallbacks.applies(configuration, size_bytes)

    def is_correct(self, configuration: RecordedConfiguration, size_bytes: int) -> bool:
        """Return whether no element of any launch is known to be wrong, see `is_checked`.

        InvalidInput for what was not measured.
        """
        return not any(run.wrong for run in self._at(configuration, size_bytes))

    def is_checked(self, configuration: RecordedConfiguration, size_bytes: int) -> bool:
        """Return whether the results of all launches were checked; InvalidInput for what was not measured."""
        return all(run.wrong is not None for run in self._at(configuration, size_bytes))

    def draw_s(
        self, configuration: RecordedConfiguration, size_bytes: int, repeats: int, seed: int
    ) -> tuple[float, ...]:
        """Return the seconds of `repeats` launches, drawn from the record, see `chorale.runners.recorded.table`.

        Raises InvalidInput for what was not measured.
        """
        times_s = self.times_s(configuration, size_bytes)
        return self._noise.draw_s(str(configuration), configuration.origin.fabric, size_bytes, times_s, repeats, seed)

    def _at(self, configuration: RecordedConfiguration, size_bytes: int) -> list[RecordedRun]:
        runs = self._runs.get(configuration, {}).get(size_bytes)
        if runs is None:
            sizes = self.sizes_bytes(configuration)
            way_out = "see `configurations`"
            if sizes:
                way_out = f"choose from {', '.join(format_size(size) for size in sizes)}"
            raise InvalidInput(f"{configuration} must have been measured at the size", size_bytes, way_out)
        return runs

    def _fell_back(self, run: RecordedRun) -> bool:
        return self.fell_back(run.configuration, run.size_bytes)


def is_library(configuration: RecordedConfiguration) -> bool:
    """Return whether a vendor's library chose what to do."""
    return configuration.origin.generator in LIBRARY_GENERATORS


@cache
def mi250_table() -> RecordedTable:
    """Return the measurements that are shipped, see `MI250_SOURCE`."""
    data = (files("chorale.runners.recorded") / "mi250-runs.csv.gz").read_bytes()
    return RecordedTable.read(decompress(data).decode())
