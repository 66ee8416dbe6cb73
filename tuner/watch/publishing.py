"""From the state of a fabric to the table that jobs run: compared, published, taken back.

The file that jobs read is written first and alone decides what they run. The watch also records what it published in
its own file, so that a watch that was killed at any moment continues without publishing anything twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.job.table.layout import file_digest, parse_table
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.read_write import write_file
from chorale.tuner.watch.canary import Canary, Snapshot, slowdowns
from chorale.tuner.watch.links import FabricState
from chorale.tuner.watch.replanning import Planner, TablePlan

FORMAT = "chorale-publications/1"


@dataclass(frozen=True, slots=True)
class Publication:
    """A table that is published. facts: why, of which network, and how good it is; plain data"""

    digest: str
    data: bytes
    time_s: float
    facts: Mapping[str, Any]

    def entry(self) -> dict[str, Any]:
        """Return what the record has of it."""
        return {"table": self.digest, "time_s": self.time_s, "facts": dict(self.facts)}


class PublicationFiles:
    """The record of publications in a folder: which is present, which was before; and tables."""

    def __init__(self, folder: Path) -> None:
        """folder: of this watch alone; it must exist"""
        self._folder = folder
        self._record = folder / "publications.json"

    def write(self, document: Mapping[str, Any], tables: Mapping[str, bytes]) -> None:
        """Replace the record; keep the tables of these digests and no others."""
        for digest, data in tables.items():
            if not (self._folder / digest).exists():
                write_file(self._folder / digest, data)
        write_file(self._record, json.dumps({"format": FORMAT, **document}, indent=1).encode())
        for path in self._folder.iterdir():
            if len(path.name) == 64 and path.name not in tables:
                path.unlink()

    def read(self) -> dict[str, Any]:
        """Return the record; empty if there is none in this format."""
        try:
            document: dict[str, Any] = json.loads(self._record.read_bytes())
        except (OSError, ValueError):
            return {}
        return document if document.get("format") == FORMAT else {}

    def publication(self, entry: Mapping[str, Any] | None) -> Publication | None:
        """Return the publication of an entry of the record, None if its table no longer exists."""
        if entry is None:
            return None
        try:
            data = (self._folder / str(entry["table"])).read_bytes()
        except OSError:
            return None
        return Publication(str(entry["table"]), data, float(entry["time_s"]), dict(entry["facts"]))


@dataclass(slots=True)
class Publisher:
    """Writes the file of the present table, and the record of it. One thread."""

    path: Path
    files: PublicationFiles
    present: Publication | None = None
    former: Publication | None = None

    def resume(self) -> None:
        """Continue after a previous watch, if the file still holds what it published last."""
        record, digest = self.files.read(), file_digest(self.path)
        begun, present = record.get("next"), record.get("present")
        if begun is not None and begun["table"] == digest:
            self.present, self.former = self.files.publication(begun), self.files.publication(present)
        elif present is not None and present["table"] == digest:
            self.present, self.former = self.files.publication(present), self.files.publication(record["former"])

    def publish(self, publication: Publication) -> None:
        """Replace the file. Raises InvalidInput or Unavailable if that fails; nothing is published then."""
        self._write(publication)
        write_file(self.path, publication.data)
        self.former, self.present = self.present, publication
        self._write(None)

    def _write(self, begun: Publication | None) -> None:
        """Write the record; `begun` is about to replace the file."""
        named = {"next": begun, "present": self.present, "former": self.former}
        document = {name: None if each is None else each.entry() for name, each in named.items()}
        self.files.write(document, {each.digest: each.data for each in named.values() if each})


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
    present: TablePlan | None = None
    is_held: bool = False
    _former: TablePlan | None = None
    _said: tuple[Snapshot, Snapshot] = ({}, {})

    def resume(self) -> None:
        """Go on with what a former watch has published, if the file still holds it."""
        self.publisher.resume()
        self.present, self._former = _plan_of(self.publisher.present), _plan_of(self.publisher.former)

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
        worse = slowdowns(*self._said, self.jobs()) if self._former is not None and not self.is_held else []
        if not worse:
            return []
        size = max(worse, key=lambda each: each.ratio)
        return self.roll_back(
            f"jobs take {size.ratio:.2f} times as long for {size.collective} of {size.size_bytes} bytes"
        )

    def roll_back(self, why: str) -> list[Event]:
        """Publish the former table again; it has none itself then."""
        former, present = self._former, self.present
        if former is None or present is None:
            return [self._event("undelivered", why="there is no former table to go back to")]
        facts = {"why": why, "spec": former.spec, "costs": former.costs, "seconds": 0.0}
        try:
            self.publisher.publish(Publication(former.digest, former.data, self.clock(), facts))
        except ChoraleError as error:
            return [self._event("undelivered", why=f"the former table could not be published: {error}")]
        self._former, self.present = None, former
        self.planner.adopt(former)
        return [self._event("rollback", table=former.digest, instead_of=present.digest, why=why)]

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
        self.publisher.publish(Publication(plan.digest, plan.data, now_s, {**facts, "costs": plan.costs}))
        self._former, self.present = self.present, plan
        self._said = self._said[0], self.jobs()
        events.append(self._event("publish", table=plan.digest, **facts, stages=dict(stages)))

    def _event(self, name: str, **facts: Any) -> Event:
        return {"time_s": self.clock(), "event": name, **facts}


def _plan_of(publication: Publication | None) -> TablePlan | None:
    if publication is None:
        return None
    table, digest = parse_table(publication.data)
    spec, costs = str(publication.facts["spec"]), publication.facts["costs"]
    return TablePlan(spec, table, publication.data, digest, costs, 0.0)
