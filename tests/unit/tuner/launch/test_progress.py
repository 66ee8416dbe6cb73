"""What people see of a running campaign."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from chorale.runners.api.base import FailureKind
from chorale.tuner.launch.progress import LiveTable, PlainLines, outcome_text, progress_display
from chorale.tuner.trials.records import Candidate, FailedTrial, PrunedTrial
from tests.campaigns import complete

TRIAL = complete(Candidate("bfb", chunks=2), time_s=1.0)
FAILED = FailedTrial("a", 2, Candidate("ring"), 1e9, 1.0, FailureKind.TIMEOUT, "hung")
PRUNED = PrunedTrial("b", 3, Candidate("ring", k=2), 1e9, 1.0, "no trees")


def console(**options: object) -> Console:
    return Console(file=io.StringIO(), width=200, **options)  # type: ignore[arg-type]


def text(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def test_outcomes_in_words() -> None:
    assert outcome_text(TRIAL) == "2.00x (4KiB 1000 ms, 64KiB 2000 ms)"
    assert outcome_text(FAILED) == "failed, timeout: hung"
    assert outcome_text(PRUNED) == "pruned: no trees"


def test_plain_lines_count_and_estimate() -> None:
    shown = console()
    with PlainLines(shown, 10) as progress:
        progress.trial(replace(TRIAL, seconds=5.0))
        progress.trial(replace(FAILED, seconds=15.0))
    assert text(shown).splitlines() == [
        "bfb chunks=2: 2.00x (4KiB 1000 ms, 64KiB 2000 ms)  (trial 1/10, about 0:45 left, best 2.00x bfb chunks=2)",
        "ring: failed, timeout: hung  (trial 2/10, about 1:20 left, best 2.00x bfb chunks=2)",
    ]


def test_a_resumed_launch_knows_its_best_and_its_pace_but_not_its_pause():
    shown = console()
    known = [replace(TRIAL, started_unix_s=1e9 + 10 * number, trial_id=str(number)) for number in range(4)]
    with PlainLines(shown, 10, known) as progress:
        progress.trial(replace(FAILED, started_unix_s=2e9))
    assert text(shown).endswith("(trial 5/10, about 0:50 left, best 2.00x bfb chunks=2)\n")


def test_a_limit_in_minutes_may_come_first():
    shown = console()
    with PlainLines(shown, 100, limit_s=30.0) as progress:
        progress.trial(replace(TRIAL, seconds=10.0))
    assert "about 0:20 left" in text(shown)


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveTable), (False, PlainLines)])
def test_a_terminal_gets_a_table(terminal: bool, kind: type) -> None:
    shown = console(force_terminal=terminal)
    with progress_display(shown, 10) as progress:
        assert isinstance(progress, kind)
        for record in (TRIAL, FAILED, PRUNED):
            progress.trial(record)
    assert "failed, timeout: hung" in text(shown)
