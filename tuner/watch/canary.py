"""The comparison of a new table with the present one on the live fabric, before jobs get it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from chorale.job.table.model import Table, TableProgram
from chorale.runners.api.base import Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.measurement.precision import MedianInterval, ratio_interval
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift
from chorale.synth.topology.topology import Topology
from chorale.tuner.watch.replanning import table_entry

PRESENT, CANDIDATE = "present", "candidate"

Measure = Callable[[RunRequest], Outcome]


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """One collective at one size. ratio: of the candidate's time to the present table's, with an interval of 95 %"""

    collective: str
    size_bytes: int
    ratio: MedianInterval

    @property
    def is_slower(self) -> bool:
        """Whether the candidate is slower beyond noise."""
        return self.ratio.low > 1


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What was compared, and what could not be: a line for each."""

    rows: tuple[CanaryRow, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def slower(self) -> tuple[CanaryRow, ...]:
        """Where the present table's programs stay."""
        return tuple(row for row in self.rows if row.is_slower)


@dataclass(frozen=True, slots=True)
class Canary:
    """Compares tables on one network. Several threads may call it: one measures at a time.

    topology: as the fabric was built; measure: runs a request on it
    seconds:  limit of all comparisons of two tables together
    """

    topology: Topology
    measure: Measure
    sizes_bytes: tuple[int, ...]
    repeats: int
    seconds: float
    clock: Callable[[], float] = time.monotonic
    _turn: Lock = field(default_factory=Lock)

    def compare(self, present: Table, candidate: Table, collectives: Sequence[str]) -> CanaryReport:
        """Return times of both tables' programs, repetition by repetition; nothing where both run the same.

        Sizes at which the same two programs compete are measured together.
        """
        until_s = self.clock() + self.seconds
        rows: list[CanaryRow] = []
        failures: list[str] = []
        for collective in collectives:
            for programs, sizes in self._contests(present, candidate, collective):
                outcome = self._measured(programs, sizes, until_s - self.clock())
                if isinstance(outcome, Measurement):
                    ratios = _ratios(outcome, len(sizes))
                    rows += [CanaryRow(collective, size, ratio) for size, ratio in zip(sizes, ratios, strict=True)]
                else:
                    failures.append(f"{collective} at {', '.join(map(str, sizes))} bytes: {outcome}")
        return CanaryReport(tuple(rows), tuple(failures))

    def warm_up(self, table: Table, collectives: Sequence[str]) -> None:
        """Run a program of `table` once, so that the processes are there when a comparison is urgent."""
        for collective in collectives:
            entry = table_entry(table, collective, self.sizes_bytes[0])
            if entry is not None:
                self._measured({PRESENT: lift(entry.text)}, self.sizes_bytes[:1], self.seconds)

    def _contests(
        self, present: Table, candidate: Table, collective: str
    ) -> Iterator[tuple[Mapping[str, Program], tuple[int, ...]]]:
        """Yield two programs and the sizes at which they compete."""
        sizes: dict[tuple[str, ...], list[int]] = {}
        entries: dict[tuple[str, ...], list[TableProgram]] = {}
        for size in self.sizes_bytes:
            pair = [table_entry(table, collective, size) for table in (present, candidate)]
            both = [entry for entry in pair if entry is not None]
            digests = tuple(entry.digest for entry in both)
            if len(set(digests)) == 2:
                entries[digests] = both
                sizes.setdefault(digests, []).append(size)
        for digests, of_pair in sizes.items():
            texts = zip((PRESENT, CANDIDATE), entries[digests], strict=True)
            yield {name: lift(entry.text) for name, entry in texts}, tuple(of_pair)

    def _measured(self, programs: Mapping[str, Program], sizes: tuple[int, ...], left_s: float) -> Measurement | str:
        """Return the measurement, or in words why there is none."""
        if left_s <= 0 or not self._turn.acquire(timeout=left_s):
            return f"the {self.seconds:g} s for comparisons are over"
        try:
            outcome = self.measure(RunRequest(self.topology, programs, sizes, self.repeats, 1, left_s))
        finally:
            self._turn.release()
        return f"{outcome.kind}: {outcome.message}" if isinstance(outcome, RunFailure) else outcome


def _ratios(measurement: Measurement, sizes: int) -> list[MedianInterval]:
    results = measurement.results
    return [
        ratio_interval(list(results[CANDIDATE][index].times_s), list(results[PRESENT][index].times_s))
        for index in range(sizes)
    ]
