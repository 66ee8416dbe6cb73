"""What others see of a watch: loads of links in its file."""

from __future__ import annotations

from pathlib import Path

from chorale.runners.api.link_reports import LinkReport
from chorale.tuner.watch.links import LinkTracker
from chorale.tuner.watch.watcher import WatchRecords

_LINK = (0, 1)


def test_rates_at_which_links_carry_bytes(tmp_path: Path) -> None:
    records = WatchRecords(tmp_path, "cube")

    def load(time_s: float, carried_bytes: int | None) -> float | None:
        records.note_carried(LinkReport(_LINK, time_s, 1e8, carried_bytes))
        rate: float | None = records._row(_LINK, LinkTracker(1e8))["carried_bits_per_s"]
        return rate

    assert load(100.0, 1000) is None
    assert load(100.5, 2000) is None
    assert load(102.0, 251_000) == 1e6
    assert load(103.0, 0) == 0.0  # a fabric that was brought up anew
    assert load(104.0, None) == 0.0
