"""Signals that ask a command to stop in order, as ctrl-C does, and the end of the Slurm job that it runs in."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
STOP_VARIABLE = "CHORALE_STOP_S"
"""The seconds that stopping may take before the end of a job; batch scripts of ours set it."""

DEFAULT_STOP_S = 60.0
_log = logging.getLogger("chorale.slurm")


@contextmanager
def stopping_in_order() -> Iterator[None]:
    """Let STOP_SIGNALS raise KeyboardInterrupt during the block; does nothing where threads may not say so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    take_stop_signals()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def take_stop_signals() -> None:
    """Let the first of STOP_SIGNALS raise KeyboardInterrupt from now on; cleaning up is not interrupted by others."""
    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)


def interrupt(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt, and ignore further signals of the kind."""
    for each in (*STOP_SIGNALS, signal.SIGALRM):
        signal.signal(each, _ignore)
        signal.siginterrupt(each, False)
    raise KeyboardInterrupt


def _ignore(number: int, frame: object) -> None:
    """Do nothing; SIG_IGN would have Python print a traceback for a signal that came together with the first."""


def stop_before_the_job_ends() -> float | None:
    """Let this process stop in order some seconds (`STOP_VARIABLE`) before the end of its Slurm job.

    Returns the seconds until then, None without a job or a limit; at least one, so that a job too short says so.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    from chorale.runners.process_launch.slurm import seconds_left  # noqa: PLC0415 - only jobs pay for it
    from chorale.synth.errors import Unavailable  # noqa: PLC0415 - as above

    try:
        left_s = seconds_left()
    except Unavailable as error:
        _log.warning("the end of this job is not known: %s", error)
        return None
    if left_s is None:
        return None
    stop_s = max(1.0, left_s - _reserve_s())
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, stop_s)
    return stop_s


def _reserve_s() -> float:
    text = os.environ.get(STOP_VARIABLE, "")
    return float(text) if text.replace(".", "", 1).isdigit() else DEFAULT_STOP_S
