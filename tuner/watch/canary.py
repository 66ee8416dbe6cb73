"""A new table compared with the present one, on the live fabric before jobs get it and then by their reports.

It is published, and taken back where jobs are slower with it.

The file that jobs read is written first and alone decides what they run. The watch also records what it published in
its own file, so that a watch that was killed at any moment continues without publishing anything twice.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from chorale.job.table.layout import file_digest, parse_table
from chorale.job.table.model import Table, TableProgram
from chorale.runners.api.base import Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.measurement.precision import CONFIDENCE, MedianInterval, median_interval, samples_below
from chorale.synth.errors import ChoraleError
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.read_write import write_file
from chorale.tuner.watch.links import FabricState
from chorale.tuner.watch.replanning import Planner, TablePlan, table_entry

MIN_CALLS = 10
"""Calls of a program at a size without which it is not judged."""
MIN_SLOWDOWN = 1.05
_DEVIATIONS = 4.0
"""Standard errors between two means: less than one in ten thousand by chance, for means of ten calls and more."""
_MOST_BYTES = 1 << 24

Key = tuple[str, str, int]
"""Digest of a program, collective, size in bytes."""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Calls of one kind: how many, the sum of their seconds, and the sum of the squares of these."""

    calls: int = 0
    seconds: float = 0.0
    squares: float = 0.0

    def since(self, before: CallTimes) -> CallTimes:
        """Return the calls after `before`; all of them if the job has restarted."""
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
        """Return the variance of the mean; infinite for fewer than two calls."""
        if self.calls < 2:
            return math.inf
        return max(self.squares - self.calls * self.mean_s**2, 0.0) / (self.calls - 1) / self.calls


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A size at which jobs take longer with the new program than with the former one. ratio: of the means"""

    collective: str
    size_bytes: int
    former: CallTimes
    present: CallTimes

    @property
    def ratio(self) -> float:
        return self.present.mean_s / self.former.mean_s


Snapshot = Mapping[Key, CallTimes]


def read_jobs(paths: Sequence[Path]) -> Snapshot:
    """Return the times in the status files of jobs, added up; a file that is not there or no status counts for none."""
    times: dict[Key, CallTimes] = {}
    for path in paths:
        for key, calls in _of_file(path):
            times[key] = times.get(key, CallTimes()) + calls
    return times


def slowdowns(changed: Snapshot, published: Snapshot, now: Snapshot) -> list[Slowdown]:
    """Return where jobs run a program since the publication that is clearly slower than the one before it.

    changed, published, now: reports of jobs when the fabric changed, when the table was published, and now. The current
    programs are compared with those between the first two, since the fabric was different before.
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


