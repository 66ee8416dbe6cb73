"""Stops a command cleanly on signals and before its Slurm job ends. Also hides passwords in the command's arguments."""

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chorale.synth.errors import printable
from chorale.synth.redaction import redacted

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
STOP_VARIABLE = "CHORALE_STOP_S"
"""Environment variable, set by Chorale's batch scripts: seconds before the end of a job at which its command stops."""

DEFAULT_STOP_S = 60.0
_log = logging.getLogger("chorale.slurm")
_ARGUMENTS_START, _ARGUMENTS_END = 47, 48
"""Indices of the fields of /proc/self/stat with the start and end addresses of the arguments that `ps` shows."""


@contextmanager
def stopping_in_order() -> Iterator[None]:
    """Make STOP_SIGNALS raise KeyboardInterrupt in the `with` block. Do nothing outside the main thread."""
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
    """Let the first signal of STOP_SIGNALS raise KeyboardInterrupt. Later signals do not interrupt the cleanup."""
    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)


def interrupt(number: int, frame: object) -> None:
    """Signal handler: raise KeyboardInterrupt, and ignore all further STOP_SIGNALS and alarms."""
    for each in (*STOP_SIGNALS, signal.SIGALRM):
        # With SIG_IGN, Python would print a traceback for a second signal that arrived together with the first one
        signal.signal(each, lambda _number, _frame: None)
        signal.siginterrupt(each, False)
    raise KeyboardInterrupt


def stop_before_the_job_ends() -> float | None:
    """Schedule a clean stop of this process before its Slurm job ends. `STOP_VARIABLE` says how many seconds before.

    Returns the seconds until the stop (at least 1), or None without a job or a known time limit.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return None
    from chorale.runners.process_launch.slurm import seconds_left  # noqa: PLC0415 - only jobs need it
    from chorale.synth.errors import Unavailable  # noqa: PLC0415 - as above

    try:
        left_s = seconds_left()
    except Unavailable as error:
        _log.warning("the end of this job is not known: %s", error)
        return None
    if left_s is None:
        return None
    text = os.environ.get(STOP_VARIABLE, "")
    stop_s = max(1.0, left_s - (float(text) if text.replace(".", "", 1).isdigit() else DEFAULT_STOP_S))
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, stop_s)
    return stop_s


def hide_passwords() -> None:
    """Overwrite passwords in the arguments that `ps` shows to other users. `sys.argv` keeps the passwords.

    Works only on Linux. The passwords are visible for some tenths of a second while Python starts. Passwords in
    MLFLOW_TRACKING_URI, CHORALE_STORAGE or the campaign file are never visible.
    """
    with suppress(OSError, ValueError, IndexError):
        shown = Path("/proc/self/cmdline").read_bytes()
        hidden = b"\0".join(_masked(word) for word in shown.split(b"\0"))
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[_ARGUMENTS_START - 2]), int(fields[_ARGUMENTS_END - 2])
        if hidden != shown and start and end - start == len(shown) == len(hidden):
            ctypes.memmove(start, hidden, len(hidden))


def _masked(word: bytes) -> bytes:
    """Return an argument with `*` instead of its password, without changing the length of the argument."""
    text = os.fsdecode(word)
    clean = os.fsencode(redacted(text))
    if clean == word:
        return word
    head, _, tail = clean.partition(b"***")
    room = len(word) - len(head) - len(tail)
    return head + b"*" * room + tail if room >= 0 else b"*" * len(word)


def print_error(message: str) -> None:
    """Print one line on stderr, even with --quiet."""
    text = message.encode(errors="backslashreplace").decode()  # names from the command line may not be valid UTF-8
    sys.stderr.write(f"chorale: {printable(redacted(text))}\n")
