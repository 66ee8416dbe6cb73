"""Compare a new table with the current one, publish it, and roll it back if jobs are slower with it.

Tables are compared on the live fabric before they are published, and afterwards by the times that jobs report.

What jobs run depends only on the published file. Before `chorale watch` replaces this file, it records what it is about
to publish, so that it can be killed at any moment and, when restarted, publishes nothing twice.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.job.files import read_file
from chorale.job.table.layout import Table, TableProgram, file_digest, parse_table
from chorale.runners.api.base import Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.link_reports import steady_unix_s
from chorale.runners.measurement.driver import CONFIDENCE, MedianInterval, median_interval, samples_below
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.home import write_file
from chorale.tuner.watch.links import FabricState
from chorale.tuner.watch.replanning import Planner, TablePlan, table_entry

MIN_CALLS = 10
"""Minimum number of calls of a program at a size before its times are judged."""
MIN_SLOWDOWN = 1.05
_DEVIATIONS = 4.0
"""Minimum difference of two means, in standard errors, that counts as a slowdown. If each mean is over at least ten
calls, chance causes such a difference in fewer than one of ten thousand cases."""
_MOST_BYTES = 1 << 24

Key = tuple[str, str, int]
"""Identifies a kind of call by (digest of the program, collective, size in bytes)."""
PRESENT, CANDIDATE = "present", "candidate"
Measure = Callable[[RunRequest], Outcome]
FORMAT, RECORD = "chorale-publications/1", "publications.json"
Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Statistics of one kind of call: number of calls, sum of their times, and sum of the squared times (in s)."""

    calls: int = 0
    seconds: float = 0.0
    squares: float = 0.0

    def since(self, before: CallTimes) -> CallTimes:
        """Return the statistics of the calls since `before`, or of all calls if the job has restarted since then."""
        if before.calls > self.calls:
            return self
        return CallTimes(self.calls - before.calls, self.seconds - before.seconds, self.squares - before.squares)

    def __add__(self, other: CallTimes) -> CallTimes:
        return CallTimes(self.calls + other.calls, self.seconds + other.seconds, self.squares + other.squares)

    @property
    def mean_s(self) -> float:
        return self.seconds / self.calls

    @property
    def variance_of_mean(self) -> float:
        """Return the estimated variance of `mean_s`; infinite for fewer than two calls."""
        if self.calls < 2:
            return math.inf
        return max(self.squares - self.calls * self.mean_s**2, 0.0) / (self.calls - 1) / self.calls


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A size at which jobs take longer with the present program than with the former one, and the times of both."""

    collective: str
    size_bytes: int
    former: CallTimes
    present: CallTimes

    @property
    def ratio(self) -> float:
        return self.present.mean_s / self.former.mean_s


Snapshot = Mapping[Key, CallTimes]


def read_jobs(paths: Sequence[Path]) -> Snapshot:
    """Return the times of each kind of call, summed over the status files of jobs; skip missing and invalid files."""
    times: dict[Key, CallTimes] = {}
    for path in paths:
        try:
            rows: list[dict[str, Any]] = json.loads(read_file(path, _MOST_BYTES))["sizes"]
            for row in rows:
                key = str(row["digest"]), str(row["collective"]), int(row["size_bytes"])
                calls = CallTimes(int(row["calls"]), float(row["seconds"]), float(row["seconds_squared"]))
                times[key] = times.get(key, CallTimes()) + calls
        except (InvalidInput, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            continue  # the job has not begun, or the file is not a status file
    return times


def slowdowns(changed: Snapshot, published: Snapshot, now: Snapshot) -> list[Slowdown]:
    """Return the sizes at which jobs take clearly longer with the published table than with the previous one.

    changed, published, now: what jobs had reported when the fabric changed, when the table was published, and now. For
    the previous table, only calls between `changed` and `published` count: earlier calls ran on a different fabric.
    """
    former = {key: times.since(changed.get(key, CallTimes())) for key, times in published.items()}
    present = {key: times.since(published.get(key, CallTimes())) for key, times in now.items()}
    rows = []
    for (digest, collective, size), times in sorted(present.items()):
        for (other, of_collective, of_size), before in sorted(former.items()):
            is_rival = other != digest and (of_collective, of_size) == (collective, size)
            if is_rival and _is_slower(before, times):
                rows.append(Slowdown(collective, size, before, times))
    return rows


def _is_slower(former: CallTimes, present: CallTimes) -> bool:
    if min(former.calls, present.calls) < MIN_CALLS:
        return False
    error_s = math.sqrt(former.variance_of_mean + present.variance_of_mean)
    difference_s = present.mean_s - former.mean_s
    return present.mean_s > MIN_SLOWDOWN * former.mean_s and difference_s > _DEVIATIONS * error_s


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """The result of comparing two tables for one collective at one size.

    ratio:     the candidate's time divided by the current table's time, as a median with confidence interval
    is_slower: whether the whole 95 % interval is above 1; if only six ratios are measured, all six must be above 1
    """

    collective: str
    size_bytes: int
    ratio: MedianInterval

    @property
    def is_slower(self) -> bool:
        return self.ratio.low > 1


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """The result of comparing two tables: a row per collective and size, and a line for each failed measurement."""

    rows: tuple[CanaryRow, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Canary:
    """Compares a new tuning table with the current one by measuring their programs on one network.

    topology: the fabric without failures
    measure:  function that runs a measurement request on the fabric
    repeats:  maximum number of repetitions of each pair of programs
    seconds:  time limit for comparing two tables, for all sizes and collectives together
    """

    topology: Topology
    measure: Measure
    sizes_bytes: tuple[int, ...]
    repeats: int
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def compare(self, present: Table, candidate: Table, collectives: Sequence[str]) -> CanaryReport:
        """Compare the programs of both tables with alternating repetitions. The report is empty if no programs differ.

        Sizes with the same pair of programs are measured together.
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
        """Return the ratios (candidate / current) at each size, and the reason if there are too few for a decision."""
        ratios: dict[int, list[float]] = {size: [] for size in sizes}
        while undecided := tuple(size for size in sizes if not self._is_decided(ratios[size])):
            outcome = self._measured(programs, undecided, until_s)
            if not isinstance(outcome, Measurement):
                return ratios, outcome
            for index, size in enumerate(undecided):
                times = (outcome.results[name][index].times_s for name in (CANDIDATE, PRESENT))
                ratios[size] += [new / old for new, old in zip(*times, strict=True)]  # paired by repetition
        return ratios, ""

    def _is_decided(self, ratios: Sequence[float]) -> bool:
        """Return whether the decision is certain: further ratios, up to `repeats` in total, could not change it.

        The candidate counts as slower if the confidence interval of the median ratio is above 1. This can no longer
        happen once enough ratios are at most 1; with six repetitions, one such ratio is enough.
        """
        faster = sum(ratio <= 1 for ratio in ratios)
        return faster > samples_below(self.repeats, CONFIDENCE) or len(ratios) >= self.repeats

    def _contests(
        self, tables: tuple[Table, Table], collective: str
    ) -> Iterator[tuple[Mapping[str, Program], tuple[int, ...]]]:
        """Yield each pair of different programs (current, candidate) with the sizes at which the tables use them."""
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

    def _measured(self, programs: Mapping[str, Program], sizes: tuple[int, ...], until_s: float) -> Measurement | str:
        """Return the measurement of one repetition, or a sentence that explains why there is none."""
        left_s = until_s - self.clock()
        if left_s <= 0:
            return f"the {self.seconds:g} s for comparisons are over"
        outcome = self.measure(RunRequest(self.topology, programs, sizes, 1, 1, left_s))
        return f"{outcome.kind}: {outcome.message}" if isinstance(outcome, RunFailure) else outcome