def _of_file(path: Path) -> Iterator[tuple[Key, CallTimes]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return
        rows: list[dict[str, Any]] = json.loads(path.read_text())["sizes"]
        for row in rows:
            key = str(row["digest"]), str(row["collective"]), int(row["size_bytes"])
            yield key, CallTimes(int(row["calls"]), float(row["seconds"]), float(row["seconds_squared"]))
    except (OSError, ValueError, KeyError, TypeError):  # a job that has not begun, or whose file is no status
        return


PRESENT, CANDIDATE = "present", "candidate"

Measure = Callable[[RunRequest], Outcome]


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """One collective at one size. ratio: time of the candidate relative to the current table's, with an interval

    is_slower: decided with an interval of 95 %; a candidate that is not slower is recognized after fewer ratios, mostly
    one
    """

    collective: str
    size_bytes: int
    ratio: MedianInterval

    @property
    def is_slower(self) -> bool:
        """Return whether the candidate is slower beyond noise."""
        return self.ratio.low > 1


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """What was compared, and what could not be compared: a line for each."""

    rows: tuple[CanaryRow, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def slower(self) -> tuple[CanaryRow, ...]:
        """Return the rows for which the current table's programs stay."""
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
        """Compare both tables' programs, repetition by repetition; empty if both run the same programs.

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
        """Return the ratios of times at each size, as many as a decision needs, and the reason if there are fewer.

        The first repetition has no warm-up. The current programs have already run, while a candidate opens its
        connections: if it is not slower nevertheless, that decides. If it is slower, the repetition does not count.
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
        """Return whether `repeats` ratios would lead to the same decision as these: slower beyond noise, or not.

        The candidate is slower if at most as many of all ratios are 1 or less as lie below the interval of their
        median: with
        six, none. As soon as more are, the remaining ratios do not matter.
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
        """Return the measurement, or a sentence that explains why there is none."""
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
    """Yield each size with the ratios of the candidate's times to the paired ones."""
    for index, size in enumerate(sizes):
        times = (measurement.results[name][index].times_s for name in (CANDIDATE, PRESENT))
        yield size, [new / old for new, old in zip(*times, strict=True)]


FORMAT, RECORD = "chorale-publications/1", "publications.json"


@dataclass(frozen=True, slots=True)
class Publication:
    """A table that is published. facts: why, of which network, and how good it is; plain data"""

    plan: TablePlan
    time_s: float
    facts: Mapping[str, Any]


@dataclass(slots=True)
class Publisher:
    """Writes the file `path` of the present table; keeps a record of it and of the one before in `folder`. One thread.

    folder: of this watch alone; it must exist
    """

    path: Path
    folder: Path
    present: Publication | None = None
    former: Publication | None = None

    def resume(self) -> None:
        """Continue after a previous watch, if the file still holds what it published last."""
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
        """Replace the file; `former` is then what to go back to.

        Raises InvalidInput or Unavailable if that fails; nothing is published then.
        """
        self._write(publication)
        write_file(self.path, publication.plan.data)
        self.present, self.former = publication, former
        self._write(None)

    def _write(self, begun: Publication | None) -> None:
        """Write the record and the tables in it, and drop other tables; `begun` is about to replace the file."""
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
        """Return the publication of an entry of the record, None if its table no longer exists."""
        try:
            data = (self.folder / str(entry["table"])).read_bytes() if entry is not None else None
        except OSError:
            data = None
        if entry is None or data is None:
            return None
        facts = entry["facts"]
        plan = TablePlan(str(facts["spec"]), parse_table(data)[0], data, str(entry["table"]), facts["costs"], 0.0)
        return Publication(plan, float(entry["time_s"]), facts)


Event = dict[str, Any]


@dataclass(slots=True)
class Renewal:
    """The present table of a fabric, and how it is replaced. One thread at a time, but for `plan_ahead`.

    healthy: the fabric as declared; canary: None compares nothing; jobs: what they say of their calls
    is_held: nothing is published as long as it is true
    """

    healthy: Topology
    collectives: tuple[str, ...]
    planner: Planner
    canary: Canary | None
    publisher: Publisher
    jobs: Callable[[], Snapshot] = dict
    clock: Callable[[], float] = time.time
    is_held: bool = False
    _said: tuple[Snapshot, Snapshot] = ({}, {})

    @property
    def present(self) -> TablePlan | None:
        """The plan of the table that is published."""
        return None if self.publisher.present is None else self.publisher.present.plan

    def note_change(self) -> None:
        """Remember what jobs say now, as the fabric has just changed."""
        self._said = self.jobs(), {}

    def renew(self, state: FabricState, since_s: float, is_outdated: Callable[[], bool]) -> list[Event]:
        """Plan for a state, compare and publish. Never raises a ChoraleError.

        since_s: when the first sign of the state was seen; is_outdated: whether the fabric is another by now
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

    def warm_up(self) -> None:
        """Have the processes for comparisons started, so that they are there when one is urgent."""
        if self.canary is not None and self.present is not None and self._is_whole(self.present):
            self.canary.warm_up(self.present.table, self.collectives)

    def plan_ahead(self, state: FabricState) -> list[Event]:
        """Plan for a state that may come; report if there is no plan for it."""
        try:
            self.planner.plan(state.spec(self.healthy))
        except ChoraleError as error:  # known now instead of then
            return [self._event("replan", state=str(state), ahead=True, error=str(error))]
        return []

    def judge(self) -> list[Event]:
        """Go back to the previous table if jobs take longer with the current one."""
        worse = slowdowns(*self._said, self.jobs()) if self.publisher.former is not None and not self.is_held else []
        if not worse:
            return []
        size = max(worse, key=lambda each: each.ratio)
        return self.roll_back(
            f"jobs take {size.ratio:.2f} times as long for {size.collective} of {size.size_bytes} bytes"
        )

    def roll_back(self, why: str) -> list[Event]:
        """Publish the former table again; it has none itself then."""
        former, present = self.publisher.former, self.present
        if former is None or present is None:
            return [self._event("undelivered", why="there is no former table to go back to")]
        facts = {"why": why, "spec": former.plan.spec, "costs": former.plan.costs, "seconds": 0.0}
        try:
            self.publisher.publish(Publication(former.plan, self.clock(), facts), None)
        except ChoraleError as error:
            return [self._event("undelivered", why=f"the former table could not be published: {error}")]
        self.planner.adopt(former.plan)
        return [self._event("rollback", table=former.plan.digest, instead_of=present.digest, why=why)]

    def _is_whole(self, plan: TablePlan) -> bool:
        return plan.table.ranks == self.healthy.compute_count

    def _compared(self, plan: TablePlan, events: list[Event]) -> TablePlan:
        """Return `plan`, with the present table's programs at the sizes at which it is slower.

        No job can run both if one is for fewer ranks than the other: these are not compared.
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
        sizes = [(row.collective, row.size_bytes) for row in report.slower]
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
