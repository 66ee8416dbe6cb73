"""The loop that keeps a fabric tuned: probe, tell changes, have tables renewed, tell others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from chorale.runners.api.probes import Link, ProbeOutcome, Prober
from chorale.synth.errors import ChoraleError
from chorale.tuner.watch.common_mode import CommonMode
from chorale.tuner.watch.fabric_state import FabricState, single_losses
from chorale.tuner.watch.link_monitor import LinkMonitor, LinkState, StateChange
from chorale.tuner.watch.probe_schedule import ProbeSchedule
from chorale.tuner.watch.records import WatchRecords
from chorale.tuner.watch.renewal import Event, Renewal
from chorale.tuner.watch.retuning import Retuner

_SETTLE_S = 0.3
"""After a change the other direction of a cable, or the other links of a node, are waited for."""
_MOST_SETTLE_S = 2.0
_WAIT_S = 0.02
_DELIVER_S = 10.0
_JUDGE_S = 2.0
"""Between two looks at what jobs say."""
_RECORD_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchParts:
    """What a watch works with.

    reroute: sends what would cross dead links or lost ranks over others, None where the fabric does so by itself
    records: what others see of the watch, and what it goes on with when it starts again; None keeps none
    retuner: launches campaigns in idle windows; None where the operator allows none
    close:   is called at the end
    """

    prober: Prober
    monitors: Mapping[Link, LinkMonitor]
    schedule: ProbeSchedule
    packets: int
    reroute: Callable[[FabricState], None] | None = None
    plans_failures: bool = True
    records: WatchRecords | None = None
    retuner: Retuner | None = None
    clock: Callable[[], float] = time.time
    close: Callable[[], None] = lambda: None


@dataclass(slots=True)
class Watch:
    """One fabric under watch; call it from one thread.

    renewal: the tables; what it does takes longer, and is done in `pool`, one after the other
    pool:    its other threads plan ahead, which must not keep a renewal waiting, and start what measures
    sender:  tells others, who may be slow to hear
    """

    parts: WatchParts
    renewal: Renewal
    pool: Executor = field(default_factory=lambda: ThreadPoolExecutor(3, thread_name_prefix="watch"))
    sender: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="watch-sender"))
    _state: FabricState | None = None
    _changed_s: float | None = None
    _since_s: float | None = None
    _pending: tuple[FabricState, float] | None = None
    _work: Future[list[Event]] | None = None
    _planning: Future[list[Event]] | None = None
    _delivery: Future[list[Event]] | None = None
    _ahead: Iterator[FabricState] = field(default_factory=lambda: iter(()))
    _is_warm: bool = False
    _delivered_s: float = 0.0
    _judged_s: float = 0.0
    _recorded_s: float = 0.0
    _losses: CommonMode = field(init=False)
    _slow_trains: CommonMode = field(init=False)

    def __post_init__(self) -> None:
        """Begin without having seen anything."""
        self._losses, self._slow_trains = CommonMode(self.parts.monitors), CommonMode(self.parts.monitors)

    def run(self, is_over: Callable[[], bool]) -> Iterator[Event]:
        """Watch until `is_over`; yield what happens. Unavailable if links can no longer be probed."""
        if self.parts.plans_failures:
            self._ahead = single_losses(self.parts.monitors)
        yield from self._resume()
        try:
            while not is_over():
                yield from map(self._recorded, self.step())
        finally:
            for executor in (self.pool, self.sender):
                executor.shutdown(wait=True, cancel_futures=True)
            if self.parts.retuner is not None:
                self.parts.retuner.close()
            self._record()
            self.parts.prober.close()
            self.parts.close()

    def step(self) -> Iterator[Event]:
        """Do what is due now, and wait a moment for probes."""
        now_s = self.parts.clock()
        for link, is_train in self.parts.schedule.due(now_s):
            self.parts.prober.send(link, self.parts.packets if is_train else 1)
        for outcome in self.parts.prober.receive(_WAIT_S):
            change = self._weigh(outcome)
            if change is not None:
                yield self._on_change(outcome.link, change)
            elif self.parts.monitors[outcome.link].is_suspicious:
                self.parts.schedule.hurry(outcome.link, now_s)
        now_s = self.parts.clock()
        yield from self._advance(now_s)
        yield from self._tell(now_s)

    def request_renewal(self) -> None:
        """Plan for the present state again, as after a hold."""
        if self._state is not None:
            self._pending = self._pending or (self._state, self.parts.clock())

    def _resume(self) -> Iterator[Event]:
        """Go on where a former watch ended, or begin."""
        self.renewal.resume()
        if self.parts.retuner is not None:
            self.parts.retuner.resume()
        present = self.renewal.present
        if present is None:
            self._since_s = self._changed_s = self.parts.clock()
            return
        if self.parts.records is not None:
            self.parts.records.resume(self.parts.monitors)
        self._state = FabricState.of(self.parts.monitors)
        if present.spec != self._state.spec(self.renewal.parts.healthy):  # it ended between a change and its table
            self.request_renewal()
        yield self._recorded(self._event("resume", table=present.digest, spec=present.spec, why=str(self._state)))

    def _weigh(self, outcome: ProbeOutcome) -> StateChange | None:
        """Have a link's monitor judge a probe beside what unrelated links show; dead ones say nothing for others."""
        link, sent_s = outcome.link, outcome.sent_s
        monitor, now_s = self.parts.monitors[link], self.parts.clock()
        if outcome.packets == 1:
            elsewhere = self._losses.share(link, now_s)
            if monitor.state != LinkState.DEAD:
                self._losses.note(link, not outcome.has_arrived, now_s)
            return monitor.on_ping(sent_s, outcome.has_arrived, outcome.latency_s, elsewhere=elsewhere)
        if outcome.rate_bits_per_s is None:
            return None
        elsewhere = self._slow_trains.share(link, now_s)
        self._slow_trains.note(link, monitor.is_below(outcome.rate_bits_per_s), now_s)
        return monitor.on_rate(sent_s, outcome.rate_bits_per_s, elsewhere=elsewhere)

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
        """Begin to plan when the state has settled, and tell what is done."""
        if self._work is not None and self._work.done():
            work, self._work = self._work, None
            yield from work.result()
        if self._planning is not None and self._planning.done():
            planning, self._planning = self._planning, None
            yield from planning.result()
        if self._changed_s is not None and self._has_settled(now_s):
            yield from self._on_settled(FabricState.of(self.parts.monitors), self._since_s or now_s)
        if self._work is None:
            self._work = self._next_work(now_s)
        if self._work is None and self._planning is None and (ahead := next(self._ahead, None)) is not None:
            self._planning = self.pool.submit(self.renewal.plan_ahead, ahead)

    def _next_work(self, now_s: float) -> Future[list[Event]] | None:
        """Return what is most urgent, begun; None if there is nothing to do."""
        renewal = self.renewal
        if self._pending is not None:
            (state, since_s), self._pending = self._pending, None
            return self.pool.submit(renewal.renew, state, since_s, lambda: self._pending is not None)
        if not self._is_warm and renewal.present is not None:
            self._is_warm = True
            renewal.warm_up(self.pool)
        if now_s > self._judged_s + _JUDGE_S:
            self._judged_s = now_s
            return self.pool.submit(self._judge, now_s)
        return None

    def _judge(self, now_s: float) -> list[Event]:
        """See what jobs say: go back to the former table, or have campaigns run where predictions are off."""
        events = self.renewal.judge()
        if self.parts.retuner is None or events:
            return events
        is_healthy = self._state is not None and self._state.is_healthy and self._changed_s is None
        return self.parts.retuner.step(self.renewal, is_healthy, now_s)

    def _on_settled(self, state: FabricState, since_s: float) -> Iterator[Event]:
        """Route around what is dead, and plan as soon as the work before is done."""
        self._changed_s = self._since_s = None
        if state == self._state:
            return
        self._state = state
        self.renewal.note_change()
        if self.parts.retuner is not None:
            self.parts.retuner.interrupt()
        yield from self._reroute(state)
        self._pending = state, since_s if self._pending is None else min(since_s, self._pending[1])

    def _has_settled(self, now_s: float) -> bool:
        since_s = now_s - (self._changed_s or now_s)
        is_suspicious = any(monitor.is_suspicious for monitor in self.parts.monitors.values())
        return since_s >= (_MOST_SETTLE_S if is_suspicious else _SETTLE_S)

    def _reroute(self, state: FabricState) -> Iterator[Event]:
        """Send what would cross dead links over others at once: what is measured or planned may wait for it."""
        if self.parts.reroute is None:
            return
        try:
            self.parts.reroute(state)
        except ChoraleError as error:
            yield self._event("undelivered", why=f"no routes around {state}: {error}")

    def _tell(self, now_s: float) -> Iterator[Event]:
        """Hand on what others have not heard of yet, write down what they may see, and do what they ask for."""
        if self._delivery is not None and self._delivery.done():
            delivery, self._delivery = self._delivery, None
            yield from delivery.result()
        if self._delivery is None and now_s > self._delivered_s + _DELIVER_S:
            self._delivered_s = now_s
            self._delivery = self.sender.submit(self._deliver)
        if now_s > self._recorded_s + _RECORD_S:
            self._recorded_s = now_s
            if self.parts.records is not None:
                self.parts.records.note_carried(self.parts.prober.carried_bytes(), now_s)
            self._record()
            yield from self._obey()

    def _deliver(self) -> list[Event]:
        deliveries = self.renewal.parts.publisher.deliver()
        if self.parts.records is not None:
            deliveries += self.parts.records.deliver()
        return [
            self._event("delivered", why=f"{each.receiver} takes what waited")
            if each.failure is None
            else self._event("undelivered", why=f"{each.receiver}: {each.failure}")
            for each in deliveries
        ]

    def _obey(self) -> Iterator[Event]:
        """Hold, release or roll back, as somebody asked."""
        if self.parts.records is None:
            return
        was_held, self.renewal.is_held = self.renewal.is_held, self.parts.records.is_held()
        if was_held != self.renewal.is_held:
            yield self._event("hold" if self.renewal.is_held else "release", why="by request")
            if not self.renewal.is_held:
                self.request_renewal()
        if self._work is None and self.parts.records.take_roll_back():
            yield from self.renewal.roll_back("by request")

    def _record(self) -> None:
        if self.parts.records is not None:
            self.parts.records.write(self._state, self.renewal, self.parts.monitors, self.parts.clock())

    def _recorded(self, event: Event) -> Event:
        """Keep an event for who looks later; what is published is told at once."""
        if event["event"] in ("publish", "rollback"):
            self._delivered_s = 0.0
        if self.parts.records is not None:
            self.parts.records.note(event)
            self._record()
        return event

    def _event(self, name: str, **facts: Any) -> Event:
        return {"time_s": self.parts.clock(), "event": name, **facts}
