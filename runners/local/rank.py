"""The process of one rank, and the launcher: a clean process that starts the network and the ranks, and outlives none.

The runner starts the launcher with `python -m`, because a process with threads must not fork. It reads its task from
its control socket, reports every child that dies, and kills and reaps all of them when that socket closes, whatever
ended the runner.
"""

import ctypes
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from chorale.runners.engine.library import Engine, load_library
from chorale.runners.execution.rank_part import FramedSocket, Message, RankMemory, RankParts, SocketRank, be_rank
from chorale.runners.fabric.namespaces import enter_namespaces
from chorale.runners.plans.rank_plans import RankPlans
from chorale.synth.collective import Collective

MATRIX_SIDE = 128


class ComputeLoad:
    """Computes in its own thread while a collective runs.

    It multiplies integer matrices, which uses no threads of a linear algebra library and releases Python's lock.
    """

    def __init__(self) -> None:
        self._matrix = np.arange(MATRIX_SIDE * MATRIX_SIDE, dtype=np.int64).reshape(MATRIX_SIDE, MATRIX_SIDE) % 7
        self._thread: threading.Thread | None = None
        self._end_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Return whether requested products may still be unfinished."""
        return self._thread is not None

    def start(self, matrix_products: int) -> None:
        """Begin to compute; nothing for none. One load at a time."""
        if matrix_products > 0:
            self._thread = threading.Thread(target=self._compute, args=(matrix_products,), daemon=True)
            self._thread.start()

    def wait(self) -> float:
        """Return when the last load was done, as time of `time.monotonic`; wait until it is. 0 before the first one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        return self._end_s

    def _compute(self, products: int) -> None:
        result = np.empty_like(self._matrix)
        for _ in range(products):
            np.matmul(self._matrix, self._matrix, out=result)
        self._end_s = time.monotonic()


class LocalRank(SocketRank[RankParts]):
    """One rank of the local runner. Commands in addition to those of every rank:

        listen   where other ranks can reach this one directly           -> listening, with the address
        gloo     where the ranks meet for Gloo's collectives             -> joined
        load     the rank's part of every program, and all addresses     -> loaded

    `prepare` also gives the computation to do during the run; the run ends when both have ended.
    """

    def __init__(self, control: FramedSocket, engine: Engine, plans: RankPlans, rank: int, ranks: int) -> None:
        super().__init__(control, RankParts(engine, rank, _run_gloo, plans))
        self._engine, self._plans, self._rank, self._ranks = engine, plans, rank, ranks
        self._load_beside = ComputeLoad()
        self._commands |= {
            "listen": lambda command: {"answer": "listening", "address": engine.listen(command["address"])},
            "gloo": self._join_gloo,
            "load": self._load,
        }

    def _join_gloo(self, command: Message) -> Message:
        from chorale.runners.local import gloo  # noqa: PLC0415 - only where somebody asks for it

        gloo.join_group(self._rank, self._ranks, command["store"], command["interface"])
        return {"answer": "joined"}

    def _load(self, command: Message) -> Message:
        self._parts.load(command["programs"])
        self._plans.close()
        if plans := self._parts.plans:
            self._plans.load(Path(command["plans"]), plans)
        limit_s = max(0.0, command["deadline"] - time.monotonic())
        self._engine.connect(command["addresses"], bytes.fromhex(command["token"]), limit_s)
        return {"answer": "loaded"}

    def _go(self, command: Message) -> Message | None:
        if self._task["products"] > 0:
            _wait_until(command["at"])
            self._load_beside.start(self._task["products"])
        answer = super()._go(command)
        return answer and {**answer, "end": max(answer["end"], self._load_beside.wait())}


def _run_gloo(_: int, collective: Collective, memory: RankMemory, start_s: float, __: float) -> None:
    from chorale.runners.local import gloo  # noqa: PLC0415 - only where somebody asks for it

    _wait_until(start_s)
    gloo.run_collective(collective, memory.input, memory.output)


def _wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


NETWORK = -1
"""Stands for the network process, if that and no rank has died."""

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def main(arguments: Sequence[str]) -> None:
    """Serve as the launcher: `arguments` are descriptors of the control sockets: its own, the network's, the ranks'."""
    streams = [socket.socket(fileno=int(text)) for text in arguments]
    channel = FramedSocket(streams[0])
    task = channel.receive()
    if task is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
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
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _start_children(streams: Sequence[socket.socket], task: Message, wake: tuple[int, int]) -> dict[int, int]:
    """Return process id -> rank, in the order of the ranks."""
    _, network, *controls = streams
    launcher = os.getpid()
    children: dict[int, int] = {}
    for number, control in [*enumerate(controls), *([(NETWORK, network)] if task["network"] is not None else [])]:
        pid = os.fork()
        if pid == 0:
            # Close descriptors of other processes, so that the end of every socket is noticed.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream in streams:
                if stream is not control:
                    stream.close()
            for descriptor in wake:
                os.close(descriptor)
            _live_no_longer_than(launcher)
            if number == NETWORK:
                program, name = task["network"]
                try:
                    os.execv(program, [program, str(control.fileno()), name])  # noqa: S606 - our own program
                finally:
                    os._exit(1)
            channel = FramedSocket(control)
            be_rank(channel, partial(_serve_as_rank, channel, number, len(controls), task))
        children[pid] = number
    for stream in streams[1:]:
        stream.close()
    return children


def _live_no_longer_than(launcher: int) -> None:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a second belt: a stopped rank cannot see its sockets close
    prctl(_PR_SET_TIMERSLACK, 1000)  # nanoseconds; starts are due to the microsecond, the default is 50
    if os.getppid() != launcher:
        os._exit(1)


def _serve_as_rank(channel: FramedSocket, rank: int, ranks: int, task: Message) -> None:
    if task["namespaces"]:
        launcher = os.getppid()
        enter_namespaces(tuple(task["namespaces"][rank]))
        _live_no_longer_than(launcher)  # new rights undo it
    engine, plans = Engine(rank, ranks, Path(task["library"])), RankPlans(rank, ranks, task["memory"])
    LocalRank(channel, engine, plans, rank, ranks).serve()


def _supervise(channel: FramedSocket, children: dict[int, int], wake: int) -> None:
    """Report each child that ends; return when the runner is gone."""
    while True:
        readable, _, _ = select.select([channel.fileno(), wake], [], [])
        if channel.fileno() in readable:
            return
        os.read(wake, 4096)
        for pid, status in [os.waitpid(pid, os.WNOHANG) for pid in children]:
            if pid:
                channel.send({"died": children.pop(pid), "code": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main(sys.argv[1:])
