"""What others see of a watch, in a file that is replaced each second, and what they may ask of it by files beside it.

`state.json` has the format `chorale-watch/1`: links with their states, rates and latencies, the present table, what
happened, and who has not heard of it yet. A file `hold` beside it keeps tables from being published as long as it is
there; a file `roll-back` has the former table published, and is removed then.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chorale.runners.api.probes import Link
from chorale.runners.measurement.precision import MedianInterval
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.files.read_write import write_file
from chorale.tuner.watch.fabric_state import FabricState
from chorale.tuner.watch.history import LinkHistory
from chorale.tuner.watch.link_monitor import LinkMonitor, LinkView
from chorale.tuner.watch.publishing import ReceiverChange
from chorale.tuner.watch.renewal import Event, Renewal

FORMAT = "chorale-watch/1"
_SHOWN_EVENTS = 200
HOLD, ROLL_BACK = "hold", "roll-back"


class WatchRecords:
    """The files of a watch in its folder, which must exist. One thread, but for `deliver` and `views`."""

    def __init__(self, folder: Path, name: str, history: LinkHistory | None = None) -> None:
        self._folder, self._name, self._history = folder, name, history
        self._events: deque[Event] = deque(maxlen=_SHOWN_EVENTS)
        self.counts: dict[str, int] = {}
        self.views: Mapping[Link, LinkView] = {}
        self.waiting: Mapping[str, int] = {}
        self.carried_bits_per_s: Mapping[Link, float] = {}
        self._carried: tuple[Mapping[Link, int], float] = ({}, 0.0)

    def resume(self, monitors: Mapping[Link, LinkMonitor]) -> None:
        """Have monitors go on with the states that links had; a file that is missing or of another format has none."""
        try:
            document = json.loads(self._state.read_bytes())
            if document["format"] != FORMAT:
                return
            for row in document["links"]:
                src, dst = row["link"].split(">")
                monitor = monitors.get((int(src), int(dst)))
                if monitor is not None and monitor.declared_bits_per_s == row["declared_bits_per_s"]:
                    monitor.resume(row["resume"], float(row["since_s"]))
            self._events.extend(document["events"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or one that was damaged: links are probed anyway
            return

    def note(self, event: Event) -> None:
        """Keep an event, for the file."""
        self._events.append(event)
        self.counts[event["event"]] = self.counts.get(event["event"], 0) + 1

    def note_carried(self, carried_bytes: Mapping[Link, int], now_s: float) -> None:
        """Take the rates at which links carry bytes from what they have carried by now."""
        before, then_s = self._carried
        passed_s = now_s - then_s
        if carried_bytes == before or passed_s <= 0:
            return
        self.carried_bits_per_s = {
            link: max(count - before[link], 0) * 8 / passed_s for link, count in carried_bytes.items() if link in before
        }
        self._carried = dict(carried_bytes), now_s

    def write(
        self, state: FabricState | None, renewal: Renewal, monitors: Mapping[Link, LinkMonitor], now_s: float
    ) -> None:
        """Replace the file. A disk that is full must not end a watch: the next second tries again."""
        self.views = {link: monitor.view() for link, monitor in monitors.items()}
        self.waiting = renewal.parts.publisher.waiting()
        if self._history is not None:
            self._history.note(self.views, now_s)
        present = renewal.present
        document = {
            "format": FORMAT,
            "name": self._name,
            "topology": renewal.parts.healthy.spec,
            "time_s": now_s,
            "state": None if state is None else str(state),
            "is_held": renewal.is_held,
            "table": None if present is None else _table(renewal),
            "waiting": dict(self.waiting),
            "links": [
                _row(link, view, monitors[link], self.carried_bits_per_s.get(link)) for link, view in self.views.items()
            ],
            "events": list(self._events),
        }
        try:
            write_file(self._state, json.dumps(document).encode())
        except (Unavailable, InvalidInput):
            self.counts["unwritten"] = self.counts.get("unwritten", 0) + 1

    def deliver(self) -> list[ReceiverChange]:
        """Hand on the history of links; in the thread for that."""
        return self._history.deliver() if self._history is not None else []

    def is_held(self) -> bool:
        """Return whether nothing may be published."""
        return (self._folder / HOLD).exists()

    def take_roll_back(self) -> bool:
        """Return, once, whether the former table was asked for."""
        try:
            (self._folder / ROLL_BACK).unlink()
        except OSError:
            return False
        return True

    @property
    def _state(self) -> Path:
        return self._folder / "state.json"


def _table(renewal: Renewal) -> dict[str, Any]:
    publication = renewal.parts.publisher.present
    assert publication is not None
    return {"digest": publication.digest, "time_s": publication.time_s, **publication.facts}


def _row(link: Link, view: LinkView, monitor: LinkMonitor, carried_bits_per_s: float | None) -> dict[str, Any]:
    return {
        "link": f"{link[0]}>{link[1]}",
        "state": view.state.value,
        "since_s": view.since_s,
        "declared_bits_per_s": view.declared_bits_per_s,
        "in_force_bits_per_s": view.in_force_bits_per_s,
        "carried_bits_per_s": carried_bits_per_s,
        "rate_bits_per_s": _interval(view.rate),
        "latency_s": _interval(view.latency),
        "probes": view.probes,
        "lost": view.lost,
        "resume": monitor.saved(),
    }


def _interval(interval: MedianInterval | None) -> dict[str, float] | None:
    return None if interval is None else {"median": interval.median, "low": interval.low, "high": interval.high}
