"""From a state of the fabric to the table that jobs run: planned, compared, published, taken back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from chorale.job.table.layout import parse_table
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.watch.canary import Canary, CanaryReport
from chorale.tuner.watch.departures import Departure, departures
from chorale.tuner.watch.fabric_state import FabricState
from chorale.tuner.watch.job_times import Key, Snapshot, slowdowns
from chorale.tuner.watch.publishing import Publisher
from chorale.tuner.watch.receivers import Publication
from chorale.tuner.watch.replanning import Planner, TablePlan, TunedProgram

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RenewalParts:
    """What tables are made and published with.

    healthy: the fabric as declared; canary: None compares nothing; jobs: what they say of their calls
    """

    healthy: Topology
    collectives: tuple[str, ...]
    planner: Planner
    canary: Canary | None
    publisher: Publisher
    jobs: Callable[[], Snapshot] = dict
    clock: Callable[[], float] = time.time


@dataclass(slots=True)
class Renewal:
    """The present table of a fabric, and how it is replaced. One thread at a time, but for `plan_ahead`.

    is_held: nothing is published as long as it is true
    """

    parts: RenewalParts
    present: TablePlan | None = None
    is_held: bool = False
    _former: TablePlan | None = None
    _said: tuple[Snapshot, Snapshot] = ({}, {})
    _predicted_s: dict[Key, float | None] = field(default_factory=dict)

    def resume(self) -> None:
        """Go on with what a former watch has published, if the file still holds it."""
        publisher = self.parts.publisher
        publisher.resume()
        self.present, self._former = _plan_of(publisher.present), _plan_of(publisher.former)
        for plan in (self._former, self.present):
            if plan is not None and any(entry.measured for entry in plan.table.entries):  # tuned by a campaign
                self.parts.planner.adopt(plan)

    def note_change(self) -> None:
        """Remember what jobs say now, as the fabric has just changed."""
        self._said = self.parts.jobs(), {}

    def renew(self, state: FabricState, since_s: float, is_outdated: Callable[[], bool]) -> list[Event]:
        """Plan for a state, compare and publish. Never raises a ChoraleError.

        since_s: when the first sign of the state was seen; is_outdated: whether the fabric is another by now
        """
        events: list[Event] = []
        spec = state.spec(self.parts.healthy)
        began_s = self.parts.clock()
        try:
            was_ahead = self.parts.planner.has(spec)
            plan = self.parts.planner.plan(spec)
            facts = {"spec": spec, "state": str(state), "ahead": was_ahead, "seconds": plan.seconds}
            events.append(self._event("replan", **facts, costs=plan.costs))
            planned_s = self.parts.clock()
            if not is_outdated():
                plan = self._compared(plan, events)
                stages = {"told": began_s - since_s, "planned": planned_s - began_s}
                stages["compared"] = self.parts.clock() - planned_s
                self._publish(plan, state, since_s, stages, events)
        except ChoraleError as error:
            events.append(self._event("replan", spec=spec, state=str(state), error=str(error)))
        return events

    def warm_up(self, pool: Executor) -> None:
        """Have the processes for comparisons started."""
        if self.parts.canary is not None and self.present is not None and self._is_whole(self.present):
            pool.submit(self.parts.canary.warm_up, self.present.table, self.parts.collectives)

    def plan_ahead(self, state: FabricState) -> list[Event]:
        """Plan for a state that may come; say if there is no plan for it."""
        try:
            self.parts.planner.plan(state.spec(self.parts.healthy))
        except ChoraleError as error:  # known now instead of then
            return [self._event("replan", state=str(state), ahead=True, error=str(error))]
        return []

    def departures(self, tolerance: float) -> list[Departure]:
        """Return where jobs take another time with the present table than was predicted; see `departures`."""
        present = self.present
        if present is None:
            return []
        return departures(self._said[1], self.parts.jobs(), tolerance, lambda key: self._prediction(present, key))

    def adopt(self, tuned: Mapping[tuple[str, int], TunedProgram]) -> list[Event]:
        """Publish the present table with programs that a campaign has found, where they are not slower beyond noise."""
        present, events = self.present, list[Event]()
        if present is None:
            return events
        began_s = self.parts.clock()
        sizes = ", ".join(f"{name} of {size} bytes" for name, size in sorted(tuned))
        try:
            plan = self.parts.planner.with_tuned(present, tuned)
            planned_s = self.parts.clock()
            plan = self._compared(plan, events, tuple(size for _, size in tuned))
            stages = {"planned": planned_s - began_s, "compared": self.parts.clock() - planned_s}
            self.parts.planner.adopt(plan)
            self._publish(plan, FabricState(), began_s, stages, events, f"tuned anew: {sizes}")
        except ChoraleError as error:
            events.append(self._event("retune", stage="failed", why=str(error)))
        return events

    def judge(self) -> list[Event]:
        """Go back to the former table where jobs take longer with the present one."""
        worse = slowdowns(*self._said, self.parts.jobs()) if self._former is not None and not self.is_held else []
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
            self.parts.publisher.publish(Publication(former.digest, former.data, self.parts.clock(), facts))
        except ChoraleError as error:
            return [self._event("undelivered", why=f"the former table could not be published: {error}")]
        self._former, self.present = None, former
        self.parts.planner.adopt(former)
        return [self._event("rollback", table=former.digest, instead_of=present.digest, why=why)]

    def _prediction(self, present: TablePlan, key: Key) -> float | None:
        if key not in self._predicted_s:
            try:
                self._predicted_s[key] = self.parts.planner.predicted_s(present, *key)
            except ChoraleError:  # a size that the model cannot tell
                self._predicted_s[key] = None
        return self._predicted_s[key]

    def _is_whole(self, plan: TablePlan) -> bool:
        return plan.table.ranks == self.parts.healthy.compute_count

    def _compared(self, plan: TablePlan, events: list[Event], more_sizes: tuple[int, ...] = ()) -> TablePlan:
        """Return `plan`, with the present table's programs at the sizes at which it is slower.

        No job can run both if one is for fewer ranks than the other: these are not compared.
        """
        present = self.present
        if self.parts.canary is None or present is None or present.digest == plan.digest:
            return plan
        if not (self._is_whole(present) and self._is_whole(plan)):
            return plan
        report = self.parts.canary.compare(present.table, plan.table, self.parts.collectives, more_sizes)
        events.append(self._canary_event(report))
        if not report.slower:
            return plan
        sizes = [(row.collective, row.size_bytes) for row in report.slower]
        return self.parts.planner.with_present(plan, present.table, sizes)

    def _publish(
        self,
        plan: TablePlan,
        state: FabricState,
        since_s: float,
        stages: Mapping[str, float],
        events: list[Event],
        why: str | None = None,
    ) -> None:
        self._predicted_s.clear()
        why = why or str(state)
        if self.present is not None and self.present.digest == plan.digest:
            self._said = self._said[0], self.parts.jobs()
            return
        if self.is_held:
            events.append(self._event("held", table=plan.digest, why=why, spec=plan.spec))
            return
        now_s = self.parts.clock()
        ranks = state.ranks(self.parts.healthy)
        facts = {"why": why, "spec": plan.spec, "costs": plan.costs, "seconds": now_s - since_s, "ranks": ranks}
        self.parts.publisher.publish(Publication(plan.digest, plan.data, now_s, facts))
        self._former, self.present = self.present, plan
        self._said = self._said[0], self.parts.jobs()
        shown = {key: value for key, value in facts.items() if key != "costs"}
        events.append(self._event("publish", table=plan.digest, **shown, stages=dict(stages)))

    def _canary_event(self, report: CanaryReport) -> Event:
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
        return self._event("canary", rows=rows, failures=list(report.failures))

    def _event(self, name: str, **facts: Any) -> Event:
        return {"time_s": self.parts.clock(), "event": name, **facts}


def _plan_of(publication: Publication | None) -> TablePlan | None:
    if publication is None:
        return None
    table, digest = parse_table(publication.data)
    spec, costs = str(publication.facts["spec"]), publication.facts["costs"]
    return TablePlan(spec, table, publication.data, digest, costs, 0.0)
