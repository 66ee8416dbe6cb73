"""A launch with a Ray cluster of its own runs in a child process, as Ray ends the process that loses its cluster.

The parent waits, hands on signals, and begins the same command again, with --resume, when Ray has ended the child.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from chorale.tuner.cli.output import print_error

MAX_RESTARTS = 5
LOST_CLUSTER_CODE = 75
"""Exit code of a child that says itself that its cluster is lost; Ray ends it with 1."""
_RESTARTS = "CHORALE_RESTARTS"
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEADLY = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)
_PR_SET_PDEATHSIG = 1
_ENDED = b"."


def go_on_in_child(address: str | None) -> None:
    """Return in a child process; the parent ends with its exit code.

    Does nothing where the cluster belongs to others, or where this process is not the command line itself.
    """
    if address or os.environ.get("RAY_ADDRESS") or sys.platform != "linux" or not _is_command():
        return
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _begin_as_child(parent, writer)
        return
    os.close(writer)
    status = _wait(child)
    ended_by_itself = os.read(reader, 1) == _ENDED
    code = os.waitstatus_to_exitcode(status)
    if not ended_by_itself and (code >= 0 or -code in _DEADLY):
        _begin_again(code)
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


def is_child() -> bool:
    """Whether a parent waits to begin this command again."""
    return _is_child


_is_child = False


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
        os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    return os.waitpid(child, 0)[1]


def _begin_again(code: int) -> None:
    """Replace this process by the same command with --resume, at most `MAX_RESTARTS` times."""
    restarts = int(os.environ.get(_RESTARTS, "0"))
    if restarts >= MAX_RESTARTS:
        print_error(f"the Ray cluster was lost {restarts + 1} times; see `chorale doctor`, then go on with --resume")
        os._exit(3)
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    print_error(f"{show_cursor}the Ray cluster was lost (exit code {code}): it is started again, the launch goes on")
    os.environ[_RESTARTS] = str(restarts + 1)
    words = sys.orig_argv[1:]
    os.execv(sys.executable, [sys.executable, *words, *([] if "--resume" in words else ["--resume"])])  # noqa: S606
