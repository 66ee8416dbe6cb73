"""The loop that keeps a fabric tuned: hear of changes, have tables renewed, tell others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from chorale.runners.api.link_reports import Link, LinkReport, LinkSource
from chorale.synth.errors import ChoraleError
from chorale.tuner.watch.links import FabricState, LinkTracker, single_losses
from chorale.tuner.watch.records import WatchRecords
from chorale.tuner.watch.renewal import Event, Renewal

_SETTLE_S = 0.6
"""After a change the other direction of a cable, or the other links of a node, are waited for."""
_WAIT_S, _DELIVER_S, _JUDGE_S, _RECORD_S = 0.1, 10.0, 2.0, 1.0
"""For reports; between two tries to tell others, two looks at what jobs say, and two states on disk."""


@dataclass(slots=True)
class Watch:
    """One fabric under watch; call it from one thread.

    source:   of reports about its links
    renewal:  the tables
    records:  what others see of the watch, and what it goes on with when it starts again
    reroute:  sends what would cross dead links or lost ranks over others, None where the fabric does so by itself
    plans_failures: whether tables for single losses are made ahead
    pool:     renews, and plans ahead meanwhile
    sender:   tells others, who may be slow to hear
    close:    is called at the end
    """

    source: LinkSource
    renewal: Renewal
    records: WatchRecords
    reroute: Callable[[FabricState], None] | None = None
    plans_failures: bool = True
    clock: Callable[[], float] = time.time
    close: Callable[[], None] = lambda: None
    pool: Executor = field(default_factory=lambda: ThreadPoolExecutor(3, thread_name_prefix="watch"))
    sender: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="watch-sender"))
    trackers: dict[Link, LinkTracker] = field(init=False)
    _state: FabricState | None = None
    _changed_s: float | None = None  # when the last change was that has not been planned for
    _since_s: float | None = None  # when the first of these was
    _pending: tuple[FabricState, float] | None = None
    _under_way: dict[str, Future[list[Event]]] = field(default_factory=dict)
    _ahead: Iterator[FabricState] = field(default_factory=lambda: iter(()))
    _is_warm: bool = False
    _last_s: dict[str, float] = field(default_factory=dict)  # of what is done now and then

    def __post_init__(self) -> None:
        now_s = self.clock()
        self.trackers = {
            link: LinkTracker(rate, now_s) for link, rate in sorted(self.source.declared_bits_per_s.items())
        }

    def run(self, is_over: Callable[[], bool]) -> Iterator[Event]:
        """Watch until `is_over`; yield what happens. Unavailable if the source has ended."""
        if self.plans_failures:
            self._ahead = single_losses(self.trackers)
        yield from map(self._recorded, self._resume())
        try:
            while not is_over():
                yield from map(self._recorded, self.step())
        finally:
            for executor in (self.pool, self.sender):
                executor.shutdown(wait=True, cancel_futures=True)
            self._write()
            self.source.close()
            self.close()

    def step(self) -> Iterator[Event]:
        """Do what is due now, and wait a moment for reports."""
        for report in self.source.reports(_WAIT_S):
            yield from self._on_report(report)
        for name, future in list(self._under_way.items()):
            if future.done():
                del self._under_way[name]
                yield from future.result()
        now_s = self.clock()
        if self._changed_s is not None and now_s >= self._changed_s + _SETTLE_S:
            yield from self._on_settled(FabricState.of(self.trackers), self._since_s or now_s)
        self._begin(now_s)
        if self._is_due("record", _RECORD_S, now_s):
            self._write()
            yield from self._obey()

    def request_renewal(self) -> None:
        """Plan for the present state again, as after a hold."""
        if self._state is not None:
            self._pending = self._pending or (self._state, self.clock())

    def _resume(self) -> Iterator[Event]:
        """Go on where a former watch ended, or begin."""
        self.renewal.resume()
        present = self.renewal.present
        if present is None:
            self._since_s = self._changed_s = self.clock()
            return
        self.records.resume(self.trackers)
        self._state = FabricState.of(self.trackers)
        if present.spec != self._state.spec(self.renewal.healthy):  # it ended between a change and its table
            self.request_renewal()
        yield self._event("resume", table=present.digest, spec=present.spec, why=str(self._state))

    def _on_report(self, report: LinkReport) -> Iterator[Event]:
        tracker = self.trackers.get(report.link)
        if tracker is None:
            return
        self.records.note_carried(report)
        change = tracker.report(report.time_s, report.rate_bits_per_s)
        if change is not None:
            self._changed_s = self.clock()
            self._since_s = min(self._since_s or change.time_s, change.time_s)
            link = f"{report.link[0]}>{report.link[1]}"
            states = {"from": change.before.value, "to": change.after.value, "rate": change.rate_bits_per_s}
            yield {"time_s": change.time_s, "event": "state", "link": link, **states}

    def _on_settled(self, state: FabricState, since_s: float) -> Iterator[Event]:
        """Route around what is dead at once, and plan as soon as the work before is done."""
        self._changed_s = self._since_s = None
        if state == self._state:
            return
        self._state = state
        self.renewal.note_change()
        if self.reroute is not None:
            try:
                self.reroute(state)
            except ChoraleError as error:
                yield self._event("undelivered", why=f"no routes around {state}: {error}")
        self._pending = state, since_s if self._pending is None else min(since_s, self._pending[1])

    def _begin(self, now_s: float) -> None:
        """Begin what is most urgent of each kind of work, if nothing of that kind is under way."""
        renewal = self.renewal
        if "renew" not in self._under_way and self._pending is not None:
            (state, since_s), self._pending = self._pending, None
            work = self.pool.submit(renewal.renew, state, since_s, lambda: self._pending is not None)
            self._under_way["renew"] = work
        elif "renew" not in self._under_way and not self._is_warm and renewal.present is not None:
            self._is_warm = True
            self.pool.submit(renewal.warm_up)
        elif "renew" not in self._under_way and self._is_due("judge", _JUDGE_S, now_s):
            self._under_way["renew"] = self.pool.submit(renewal.judge)
        if not self._under_way.keys() & {"renew", "plan"} and (ahead := next(self._ahead, None)) is not None:
            self._under_way["plan"] = self.pool.submit(renewal.plan_ahead, ahead)
        if "deliver" not in self._under_way and self._is_due("deliver", _DELIVER_S, now_s):
            self._under_way["deliver"] = self.sender.submit(self._deliver)

    def _is_due(self, name: str, period_s: float, now_s: float) -> bool:
        """Return whether it is time for something that is done every `period_s`, and note that it is done."""
        if now_s <= self._last_s.get(name, 0.0) + period_s:
            return False
        self._last_s[name] = now_s
        return True

    def _deliver(self) -> list[Event]:
        return [
            self._event("delivered", why=f"{receiver} takes what waited")
            if failure is None
            else self._event("undelivered", why=f"{receiver}: {failure}")
            for receiver, failure in self.renewal.publisher.deliver()
        ]

    def _obey(self) -> Iterator[Event]:
        """Hold, release or roll back, as somebody asked."""
        was_held, self.renewal.is_held = self.renewal.is_held, self.records.is_held()
        if was_held != self.renewal.is_held:
            yield self._event("hold" if self.renewal.is_held else "release", why="by request")
            if not self.renewal.is_held:
                self.request_renewal()
        if "renew" not in self._under_way and self.records.take_roll_back():
            yield from self.renewal.roll_back("by request")

    def _write(self) -> None:
        self.records.write(self._state, self.renewal, self.trackers, self.clock())

    def _recorded(self, event: Event) -> Event:
        """Keep an event for who looks later; what is published is told at once."""
        if event["event"] in ("publish", "rollback"):
            self._last_s["deliver"] = 0.0
        self.records.note(event)
        self._write()
        return event

    def _event(self, name: str, **facts: Any) -> Event:
        return {"time_s": self.clock(), "event": name, **facts}
