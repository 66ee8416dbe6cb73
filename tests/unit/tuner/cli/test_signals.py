"""Signals that stop a command in order, and the end of the job that it runs in."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from chorale.tuner.cli.process import STOP_SIGNALS, stop_before_the_job_ends, stopping_in_order
from chorale.tuner.launch.plan import budget_within
from tests.campaigns import small_campaign


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_stops_once_and_cleaning_up_is_not_interrupted(number: int) -> None:
    before, cleaned = signal.getsignal(number), []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), number)
            time.sleep(0.05)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), stopping_in_order():
        work()
    assert cleaned
    assert signal.getsignal(number) == before


def test_signals_that_come_together_stop_once_and_print_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            for number in STOP_SIGNALS:
                os.kill(os.getpid(), number)  # another thread may take it, so that the interrupt comes here
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), stopping_in_order():
        work()
    assert said == []


def test_a_command_stops_before_its_job_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert stop_before_the_job_ends() is None
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 0:31\n")
    squeue.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CHORALE_STOP_S", "30")
    with stopping_in_order():
        assert stop_before_the_job_ends() == 1.0
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    squeue.write_text("#!/bin/sh\necho UNLIMITED\n")
    assert stop_before_the_job_ends() is None


def test_budgets_end_within_the_job() -> None:
    campaign = small_campaign(budget={"trials": 5, "minutes": 100})
    alone = budget_within(campaign, 3600, goes_on=False)
    assert alone.budget.minutes is not None
    assert alone.final.minutes is not None
    assert alone.budget.minutes + alone.final.minutes < 60
    requeued = budget_within(campaign, 3600, goes_on=True)
    assert (requeued.budget.minutes, requeued.final.minutes) == (100, alone.final.minutes)
    assert budget_within(small_campaign(budget={"minutes": 1}), 3600, goes_on=False).budget.minutes == 1
