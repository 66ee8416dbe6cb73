"""The comparison of a new table with the present one on the live fabric, before jobs get it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from chorale.job.table.model import Table, TableProgram
from chorale.runners.api.base import Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.measurement.precision import CONFIDENCE, MedianInterval, median_interval, samples_below
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift
from chorale.synth.topology.topology import Topology
from chorale.tuner.watch.replanning import table_entry

PRESENT, CANDIDATE = "present", "candidate"

Measure = Callable[[RunRequest], Outcome]


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """One collective at one size. ratio: of the candidate's time to the present table's, with an interval

    is_slower: by an interval of 95 %; one that is not slower is known for that after fewer ratios, mostly one
    """

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
            for programs, sizes in self._contests((present, candidate), collective):
                ratios, failure = self._ratios(programs, sizes, until_s)
                undecided = [size for size in sizes if not self._is_decided(ratios[size])]
                rows += [
                    CanaryRow(collective, size, median_interval(ratios[size]))
                    for size in sizes
                    if size not in undecided
                ]
                if undecided:
                    failures.append(f"{collective} at {', '.join(map(str, undecided))} bytes: {failure}")
        return CanaryReport(tuple(rows), tuple(failures))

    def _ratios(
        self, programs: Mapping[str, Program], sizes: tuple[int, ...], until_s: float
    ) -> tuple[Mapping[int, list[float]], str]:
        """Return the ratios of times at each size, as many as decide it; and why there are not more, if so.

        The first repetition has no warm-up. The present programs run in jobs and ran here before, a candidate opens its
        connections: where it is not slower nevertheless, that is that. Where it is, the repetition does not count.
        """
        cold = self._measured(programs, sizes, until_s, warmup=0)
        if not isinstance(cold, Measurement):
            return {size: [] for size in sizes}, cold
        ratios = {size: [each for each in new if each <= 1] for size, new in _new_ratios(cold, sizes)}
        while undecided := tuple(size for size in sizes if not self._is_decided(ratios[size])):
            outcome = self._measured(programs, undecided, until_s)
            if not isinstance(outcome, Measurement):
                return ratios, outcome
            for size, new in _new_ratios(outcome, undecided):
                ratios[size] += new
        return ratios, ""

    def _is_decided(self, ratios: Sequence[float]) -> bool:
        """Return whether `repeats` ratios would say of the candidate what these say: slower beyond noise, or not.

        It is slower if no more of all ratios than lie below the interval of their median are 1 or less: with six, none.
        As soon as more are, the others are no matter.
        """
        faster = sum(ratio <= 1 for ratio in ratios)
        return faster > samples_below(self.repeats, CONFIDENCE) or len(ratios) >= self.repeats

    def warm_up(self, table: Table, collectives: Sequence[str]) -> None:
        """Run a program of `table` once, so that the processes are there when a comparison is urgent."""
        for collective in collectives:
            entry = table_entry(table, collective, self.sizes_bytes[0])
            if entry is not None:
                until_s = self.clock() + self.seconds
                self._measured({PRESENT: lift(entry.text)}, self.sizes_bytes[:1], until_s)

    def _contests(
        self, tables: tuple[Table, Table], collective: str
    ) -> Iterator[tuple[Mapping[str, Program], tuple[int, ...]]]:
        """Yield two programs and the sizes at which they compete."""
        sizes: dict[tuple[str, ...], list[int]] = {}
        entries: dict[tuple[str, ...], list[TableProgram]] = {}
        for size in self.sizes_bytes:
            pair = [table_entry(table, collective, size) for table in tables]
            both = [entry for entry in pair if entry is not None]
            digests = tuple(entry.digest for entry in both)
            if len(set(digests)) == 2:
                entries[digests] = both
                sizes.setdefault(digests, []).append(size)
        for digests, of_pair in sizes.items():
            texts = zip((PRESENT, CANDIDATE), entries[digests], strict=True)
            yield {name: lift(entry.text) for name, entry in texts}, tuple(of_pair)

    def _measured(
        self, programs: Mapping[str, Program], sizes: tuple[int, ...], until_s: float, warmup: int = 1
    ) -> Measurement | str:
        """Return the measurement, or in words why there is none."""
        is_over = f"the {self.seconds:g} s for comparisons are over"
        waits_s = until_s - self.clock()
        if waits_s <= 0 or not self._turn.acquire(timeout=waits_s):
            return is_over
        try:
            left_s = until_s - self.clock()
            if left_s <= 0:
                return is_over
            outcome = self.measure(RunRequest(self.topology, programs, sizes, 1, warmup, left_s))
        finally:
            self._turn.release()
        return f"{outcome.kind}: {outcome.message}" if isinstance(outcome, RunFailure) else outcome


def _new_ratios(measurement: Measurement, sizes: Sequence[int]) -> Iterator[tuple[int, list[float]]]:
    """Yield each size with the ratios of the candidate's times to those beside them."""
    for index, size in enumerate(sizes):
        times = (measurement.results[name][index].times_s for name in (CANDIDATE, PRESENT))
        yield size, [new / old for new, old in zip(*times, strict=True)]
