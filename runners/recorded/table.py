"""Recorded runs by what was set for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from gzip import decompress
from importlib.resources import files

from chorale.runners.recorded.configuration import RecordedConfiguration
from chorale.runners.recorded.fall_back import find_fallbacks
from chorale.runners.recorded.noise import launch_noise
from chorale.runners.recorded.reader import RecordedRun, read_runs
from chorale.runners.sizes import format_size
from chorale.synth.errors import InvalidInput

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
        self._fall_backs = find_fallbacks(schedules)
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
        """Return whether the runtime took its own algorithm instead of the schedule, see `find_fall_backs`."""
        return self._fall_backs.applies(configuration, size_bytes)

    def is_correct(self, configuration: RecordedConfiguration, size_bytes: int) -> bool:
        """Return whether all elements of all launches were right; InvalidInput for what was not measured."""
        return not any(run.wrong for run in self._at(configuration, size_bytes))

    def draw_s(
        self, configuration: RecordedConfiguration, size_bytes: int, repeats: int, seed: int
    ) -> tuple[float, ...]:
        """Return the seconds of `repeats` launches, drawn from the record, see `chorale.runners.recorded.noise`.

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
