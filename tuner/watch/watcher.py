"""The loop that keeps a fabric tuned: probe, tell changes, plan, compare, publish."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from chorale.runners.api.probes import Link, Prober
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.watch.canary import Canary, CanaryReport
from chorale.tuner.watch.fabric_state import FabricState, single_losses
from chorale.tuner.watch.job_times import Snapshot, slowdowns
from chorale.tuner.watch.link_monitor import LinkMonitor, StateChange
from chorale.tuner.watch.probe_schedule import ProbeSchedule
from chorale.tuner.watch.publishing import Publication, Publisher
from chorale.tuner.watch.replanning import Planner, TablePlan

_SETTLE_S = 0.3
"""After a change the other direction of a cable, or the other links of a node, are waited for."""
_MOST_SETTLE_S = 2.0
_WAIT_S = 0.02
_DELIVER_S = 10.0
_JUDGE_S = 2.0
"""Between two looks at what jobs say."""

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WatchParts:
    """What a watch works with.

    healthy: the fabric as declared; reroute: sends what would cross dead links over others, None where the fabric does
             so by itself
    """

    healthy: Topology
    collectives: tuple[str, ...]
    prober: Prober
    monitors: Mapping[Link, LinkMonitor]
    schedule: ProbeSchedule
    packets: int
    planner: Planner
    canary: Canary | None
    publisher: Publisher
    reroute: Callable[[Topology], None] | None = None
    plans_failures: bool = True
    jobs: Callable[[], Snapshot] = dict
    clock: Callable[[], float] = time.time
    close: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Work:
    """A state that is being planned for, compared and published. since_s: when the first sign of it was seen"""

    state: FabricState
    since_s: float
    result: Future[list[Event]]


@dataclass(slots=True)
class Watch:
    """One fabric under watch; call it from one thread.

    pool:    does what takes longer: plans one after the other, and starts what measures beside them
    present: what is published
    """

    parts: WatchParts
    pool: Executor = field(default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="watch"))
    present: TablePlan | None = None
    _state: FabricState | None = None
    _changed_s: float | None = None
    _since_s: float | None = None
    _former: TablePlan | None = None
    _said: tuple[Snapshot, Snapshot] = ({}, {})
    _pending: tuple[FabricState, float] | None = None
    _work: _Work | None = None
    _ahead: Iterator[FabricState] | None = None
    _delivered_s: float = 0.0
    _judged_s: float = 0.0

    def run(self, is_over: Callable[[], bool]) -> Iterator[Event]:
        """Watch until `is_over`; yield what happens. Unavailable if links can no longer be probed."""
        self._ahead = single_losses(self.parts.monitors) if self.parts.plans_failures else iter(())
        self._since_s = self._changed_s = self.parts.clock()
        try:
            while not is_over():
                yield from self.step()
        finally:
            self.pool.shutdown(wait=True, cancel_futures=True)
            self.parts.prober.close()
            self.parts.close()

    def step(self) -> Iterator[Event]:
        """Do what is due now, and wait a moment for probes."""
        now_s = self.parts.clock()
        for link, is_train in self.parts.schedule.due(now_s):
            self.parts.prober.send(link, self.parts.packets if is_train else 1)
        for outcome in self.parts.prober.receive(_WAIT_S):
            monitor = self.parts.monitors[outcome.link]
            if outcome.packets == 1:
                change = monitor.on_ping(outcome.sent_s, outcome.has_arrived)
            elif outcome.rate_bits_per_s is not None:
                change = monitor.on_rate(outcome.sent_s, outcome.rate_bits_per_s)
            else:
                continue
            if change is not None:
                yield self._on_change(outcome.link, change)
            elif monitor.is_suspicious:
                self.parts.schedule.hurry(outcome.link, now_s)
        yield from self._advance(self.parts.clock())

    def _on_change(self, link: Link, change: StateChange) -> Event:
        self._changed_s = change.time_s
        self._since_s = min(self._since_s or change.since_s, change.since_s)
        rate = None if change.rate is None else change.rate.median
        bounds = None if change.rate is None else [change.rate.low, change.rate.high]
        states = {"from": change.before.value, "to": change.after.value}
        return {
            "time_s": change.time_s,
            "event": "state",
            "link": f"{link[0]}>{link[1]}",
            **states,
            "since_s": change.since_s,
            "rate": rate,
            "rate_interval": bounds,
        }

    def _advance(self, now_s: float) -> Iterator[Event]:
        """Begin to plan when the state has settled, and publish what is ready."""
        if self._work is not None and self._work.result.done():
            work, self._work = self._work, None
            yield from work.result.result()
        if self._changed_s is not None and self._has_settled(now_s):
            yield from self._on_settled(FabricState.of(self.parts.monitors), self._since_s or now_s)
        if self._work is not None:
            return
        if self._pending is not None:
            (state, since_s), self._pending = self._pending, None
            self._work = _Work(state, since_s, self.pool.submit(self._renew, state, since_s))
            return
        if now_s > self._judged_s + _JUDGE_S:
            self._judged_s = now_s
            yield from self._judge()
        if now_s > self._delivered_s + _DELIVER_S:
            self._delivered_s = now_s
            self._work = _Work(self._state or FabricState(), now_s, self.pool.submit(self._deliver))
            return
        ahead = next(self._ahead, None) if self._ahead is not None else None
        if ahead is not None:
            self._work = _Work(ahead, now_s, self.pool.submit(self._plan_ahead, ahead))

    def _on_settled(self, state: FabricState, since_s: float) -> Iterator[Event]:
        """Route around what is dead, and plan as soon as the work before is done."""
        self._changed_s = self._since_s = None
        if state == self._state:
            return
        self._state = state
        self._said = self.parts.jobs(), {}
        yield from self._reroute(state)
        self._pending = state, since_s if self._pending is None else min(since_s, self._pending[1])

    def _has_settled(self, now_s: float) -> bool:
        since_s = now_s - (self._changed_s or now_s)
        is_suspicious = any(monitor.is_suspicious for monitor in self.parts.monitors.values())
        return since_s >= (_MOST_SETTLE_S if is_suspicious else _SETTLE_S)

    def _renew(self, state: FabricState, since_s: float) -> list[Event]:
        """TablePlan for a state, compare and publish; in the thread for such work. Never raises a ChoraleError."""
        events: list[Event] = []
        spec = state.spec(self.parts.healthy)
        try:
            was_ahead = self.parts.planner.has(spec)
            plan = self.parts.planner.plan(spec)
            facts = {"spec": spec, "state": str(state), "ahead": was_ahead, "seconds": plan.seconds}
            events.append(self._event("replan", **facts, costs=plan.costs))
            if state.nodes:
                events.append(self._event("replan", spec=spec, error=f"{state}: jobs on all ranks have to start again"))
                return events
            if self._pending is None:  # or else the fabric is another by now
                self._publish(self._compared(plan, events), str(state), since_s, events)
        except ChoraleError as error:
            events.append(self._event("replan", spec=spec, state=str(state), error=str(error)))
        return events

    def _reroute(self, state: FabricState) -> Iterator[Event]:
        """Send what would cross dead links over others at once: what is measured or planned may wait for it.

        Not while a rank is lost: there are no routes to it, and those between the others matter to no job.
        """
        if self.parts.reroute is None or state.nodes:
            return
        try:
            self.parts.reroute(parse_topology(state.spec(self.parts.healthy)))
        except ChoraleError as error:
            yield self._event("undelivered", why=f"no routes around {state}: {error}")

    def _compared(self, plan: TablePlan, events: list[Event]) -> TablePlan:
        """Return `plan`, with the present table's programs at the sizes at which it is slower."""
        present = self.present
        if self.parts.canary is None or present is None or present.digest == plan.digest:
            return plan
        report = self.parts.canary.compare(present.table, plan.table, self.parts.collectives)
        events.append(self._canary_event(report))
        if not report.slower:
            return plan
        sizes = [(row.collective, row.size_bytes) for row in report.slower]
        return self.parts.planner.with_present(plan, present.table, sizes)

    def _publish(self, plan: TablePlan, why: str, since_s: float, events: list[Event]) -> None:
        if self.present is not None and self.present.digest == plan.digest:
            return
        now_s = self.parts.clock()
        facts = {"why": why, "spec": plan.spec, "costs": plan.costs, "seconds": now_s - since_s}
        self.parts.publisher.publish(Publication(plan.digest, plan.data, now_s, facts))
        is_first = self.present is None
        self._former, self.present = self.present, plan
        self._said = self._said[0], self.parts.jobs()
        if is_first and self.parts.canary is not None:
            self.pool.submit(self.parts.canary.warm_up, plan.table, self.parts.collectives)
        events.append(self._event("publish", table=plan.digest, why=why, spec=plan.spec, seconds=now_s - since_s))
        events += self._deliver()

    def _judge(self) -> Iterator[Event]:
        """Go back to the former table where jobs take longer with the present one."""
        former, present = self._former, self.present
        worse = slowdowns(*self._said, self.parts.jobs()) if former is not None else []
        if not worse or former is None or present is None:
            return
        size = max(worse, key=lambda each: each.ratio)
        why = f"jobs take {size.ratio:.2f} times as long for {size.collective} of {size.size_bytes} bytes"
        facts = {"why": why, "spec": present.spec, "costs": former.costs, "seconds": 0.0}
        try:
            self.parts.publisher.publish(Publication(former.digest, former.data, self.parts.clock(), facts))
        except ChoraleError as error:
            yield self._event("undelivered", why=f"the former table could not be published: {error}")
            return
        self._former, self.present = None, former
        yield self._event("rollback", table=former.digest, instead_of=present.digest, why=why)

    def _deliver(self) -> list[Event]:
        return [self._event("undelivered", why=line) for line in self.parts.publisher.deliver()]

    def _plan_ahead(self, state: FabricState) -> list[Event]:
        try:
            self.parts.planner.plan(state.spec(self.parts.healthy))
        except ChoraleError as error:  # known now instead of then
            return [self._event("replan", state=str(state), ahead=True, error=str(error))]
        return []

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
