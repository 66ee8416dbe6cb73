"""Looks up recorded runs by their configuration, and draws random repetitions from them.

A recorded time is the mean of many calls in one launch, and most configurations were launched only once. But launches
of schedules that did not support out-of-place calls timed the library instead. So the library was measured in many
launches, and the launches' deviations from the median show how much launches vary. A drawn repetition represents a
launch: it is a recorded time multiplied by one of these deviations for the same fabric and size. The record does not
show how calls within a launch differ, how times drift, or whether schedules vary more or less than the library.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from gzip import decompress
from importlib.resources import files
from statistics import median
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, Field, NonNegativeInt, ValidationError

from chorale.runners.api.units import format_size
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id


@dataclass(frozen=True, slots=True)
class ScheduleOrigin:
    """The origin of a recorded run's instructions: a generator's schedule, or the vendor's library.

    schedule:     name of the file or of the library
    k, instances: trees per root, and copies on separate channels; None if the record does not contain them
    """

    fabric: str
    collective: str
    generator: str
    schedule: str
    k: int | None = None
    instances: int | None = None

    def __str__(self) -> str:
        return f"{self.generator} {self.schedule} ({self.collective} on {self.fabric})"


@dataclass(frozen=True, slots=True)
class RecordedConfiguration:
    """All settings that a group of recorded runs share. The runs may differ in size.

    buffer_bytes: size of each connection's buffer; None for the runtime's default
    in_place:     whether input and output shared memory
    """

    origin: ScheduleOrigin
    buffer_bytes: int | None
    in_place: bool

    def __str__(self) -> str:
        buffer = "its own buffers" if self.buffer_bytes is None else f"buffers of {format_size(self.buffer_bytes)}"
        return f"{self.origin} with {buffer}, {'in' if self.in_place else 'out of'} place"


_Count: TypeAlias = NonNegativeInt | None
_Time: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)] | None


class _Row(BaseModel):
    """A row in a table of runs. Empty cells are None; `N/A` means that the test program did not check the results."""

    fabric: str
    collective: Literal["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"]
    generator: str
    schedule: str
    trees_per_root_k: _Count
    instances: _Count
    buffer_bytes: _Count
    size_bytes: NonNegativeInt
    time_out_of_place_us: _Time
    wrong_out_of_place: Literal["N/A"] | _Count
    time_in_place_us: _Time
    wrong_in_place: Literal["N/A"] | _Count


COLUMNS = tuple(_Row.model_fields)
_WAY_OUT = f"give a CSV table with the columns {', '.join(COLUMNS)}"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The mean time of one recorded launch at one size. `wrong` counts wrong elements; None if not checked."""

    configuration: RecordedConfiguration
    size_bytes: int
    time_s: float
    wrong: int | None


def read_runs(text: str) -> tuple[RecordedRun, ...]:
    """Return the runs in a table's text, in order: two for each row, one out of place and one in place.

    A row without a time yields no run, and neither does a row of size 0, which test programs print if each rank's shard
    is empty. `N/A` instead of the number of wrong elements means that results were not checked. Raises
    InvalidInput if columns are missing or, with the line number, if cells are not numbers.
    """
    try:
        table = csv.DictReader(io.StringIO(text, newline=""))
        missing = [column for column in COLUMNS if column not in (table.fieldnames or ())]
        if missing:
            raise InvalidInput("columns are missing: {}", ", ".join(missing), _WAY_OUT)
        return tuple(run for row in table for run in _runs(row, table.line_num))
    except csv.Error as error:
        raise InvalidInput("the runs are not CSV: {}", error, _WAY_OUT) from error


def _runs(cells: Mapping[str, str | None], line: int) -> Iterator[RecordedRun]:
    try:
        row = _Row.model_validate({column: (cells[column] or "").strip() or None for column in COLUMNS})
    except ValidationError as error:
        first = error.errors()[0]
        rule = f"line {line}, column {first['loc'][0]} of a table of runs: {first['msg']}"
        raise InvalidInput(rule, first["input"], "correct the table") from None
    origin = ScheduleOrigin(
        row.fabric, row.collective, row.generator, row.schedule, row.trees_per_root_k, row.instances
    )
    places = (
        (False, row.time_out_of_place_us, row.wrong_out_of_place),
        (True, row.time_in_place_us, row.wrong_in_place),
    )
    for in_place, time_us, wrong in places:
        if time_us is not None and row.size_bytes > 0:
            if wrong is None:
                column = "wrong_in_place" if in_place else "wrong_out_of_place"
                rule = f"line {line}, column {column} of a table of runs must be a number next to a time"
                raise InvalidInput(rule, "an empty cell", "correct the table")
            configuration = RecordedConfiguration(origin, row.buffer_bytes, in_place)
            yield RecordedRun(configuration, row.size_bytes, time_us / 1e6, None if wrong == "N/A" else wrong)


MIN_SLOWDOWN = 1.5
"""Ratio of out-of-place time to in-place time from which a run counts as far slower out of place. MIN_WITNESSES runs
must reach this ratio, because a single run may be an outlier."""

