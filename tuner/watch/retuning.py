"""Campaigns in idle windows, where the times of jobs and what was predicted for them part.

What a campaign finds goes through the same door as every table: it is compared with the present one, then published.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale.synth.errors import ChoraleError
from chorale.tuner.files.read_write import write_file
from chorale.tuner.watch.departures import Departure
from chorale.tuner.watch.renewal import Event, Renewal
from chorale.tuner.watch.retune_campaigns import CampaignOrder, CampaignProcess, WatchCampaigns
from chorale.tuner.watch.windows import IdleWindow

FORMAT = "chorale-retune/1"
_MOST_SIZES = 8
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class RetuneOptions:
    """When to tune what anew.

    tolerance: see `chorale.tuner.watch.departures`; again_s: after which a size may be tuned once more
    busy_share: says at a time on which part of the ranks jobs run
    """

    window: IdleWindow
    tolerance: float
    again_s: float
    busy_share: Callable[[float], float]


@dataclass(slots=True)
class Retuner:
    """Launches campaigns for one watch, one at a time. One thread, but for `interrupt`.

    record: a file that says what was tuned when and what is not finished, so that another watch goes on
    """

    options: RetuneOptions
    campaigns: WatchCampaigns
    record: Path
    _order: CampaignOrder | None = None
    _is_begun: bool = False
    _process: CampaignProcess | None = None
    _tuned_s: dict[tuple[str, int], float] = field(default_factory=dict)

    def resume(self) -> None:
        """Go on with what the record says; one that is missing or damaged says nothing."""
        try:
            document = json.loads(self.record.read_bytes())
            if document["format"] != FORMAT:
                return
            self._tuned_s = {(row["collective"], row["size_bytes"]): row["time_s"] for row in document["tuned"]}
            unfinished = document["unfinished"]
            if unfinished is not None:
                self._order = CampaignOrder(unfinished["collective"], tuple(unfinished["sizes_bytes"]))
                self._is_begun = bool(unfinished["is_begun"])
        except (OSError, ValueError, KeyError, TypeError):
            return

    def step(self, renewal: Renewal, is_healthy: bool, now_s: float) -> list[Event]:
        """Do what is due: note what jobs say, begin or interrupt a campaign, or take over what one has found.

        is_healthy: whether the fabric is as declared, as campaigns are only then for it
        """
        closed = self.options.window.closed(now_s, self.options.busy_share(now_s))
        closed = closed if is_healthy else "the fabric is not as declared"
        if self._process is not None:
            code = self._process.poll()
            if code is not None:
                return self._on_end(self._process, code, renewal, now_s)
            if closed is not None:
                self._process.interrupt()
            return []
        if self._order is None and is_healthy:
            return self._look(renewal, now_s)
        if self._order is not None and closed is None and renewal.present is not None:
            return self._begin(renewal, now_s)
        return []

    def interrupt(self) -> None:
        """Have a campaign end that runs, since the fabric is needed; it goes on later."""
        if self._process is not None:
            self._process.interrupt()

    def close(self) -> None:
        """End a campaign that runs; the next watch goes on with it."""
        if self._process is not None:
            self._process.close()

    def _look(self, renewal: Renewal, now_s: float) -> list[Event]:
        """Order a campaign for the collective whose calls were furthest from what was predicted."""
        rows = self._due(renewal, now_s)
        if not rows:
            return []
        self._order, self._is_begun = _order_of(rows), False
        self._write()
        return [self._event("due", now_s, rows=list(map(_row, rows)))]

    def _due(self, renewal: Renewal, now_s: float) -> list[Departure]:
        """Return sizes of one collective at which times part, of those that were not tuned lately; the costliest."""
        never_s = float("-inf")
        rows = [
            row
            for row in renewal.departures(self.options.tolerance)
            if now_s - self._tuned_s.get((row.collective, row.size_bytes), never_s) > self.options.again_s
        ]
        return [row for row in rows if row.collective == rows[0].collective][:_MOST_SIZES]

    def _begin(self, renewal: Renewal, now_s: float) -> list[Event]:
        assert self._order is not None
        assert renewal.present is not None
        stage = "resumed" if self._is_begun else "began"
        if not self._is_begun and (rows := self._due(renewal, now_s)):
            self._order = _order_of(rows)  # jobs have gone on since it was due, at more sizes perhaps
        try:
            if self._is_begun:
                self._process = self.campaigns.resume()
            else:
                self._process = self.campaigns.begin(self._order, renewal.present.table)
        except (ChoraleError, OSError) as error:
            return [self._given_up(str(error), now_s)]
        self._is_begun = True
        self._write()
        return [self._event(stage, now_s, campaign=self.campaigns.name)]

    def _on_end(self, process: CampaignProcess, code: int, renewal: Renewal, now_s: float) -> list[Event]:
        self._process = None
        if code == _INTERRUPTED:
            return [self._event("interrupted", now_s, why="the window is closed; it goes on when one opens")]
        if code != 0:
            return [self._given_up(process.last_words(), now_s)]
        assert self._order is not None
        assert renewal.present is not None
        try:
            tuned = self.campaigns.tuned_programs(self._order, renewal.present.table)
        except ChoraleError as error:
            return [self._given_up(str(error), now_s)]
        rows = [
            {
                "size_bytes": size,
                "program": each.entry.digest,
                "time_us": [row["time_us"] for row in each.measured.get("sizes", [])],
                "is_new": each.entry.digest not in renewal.present.table.programs,
            }
            for (_, size), each in tuned.items()
        ]
        ended = self._event("ended", now_s, rows=rows)
        self._finish(now_s)
        return [ended, *renewal.adopt(tuned)]

    def _given_up(self, why: str, now_s: float) -> Event:
        event = self._event("failed", now_s, why=why)
        self._process = None
        self._finish(now_s)
        return event

    def _finish(self, now_s: float) -> None:
        assert self._order is not None
        self._tuned_s |= {(self._order.collective, size): now_s for size in self._order.sizes_bytes}
        self._order, self._is_begun = None, False
        self._write()

    def _write(self) -> None:
        order = self._order
        unfinished = (
            None
            if order is None
            else {
                "collective": order.collective,
                "sizes_bytes": list(order.sizes_bytes),
                "is_begun": self._is_begun,
            }
        )
        tuned = [{"collective": name, "size_bytes": size, "time_s": at} for (name, size), at in self._tuned_s.items()]
        document = {"format": FORMAT, "tuned": tuned, "unfinished": unfinished}
        write_file(self.record, json.dumps(document, indent=1).encode())

    def _event(self, stage: str, now_s: float, **facts: Any) -> Event:
        order = self._order
        of_order = {} if order is None else {"collective": order.collective, "sizes_bytes": list(order.sizes_bytes)}
        return {"time_s": now_s, "event": "retune", "stage": stage, **of_order, **facts}


def _order_of(rows: Sequence[Departure]) -> CampaignOrder:
    return CampaignOrder(rows[0].collective, tuple(sorted({row.size_bytes for row in rows})))


def _row(row: Departure) -> dict[str, Any]:
    return {
        "size_bytes": row.size_bytes,
        "calls": row.calls.calls,
        "mean_s": row.calls.mean_s,
        "predicted_s": row.predicted_s,
        "ratio": row.ratio,
    }
