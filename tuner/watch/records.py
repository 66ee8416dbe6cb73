"""What others see of a watch, in a file that is replaced each second, and what they may ask of it by files beside it.

`state.json` has the format `chorale-watch/1`: links with their states and rates, the present table, what happened, and
who has not heard of it yet. A file `hold` beside it keeps tables from being published as long as it is there; a file
`roll-back` has the former table published, and is removed then.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chorale.runners.api.link_reports import Link, LinkReport
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.files.read_write import write_file
from chorale.tuner.watch.links import FabricState, LinkTracker
from chorale.tuner.watch.renewal import Event, Renewal

FORMAT = "chorale-watch/1"
STATE, HOLD, ROLL_BACK = "state.json", "hold", "roll-back"
_SHOWN_EVENTS = 200


class WatchRecords:
    """The files of a watch in its folder, which must exist. One thread."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._events: deque[Event] = deque(maxlen=_SHOWN_EVENTS)
        self._reports: dict[Link, LinkReport] = {}
        self._carried_bits_per_s: dict[Link, float] = {}

    def resume(self, trackers: Mapping[Link, LinkTracker]) -> None:
        """Have trackers go on with the states that links had; a file that is missing or of another format has none."""
        try:
            document = json.loads((self._folder / STATE).read_bytes())
            if document["format"] != FORMAT:
                return
            for row in document["links"]:
                src, dst = row["link"].split(">")
                tracker = trackers.get((int(src), int(dst)))
                if tracker is not None and tracker.declared_bits_per_s == row["declared_bits_per_s"]:
                    tracker.resume(row["resume"], float(row["since_s"]))
            self._events.extend(document["events"])
        except (OSError, ValueError, KeyError, TypeError):  # none, or one that was damaged: the source tells anyway
            return

    def note(self, event: Event) -> None:
        """Keep an event, for the file."""
        self._events.append(event)

    def note_carried(self, report: LinkReport) -> None:
        """Take the rate at which a link carries bytes from what it has carried a second ago and now."""
        before = self._reports.setdefault(report.link, report)
        passed_s = report.time_s - before.time_s
        if passed_s >= 1.0:
            if report.carried_bytes is not None and before.carried_bytes is not None:
                carried_bits = 8 * max(report.carried_bytes - before.carried_bytes, 0)
                self._carried_bits_per_s[report.link] = carried_bits / passed_s
            self._reports[report.link] = report

    def write(
        self, state: FabricState | None, renewal: Renewal, trackers: Mapping[Link, LinkTracker], now_s: float
    ) -> None:
        """Replace the file. A disk that is full must not end a watch: the next second tries again."""
        present = renewal.publisher.present
        table = None if present is None else {"digest": present.digest, "time_s": present.time_s, **present.facts}
        document = {
            "format": FORMAT,
            "name": self._name,
            "topology": renewal.healthy.spec,
            "time_s": now_s,
            "state": None if state is None else str(state),
            "is_held": renewal.is_held,
            "table": table,
            "waiting": renewal.publisher.waiting(),
            "links": [self._row(link, tracker) for link, tracker in trackers.items()],
            "events": list(self._events),
        }
        try:
            write_file(self._folder / STATE, json.dumps(document).encode())
        except (Unavailable, InvalidInput):
            return

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

    def _row(self, link: Link, tracker: LinkTracker) -> dict[str, Any]:
        return {
            "link": f"{link[0]}>{link[1]}",
            "state": tracker.state.value,
            "since_s": tracker.since_s,
            "declared_bits_per_s": tracker.declared_bits_per_s,
            "in_force_bits_per_s": tracker.in_force_bits_per_s,
            "carried_bits_per_s": self._carried_bits_per_s.get(link),
            "resume": tracker.saved(),
        }
