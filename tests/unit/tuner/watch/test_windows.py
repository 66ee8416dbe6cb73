"""When an operator allows a campaign."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from chorale.tuner.watch.windows import Hours, IdleWindow, busy_share

_NOON_S = time.mktime((2026, 11, 25, 12, 0, 0, 0, 0, -1))


@pytest.mark.parametrize(
    ("text", "minutes", "others"),
    [
        ("09:00-17:00", (540, 1019), (539, 1020)),
        ("22:00-06:00", (1320, 1439, 0, 359), (360, 1319)),
        ("00:00-24:00", (0, 1439), ()),
    ],
)
def test_hours_may_go_past_midnight(text: str, minutes: tuple[int, ...], others: tuple[int, ...]) -> None:
    hours = Hours.of(text)
    assert all(hours.contains(minute) for minute in minutes)
    assert not any(hours.contains(minute) for minute in others)


@pytest.mark.parametrize("text", ["9-17", "25:00-26:00", "10:00-10:00", "10:61-11:00", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hours must"):
        Hours.of(text)


def test_what_keeps_a_window_closed() -> None:
    noon, night = (Hours.of("11:00-13:00"),), (Hours.of("22:00-06:00"),)
    assert IdleWindow(noon).closed(_NOON_S, 0.0) is None
    assert IdleWindow(()).closed(_NOON_S, 0.0) == IdleWindow(night).closed(_NOON_S, 0.0) is not None
    assert IdleWindow(noon).closed(_NOON_S, 0.1) == "a job runs"
    assert IdleWindow(noon, False, 0.5).closed(_NOON_S, 0.5) is None
    assert IdleWindow(noon, False, 0.5).closed(_NOON_S, 0.75) == "jobs run on 75% of the ranks"


def test_jobs_that_wrote_lately_run(tmp_path: Path) -> None:
    new, old, silent = (tmp_path / name for name in ("new", "old", "silent"))
    for path in (new, old):
        path.write_text(json.dumps({"ranks": 2}))
    silent.write_text("{")
    os.utime(new, (1000, 1000))
    os.utime(old, (900, 900))
    os.utime(silent, (900, 900))
    paths = [new, old, silent, tmp_path / "none"]
    assert busy_share(paths, 8, 1005.0) == 0.25
    assert busy_share(paths, 8, 1011.0) == 0.0
    os.utime(silent, (1000, 1000))
    assert busy_share(paths, 8, 1005.0) == 1.0  # one that does not tell has all ranks
