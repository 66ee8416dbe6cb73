"""A launch with a Ray cluster of its own runs in a child process, as Ray ends the process that loses its cluster.

The parent, which has imported everything and started nothing, waits, hands on signals, and forks another child that
resumes when the cluster of the first is lost: nothing has to be imported again.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from chorale.tuner.cli.output import print_error
from chorale.tuner.cli.signals import STOP_SIGNALS

MAX_RESTARTS = 5
LOST_CLUSTER_CODE = 75
"""Exit code of a child that says itself that its cluster is lost; Ray ends it with 1."""
_FORWARDED = (signal.SIGINT, signal.SIGHUP, *STOP_SIGNALS)
_DEADLY = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
_PR_SET_PDEATHSIG = 1
_ENDED = b"."


def go_on_in_child(address: str | None) -> bool:
    """Return in a child process, with whether a former one lost its cluster; the parent ends with its exit code.

    All that is imported before is there for every child at once. Does nothing where the cluster belongs to others, or
    where this process is not the command line itself.
    """
    if address or os.environ.get("RAY_ADDRESS") or sys.platform != "linux" or not _is_command():
        return False
    for losses in range(MAX_RESTARTS + 1):
        if (code := _code_of_child()) is None:
            return losses > 0
        if _stop_signals:  # a scheduler signals all processes of a job, those of Ray too
            print_error("interrupted; what was finished is kept, go on with --resume")
            os._exit(130)
        if losses < MAX_RESTARTS:
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
            print_error(
                f"{show_cursor}the Ray cluster was lost (exit code {code}): it is started again, the launch goes on"
            )
    print_error(f"the Ray cluster was lost {MAX_RESTARTS + 1} times; see `chorale doctor`, then go on with --resume")
    os._exit(3)


def _code_of_child() -> int | None:
    """Return None in a new child, and in the parent the exit code of one that lost its cluster.

    The parent ends with any other.
    """
    sys.stdout.flush()
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _begin_as_child(parent, writer)
        return None
    os.close(writer)
    status = _wait(child)
    ended_by_itself = os.read(reader, 1) == _ENDED
    os.close(reader)
    code = os.waitstatus_to_exitcode(status)
    if ended_by_itself or (code < 0 and -code not in _DEADLY):
        os._exit(code if code >= 0 else 128 - code)
    return code


def is_child() -> bool:
    """Whether a parent waits to begin this command again."""
    return _is_child


_is_child = False
_stop_signals: list[int] = []


def _is_command() -> bool:
    program = Path(sys.argv[0])
    return program.name == "chorale" or (program.name, program.parent.name) == ("__main__.py", "chorale")


def _begin_as_child(parent: int, writer: int) -> None:
    global _is_child  # noqa: PLW0603 - a fact about this process
    _is_child = True
    os.setpgid(0, 0)  # else ctrl-C would arrive twice: from the terminal and from the parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    atexit.register(os.write, writer, _ENDED)  # not called where Ray ends the process


def _wait(child: int) -> int:
    def forward(number: int, _frame: FrameType | None) -> None:
        _stop_signals.append(number)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    status = os.waitpid(child, 0)[1]
    for number, handler in before.items():  # the next child begins with them
        signal.signal(number, handler or signal.SIG_DFL)
    return status