@dataclass(frozen=True, slots=True)
class Publication:
    """A published table. Its `facts` (JSON data) are its network, its gaps to the bound, and why it was published."""

    plan: TablePlan
    time_s: float
    facts: Mapping[str, Any]


@dataclass(slots=True)
class Publisher:
    """Writes the current table to `path`, and a record of this and the previous table to `folder`. Not thread-safe.

    folder: existing folder that no other watcher uses
    present, former: the current and the previous table
    """

    path: Path
    folder: Path
    present: Publication | None = None
    former: Publication | None = None

    def resume(self) -> None:
        """Continue from an earlier watcher's record if the published file still contains the last recorded table."""
        try:
            record: dict[str, Any] = json.loads((self.folder / RECORD).read_bytes())
        except (OSError, ValueError):
            return
        if record.get("format") != FORMAT:
            return
        digest, begun, present = file_digest(self.path), record["next"], record["present"]
        if begun is not None and begun["table"] == digest:
            self.present, self.former = self._stored(begun), self._stored(present)
        elif present is not None and present["table"] == digest:
            self.present, self.former = self._stored(present), self._stored(record["former"])

    def publish(self, publication: Publication, former: Publication | None) -> None:
        """Replace the published file with the table of `publication`. A later roll-back publishes `former` again.

        Raises InvalidInput or Unavailable if the file cannot be replaced; it is then unchanged.
        """
        self._write(publication)
        write_file(self.path, publication.plan.data)
        self.present, self.former = publication, former
        self._write(None)

    def _write(self, begun: Publication | None) -> None:
        """Write the record, with `begun` as the publication in progress, and its tables; delete all other tables."""
        document: dict[str, Any] = {"format": FORMAT}
        tables = {}
        for name, each in {"next": begun, "present": self.present, "former": self.former}.items():
            document[name] = None
            if each is not None:
                document[name] = {"table": each.plan.digest, "time_s": each.time_s, "facts": dict(each.facts)}
                tables[each.plan.digest] = each.plan.data
        for digest, data in tables.items():
            if not (self.folder / digest).exists():
                write_file(self.folder / digest, data)
        write_file(self.folder / RECORD, json.dumps(document, indent=1).encode())
        for path in self.folder.iterdir():
            if len(path.name) == 64 and path.name not in tables:
                path.unlink()

    def _stored(self, entry: Mapping[str, Any] | None) -> Publication | None:
        """Return the publication that `entry` of the record describes; None without an entry or without its table."""
        try:
            data = (self.folder / str(entry["table"])).read_bytes() if entry is not None else None
        except OSError:
            data = None
        if entry is None or data is None:
            return None
        facts = entry["facts"]
        plan = TablePlan(str(facts["spec"]), parse_table(data)[0], data, str(entry["table"]), facts["costs"], 0.0)
        return Publication(plan, float(entry["time_s"]), facts)


