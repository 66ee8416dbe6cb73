"""The launcher: a clean process that makes the links, forks one process per node and outlives none of them.

The runner starts it with `python -m`, because a process with threads must not fork. It reads its task from
its control socket, reports every node that dies, and kills and reaps all of them when that socket closes,
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
from collections.abc import Iterable, Sequence
from typing import NoReturn

from chorale.runners.local.framing import FramedSocket
from chorale.runners.local.node import NodeProcess

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def main(arguments: Sequence[str]) -> None:
    """Serve as the launcher: `arguments` are the descriptors of its own control socket and of the nodes'."""
    control, *node_controls = (socket.socket(fileno=int(text)) for text in arguments)
    channel = FramedSocket(control)
    task = channel.receive()
    if task is None:
        return
    _allow_many_descriptors()
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children = _fork_nodes(control, node_controls, task["links"], (wake_read, wake_write))
    try:
        channel.send({"pids": list(children)})
        _supervise(channel, children, wake_read)
    finally:
        _kill(children)


def _fork_nodes(
    control: socket.socket, node_controls: list[socket.socket], links: list[tuple[int, int]], wake: tuple[int, int]
) -> dict[int, int]:
    """Return process id -> node, in the order of the nodes."""
    pairs = {link: socket.socketpair() for link, (src, dst) in enumerate(links) if src != dst}
    streams = [*node_controls, *(end for pair in pairs.values() for end in pair)]
    launcher = os.getpid()
    children: dict[int, int] = {}
    for node, node_control in enumerate(node_controls):
        pid = os.fork()
        if pid == 0:
            incoming = [pair[1] for link, pair in pairs.items() if links[link][1] == node]
            outgoing = {link: pair[0] for link, pair in pairs.items() if links[link][0] == node}
            kept = {node_control, *incoming, *outgoing.values()}
            _forget_launcher([*(s for s in streams if s not in kept), control], wake, launcher)
            _be_node(node_control, incoming, outgoing)
        children[pid] = node
    for stream in streams:
        stream.close()
    return children


def _forget_launcher(streams: Iterable[socket.socket], wake: tuple[int, int], launcher: int) -> None:
    """In a new child: let go of what belongs to others, so that every end of file is noticed."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for stream in streams:
        stream.close()
    for descriptor in wake:
        os.close(descriptor)
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a second belt: a stopped node cannot see its sockets close
        prctl(_PR_SET_TIMERSLACK, 1000)  # nanoseconds; links are due to the microsecond, the default is 50
    if os.getppid() != launcher:
        os._exit(1)


def _be_node(control: socket.socket, incoming: list[socket.socket], outgoing: dict[int, socket.socket]) -> NoReturn:
    """Serve as a node, then end this process without returning into the launcher's code."""
    code = 1
    channel = FramedSocket(_low(control))
    try:
        NodeProcess(channel, [_low(s) for s in incoming], {link: _low(s) for link, s in outgoing.items()}).serve()
        code = 0
    except Exception as error:  # whatever it was, the runner hears of it
        with contextlib.suppress(OSError):
            channel.send({"answer": "error", "message": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(code)


def _low(stream: socket.socket) -> socket.socket:
    """Return `stream` under the lowest free descriptor, because `select` takes none above 1023."""
    low = stream.dup()
    stream.close()
    low.setblocking(False)
    return low


def _supervise(channel: FramedSocket, children: dict[int, int], wake: int) -> None:
    """Report each child that ends; return when the runner is gone."""
    while True:
        readable, _, _ = select.select([channel.fileno(), wake], [], [])
        if channel.fileno() in readable:
            return
        os.read(wake, 4096)
        for pid, status in _ended(children):
            node = children.pop(pid)
            channel.send({"died": node, "code": os.waitstatus_to_exitcode(status)})


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
