"""The launcher: a clean process that starts the network and one process per rank, and outlives none of them.

The runner starts it with `python -m`, because a process with threads must not fork. It reads its task from
its control socket, reports every child that dies, and kills and reaps all of them when that socket closes,
whatever ended the runner.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from chorale.runners.engine.library import Engine, load_library
from chorale.runners.local.framing import FramedSocket, Message
from chorale.runners.local.namespaces import enter_namespaces
from chorale.runners.local.rank import LocalRank
from chorale.runners.plans.rank_plans import RankPlans

NETWORK = -1
"""Who has died, where it is no rank."""

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def main(arguments: Sequence[str]) -> None:
    """Serve as the launcher: `arguments` are descriptors of the control sockets: its own, the network's, the ranks'."""
    streams = [socket.socket(fileno=int(text)) for text in arguments]
    channel = FramedSocket(streams[0])
    task = channel.receive()
    if task is None:
        return
    _allow_many_descriptors()
    memory = os.memfd_create("chorale-plans")  # what ranks share when they execute plans; it grows as they need
    load_library(Path(task["library"]))
    if task["uses_gloo"]:
        import chorale.runners.local.gloo  # noqa: F401, PLC0415 - torch is imported once, before ranks are forked
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children = _start_children(streams, task | {"memory": memory}, (wake_read, wake_write))
    try:
        channel.send({"pids": [pid for pid, rank in children.items() if rank != NETWORK]})
        _supervise(channel, children, wake_read)
    finally:
        _kill(children)


def _start_children(streams: Sequence[socket.socket], task: Message, wake: tuple[int, int]) -> dict[int, int]:
    """Return process id -> rank, in the order of the ranks."""
    _, network, *controls = streams
    children: dict[int, int] = {}

    def start(number: int, control: socket.socket, live: Callable[[], NoReturn]) -> None:
        launcher = os.getpid()
        pid = os.fork()
        if pid == 0:
            _forget_launcher([stream for stream in streams if stream is not control], wake)
            _live_no_longer_than(launcher)
            live()
        children[pid] = number

    for rank, control in enumerate(controls):
        start(rank, control, lambda rank=rank, control=control: _be_rank(control, rank, len(controls), task))  # type: ignore[misc]
    if task["network"] is not None:
        start(NETWORK, network, lambda: _be_network(network, task))
    for stream in streams[1:]:
        stream.close()
    return children


def _forget_launcher(streams: Sequence[socket.socket], wake: tuple[int, int]) -> None:
    """In a new child: let go of what belongs to others, so that every end of file is noticed."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in streams:
        stream.close()
    for descriptor in wake:
        os.close(descriptor)


def _live_no_longer_than(launcher: int) -> None:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a second belt: a stopped rank cannot see its sockets close
    prctl(_PR_SET_TIMERSLACK, 1000)  # nanoseconds; starts are due to the microsecond, the default is 50
    if os.getppid() != launcher:
        os._exit(1)


def _be_network(control: socket.socket, task: Message) -> NoReturn:
    program, name = task["network"]
    try:
        os.execv(program, [program, str(control.fileno()), name])  # noqa: S606 - our own program
    finally:
        os._exit(1)


def _be_rank(control: socket.socket, rank: int, ranks: int, task: Message) -> NoReturn:
    """Serve as a rank, then end this process without returning into the launcher's code."""
    code = 1
    channel = FramedSocket(control)
    try:
        if task["namespaces"]:
            launcher = os.getppid()
            enter_namespaces(tuple(task["namespaces"][rank]))
            _live_no_longer_than(launcher)  # new rights undo it
        engine, plans = Engine(rank, ranks, Path(task["library"])), RankPlans(rank, ranks, task["memory"])
        LocalRank(channel, engine, plans, rank, ranks).serve()
        code = 0
    except Exception as error:  # whatever it was, the runner hears of it
        with contextlib.suppress(OSError):
            channel.send({"answer": "error", "message": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def _supervise(channel: FramedSocket, children: dict[int, int], wake: int) -> None:
    """Report each child that ends; return when the runner is gone."""
    while True:
        readable, _, _ = select.select([channel.fileno(), wake], [], [])
        if channel.fileno() in readable:
            return
        os.read(wake, 4096)
        for pid, status in _ended(children):
            rank = children.pop(pid)
            channel.send({"died": rank, "code": os.waitstatus_to_exitcode(status)})


def _ended(children: dict[int, int]) -> list[tuple[int, int]]:
    """Return (process id, wait status) of the children that have ended, and reap them."""
    found = (os.waitpid(pid, os.WNOHANG) for pid in children)
    return [(pid, status) for pid, status in found if pid]


def _kill(children: dict[int, int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _allow_many_descriptors() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