@dataclass(slots=True)
class Renewal:
    """Keeps a fabric's tuning table up to date. Only `plan_ahead` may be called while another method is running.

    healthy: the declared fabric, without failures
    canary:  compares tables before they are published; None to skip the comparison
    jobs:    function that returns the times that jobs report
    is_held: while true, nothing is published
    """

    healthy: Topology
    collectives: tuple[str, ...]
    planner: Planner
    canary: Canary | None
    publisher: Publisher
    jobs: Callable[[], Snapshot] = dict
    clock: Callable[[], float] = steady_unix_s
    is_held: bool = False
    _said: tuple[Snapshot, Snapshot] = ({}, {})

    @property
    def present(self) -> TablePlan | None:
        return None if self.publisher.present is None else self.publisher.present.plan

    def note_change(self) -> None:
        """Store the times that jobs report now, for a later `judge`. Call this when the fabric has just changed."""
        self._said = self.jobs(), {}

    def renew(self, state: FabricState, since_s: float, is_outdated: Callable[[], bool]) -> list[Event]:
        """Plan a table for the fabric's state, compare it with the current one, and publish it. Return events.

        If a ChoraleError occurs, it is returned as an event instead of being raised.

        since_s:     time of the first report of a change
        is_outdated: function that returns whether the fabric has changed again in the meantime
        """
        events: list[Event] = []
        spec = state.spec(self.healthy)
        began_s = self.clock()
        try:
            was_ahead = self.planner.has(spec)
            plan = self.planner.plan(spec)
            facts = {"spec": spec, "state": str(state), "ahead": was_ahead, "seconds": plan.seconds}
            events.append(self._event("replan", **facts, costs=plan.costs))
            planned_s = self.clock()
            if not is_outdated():
                plan = self._compared(plan, events)
                stages = {"told": began_s - since_s, "planned": planned_s - began_s}
                self._publish(plan, state, since_s, stages | {"compared": self.clock() - planned_s}, events)
        except ChoraleError as error:
            events.append(self._event("replan", spec=spec, state=str(state), error=str(error)))
        return events

    def plan_ahead(self, state: FabricState) -> list[Event]:
        """Plan a table for a possible future state. Return an event if no plan is possible."""
        try:
            self.planner.plan(state.spec(self.healthy))
        except ChoraleError as error:  # report now, not only when the failure happens
            return [self._event("replan", state=str(state), ahead=True, error=str(error))]
        return []

    def judge(self) -> list[Event]:
        """Publish the previous table again if jobs take clearly longer with the current one. Return events."""
        worse = slowdowns(*self._said, self.jobs()) if self.publisher.former is not None and not self.is_held else []
        if not worse:
            return []
        size = max(worse, key=lambda each: each.ratio)
        return self.roll_back(
            f"jobs take {size.ratio:.2f} times as long for {size.collective} of {size.size_bytes} bytes"
        )

    def roll_back(self, why: str) -> list[Event]:
        """Publish the previous table again. No other roll-back is possible until a new table has been published."""
        former, present = self.publisher.former, self.present
        if former is None or present is None:
            return [self._event("undelivered", why="there is no previous table to go back to")]
        facts = {"why": why, "spec": former.plan.spec, "costs": former.plan.costs, "seconds": 0.0}
        try:
            self.publisher.publish(Publication(former.plan, self.clock(), facts), None)
        except ChoraleError as error:
            return [self._event("undelivered", why=f"the previous table could not be published: {error}")]
        self.planner.adopt(former.plan)
        return [self._event("rollback", table=former.plan.digest, instead_of=present.digest, why=why)]

    def _is_whole(self, plan: TablePlan) -> bool:
        return plan.table.ranks == self.healthy.compute_count

    def _compared(self, plan: TablePlan, events: list[Event]) -> TablePlan:
        """Compare the table of `plan` with the current one, and return `plan` without programs that are slower.

        At the sizes of such programs, the current programs are kept. The tables are compared only if both are for all
        ranks, because otherwise no job could run both.
        """
        present = self.present
        if self.canary is None or present is None or present.digest == plan.digest:
            return plan
        if not (self._is_whole(present) and self._is_whole(plan)):
            return plan
        report = self.canary.compare(present.table, plan.table, self.collectives)
        rows = [
            {
                "collective": row.collective,
                "size_bytes": row.size_bytes,
                "ratio": row.ratio.median,
                "interval": [row.ratio.low, row.ratio.high],
                "slower": row.is_slower,
            }
            for row in report.rows
        ]
        events.append(self._event("canary", rows=rows, failures=list(report.failures)))
        sizes = [(row.collective, row.size_bytes) for row in report.rows if row.is_slower]
        return self.planner.with_present(plan, present.table, sizes) if sizes else plan

    def _publish(
        self, plan: TablePlan, state: FabricState, since_s: float, stages: Mapping[str, float], events: list[Event]
    ) -> None:
        why = str(state)
        if self.present is not None and self.present.digest == plan.digest:
            self._said = self._said[0], self.jobs()
            return
        if self.is_held:
            events.append(self._event("held", table=plan.digest, why=why, spec=plan.spec))
            return
        now_s = self.clock()
        facts = {"why": why, "spec": plan.spec, "seconds": now_s - since_s, "ranks": state.ranks(self.healthy)}
        self.publisher.publish(Publication(plan, now_s, {**facts, "costs": plan.costs}), self.publisher.present)
        self._said = self._said[0], self.jobs()
        events.append(self._event("publish", table=plan.digest, **facts, stages=dict(stages)))

    def _event(self, name: str, **facts: Any) -> Event:
        return {"time_s": self.clock(), "event": name, **facts}
