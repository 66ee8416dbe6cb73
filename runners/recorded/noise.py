"""How much launches of the same thing differ: what the record itself says, and how repetitions are drawn from it.

A recorded time is the mean of many calls in one launch; single calls are not on record, and most configurations were
launched once. But every launch whose schedule did not serve calls out of place timed the library there instead: one
and the same operation, measured in as many launches as there are schedules. Their distances from their median are
real deviations from launch to launch, and repetitions are recorded times multiplied by deviations of the same fabric
and size. So a repetition stands for a launch: calls within a launch differ otherwise, launches that follow one another
drift together, and schedules may be more or less steady than the library; nothing of that is in the record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from chorale.runners.recorded.reader import RecordedRun
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

        Of several times only those made with the settings of the fastest count, see `SAME_SETTINGS`. `key` and `seed`
        fix the draw, so that it does not depend on what else is drawn. Without deviations on record there are none.
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