SAME_TIME = 0.03
"""If two times differ by at most this fraction, they may come from the same algorithm."""

MIN_SAME_SHARE = 0.5
"""If a schedule takes the same time as more than this fraction of the other schedules, it did not run. The fraction is
computed for each size and buffer size, and the median fraction counts."""

MIN_WITNESSES = 3
"""Minimum number of far slower runs, or of schedules that are compared, to conclude that a schedule did not run."""

NEAR_TOLERANCE, EQUAL_TOLERANCE = 0.05, 0.008
"""If the same algorithm ran in place and out of place up to a size, the times (medians over all buffers) differ by at
most EQUAL_TOLERANCE at this size and by at most NEAR_TOLERANCE at all smaller sizes."""


def find_fallbacks(runs: Iterable[RecordedRun]) -> dict[ScheduleOrigin, int]:
    """Find schedules that the runtime never executed out of place, because it fell back to the library.

    Returns schedule -> largest size in bytes at which the runtime did not execute it in place either; 0 if none.
    runs: runs of schedules, without the library's own runs
    """
    grouped: dict[tuple[RecordedConfiguration, int], list[float]] = defaultdict(list)
    for run in runs:
        grouped[run.configuration, run.size_bytes].append(run.time_s)
    times_s = {key: median(times) for key, times in grouped.items()}
    # Ratios of out-of-place times to in-place times: one for each buffer size.
    ratios: dict[ScheduleOrigin, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (configuration, size_bytes), out_s in times_s.items():
        other = RecordedConfiguration(configuration.origin, configuration.buffer_bytes, in_place=True)
        if not configuration.in_place and (other, size_bytes) in times_s:
            ratios[configuration.origin][size_bytes].append(out_s / times_s[other, size_bytes])
    slower = {origin: sum(r >= MIN_SLOWDOWN for at in sizes.values() for r in at) for origin, sizes in ratios.items()}
    fallen: dict[ScheduleOrigin, int] = {}
    # If a schedule takes the same time out of place as most others, the library must have run in all of these cases,
    # because different schedules would take different times.
    together: dict[object, dict[ScheduleOrigin, float]] = defaultdict(dict)
    for (configuration, size_bytes), time_s in times_s.items():
        origin = configuration.origin
        if not configuration.in_place:
            together[origin.fabric, origin.collective, configuration.buffer_bytes, size_bytes][origin] = time_s
    shares: dict[ScheduleOrigin, list[float]] = defaultdict(list)
    for group in together.values():
        if len(group) >= MIN_WITNESSES:
            for origin, time_s in group.items():
                like = sum(abs(other_s / time_s - 1) <= SAME_TIME for other_s in group.values()) - 1
                shares[origin].append(like / (len(group) - 1))
    alike = {origin for origin, like in shares.items() if median(like) > MIN_SAME_SHARE}
    for origin in {origin for origin, runs in slower.items() if runs >= MIN_WITNESSES} | alike:
        fallen[origin] = 0
        for size_bytes, at_size in sorted(ratios.get(origin, {}).items()):
            apart = abs(median(at_size) - 1)
            if apart > NEAR_TOLERANCE:
                break
            if apart <= EQUAL_TOLERANCE:
                fallen[origin] = size_bytes
    return fallen


MIN_LAUNCHES = 3
"""Minimum number of identical launches for which deviations from the median are meaningful."""

SAME_SETTINGS_TOLERANCE = 0.1
"""If a configuration has several times, those that exceed the fastest by more than this fraction probably had other
settings that were not recorded."""


LIBRARY_GENERATORS = ("RCCL", "NCCL")
"""Generators that are vendor libraries. Their runs are baselines, not schedules."""

MI250_SOURCE = (
    "rccl-tests on two boxes of 16 MI250 GPUs each, and on half of each box; ForestColl and TACCL schedules run in "
    "place by MSCCL in RCCL 2.18; logs published by an author of ForestColl, github.com/liangyuRain/mscclpp-public, "
    "branch rocm, MIT licence"
)


class RecordedTable:
    """A table of recorded measurements: for each configuration and size, the mean times of its launches. Immutable."""

    def __init__(self, runs: Iterable[RecordedRun]) -> None:
        self._runs: dict[RecordedConfiguration, dict[int, list[RecordedRun]]] = {}
        for run in runs:
            self._runs.setdefault(run.configuration, {}).setdefault(run.size_bytes, []).append(run)
        every = (run for sizes in self._runs.values() for same in sizes.values() for run in same)
        schedules = [run for run in every if not is_library(run.configuration)]
        self._largest_fallen = find_fallbacks(schedules)
        # Launches are identical if their fabric, collective, placement, buffer and size are equal.
        same: dict[tuple[str, str, bool, int | None, int], list[float]] = defaultdict(list)
        for run in schedules:
            made, origin = run.configuration, run.configuration.origin
            if not made.in_place and self.fell_back(made, run.size_bytes):
                same[origin.fabric, origin.collective, made.in_place, made.buffer_bytes, run.size_bytes].append(
                    run.time_s
                )
        found: dict[tuple[str, int], list[float]] = defaultdict(list)
        for (fabric, _, _, _, size_bytes), times_s in same.items():
            if len(times_s) >= MIN_LAUNCHES:
                middle = median(times_s)
                found[fabric, size_bytes] += [time_s / middle for time_s in times_s]
        self._deviations = found

    @property
    def fabrics(self) -> tuple[str, ...]:
        """Return the names of all fabrics with measurements, in the table's order."""
        return tuple(dict.fromkeys(configuration.origin.fabric for configuration in self._runs))

    def collectives(self, fabric: str) -> tuple[str, ...]:
        """Return the collectives that were measured on `fabric`, in the table's order."""
        found = (one.origin.collective for one in self._runs if one.origin.fabric == fabric)
        return tuple(dict.fromkeys(found))

    def configurations(
        self, fabric: str, collective: str, *, of_library: bool = False
    ) -> tuple[RecordedConfiguration, ...]:
        """Return the configurations of schedules (or, if `of_library`, of vendor libraries) in the table's order.
        Schedules for which the runtime fell back to the library are included.
        """
        wanted = (fabric, collective, of_library)
        return tuple(one for one in self._runs if (one.origin.fabric, one.origin.collective, is_library(one)) == wanted)

    def libraries(self, fabric: str, collective: str) -> tuple[RecordedConfiguration, ...]:
        """Return the configurations in which a vendor library ran instead of a schedule."""
        return self.configurations(fabric, collective, of_library=True)

    def sizes_bytes(self, configuration: RecordedConfiguration) -> tuple[int, ...]:
        """Return the sizes at which `configuration` was measured, smallest first; empty if there are none."""
        return tuple(sorted(self._runs.get(configuration, {})))

    def times_s(self, configuration: RecordedConfiguration, size_bytes: int) -> tuple[float, ...]:
        """Return the recorded time of each launch, even if the runtime fell back to the library.

        Raises InvalidInput if there is no measurement.
        """
        return tuple(run.time_s for run in self._at(configuration, size_bytes))

    def fell_back(self, configuration: RecordedConfiguration, size_bytes: int) -> bool:
        """Return whether the runtime used the library's algorithm instead of the schedule, see `find_fallbacks`."""
        largest = self._largest_fallen.get(configuration.origin)
        return largest is not None and (not configuration.in_place or size_bytes <= largest)

    def is_correct(self, configuration: RecordedConfiguration, size_bytes: int) -> bool | None:
        """Return whether the results were correct; None if no wrong result is known but not all results were checked.

        Raises InvalidInput if there is no measurement.
        """
        wrong = [run.wrong for run in self._at(configuration, size_bytes)]
        return False if any(wrong) else None if None in wrong else True

    def draw_s(
        self, configuration: RecordedConfiguration, size_bytes: int, repeats: int, seed: int
    ) -> tuple[float, ...]:
        """Return the times of `repeats` launches in seconds. Each is a random recorded time multiplied by a random
        recorded deviation, or unchanged if no deviations were recorded.

        If there are several times, only those close to the fastest one are used, see `SAME_SETTINGS_TOLERANCE`. The
        result depends only on the arguments, not on earlier calls. Raises InvalidInput if there is no measurement.
        """
        times_s = self.times_s(configuration, size_bytes)
        usable = [time_s for time_s in times_s if time_s <= min(times_s) * (1 + SAME_SETTINGS_TOLERANCE)]
        key = content_id({"key": str(configuration), "size_bytes": size_bytes})
        random = np.random.default_rng([seed, int(key[:16], 16)])
        deviations = self._deviations.get((configuration.origin.fabric, size_bytes), (1.0,))
        launches = zip(random.choice(usable, repeats), random.choice(deviations, repeats), strict=True)
        return tuple(float(time_s * deviation) for time_s, deviation in launches)

    def _at(self, configuration: RecordedConfiguration, size_bytes: int) -> list[RecordedRun]:
        runs = self._runs.get(configuration, {}).get(size_bytes)
        if runs is None:
            sizes = self.sizes_bytes(configuration)
            way_out = f"choose from {', '.join(map(format_size, sizes))}" if sizes else "see `configurations`"
            raise InvalidInput(f"{configuration} was not measured at {{}} bytes", size_bytes, way_out)
        return runs


def is_library(configuration: RecordedConfiguration) -> bool:
    """Return whether the runs used a vendor library instead of a schedule."""
    return configuration.origin.generator in LIBRARY_GENERATORS


@cache
def mi250_table() -> RecordedTable:
    """Return the measurements on MI250 GPUs that ship with Chorale, see `MI250_SOURCE`."""
    data = (files("chorale.runners.recorded") / "mi250-runs.csv.gz").read_bytes()
    return RecordedTable(read_runs(decompress(data).decode()))
