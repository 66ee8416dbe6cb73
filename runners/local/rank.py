"""The program of a rank process, and of the launcher: a process without threads that starts and ends all others.

The runner starts the launcher with `python -m`, because a process with threads must not fork. The launcher reads its
task from its control socket, reports every child that dies, and kills and reaps all children when that socket closes,
no matter how the runner ended.
"""

import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from chorale.runners.engine.library import Engine, load_library
from chorale.runners.execution.rank_part import FramedSocket, Message, RankMemory, RankParts, SocketRank, be_rank
from chorale.runners.fabric.namespaces import enter_namespaces
from chorale.runners.plans.rank_plans import RankPlans
from chorale.synth.collective import Collective, CollectiveName


class LocalRank(SocketRank[RankParts]):
    """Executes the local runner's commands in the process of one rank, in addition to the commands of `SocketRank`.

    listen   address at which to listen for other ranks              -> listening, with the address to connect to
    gloo     file and network device for Gloo's collectives          -> joined
    load     the rank's part of every program and all addresses      -> loaded
    """

    def __init__(self, control: FramedSocket, engine: Engine, plans: RankPlans, rank: int, ranks: int) -> None:
        def listen(command: Message) -> Message:
            return {"answer": "listening", "address": engine.listen(command["address"])}

        def join(command: Message) -> Message:
            from chorale.runners.execution.torch_collectives import join_gloo  # noqa: PLC0415 - only if requested

            join_gloo(rank, ranks, command["store"], command["interface"])
            return {"answer": "joined"}

        parts = RankParts(engine, rank, _run_gloo, plans)
        super().__init__(control, parts, listen=listen, gloo=join, load=self._load)
        self._engine, self._plans = engine, plans

    def _load(self, command: Message) -> Message:
        self._parts.load(command["part"])
        self._plans.unload()
        if plans := self._parts.plans:
            self._plans.load(Path(command["plans"]), plans)
        limit_s = max(0.0, command["deadline"] - time.monotonic())
        self._engine.connect(command["addresses"], bytes.fromhex(command["token"]), limit_s)
        return {"answer": "loaded"}


def _run_gloo(_: int, collective: Collective, memory: RankMemory, start_s: float, __: float) -> None:
    from chorale.runners.execution import torch_collectives as torch  # noqa: PLC0415 - only if requested

    source, target = torch.tensor_of(memory.input), torch.tensor_of(memory.output)
    if collective.name is CollectiveName.REDUCE_SCATTER:
        source = source.clone()  # Gloo changes it
    time.sleep(max(0.0, start_s - time.monotonic()))
    torch.run_collective(collective, source, target)


NETWORK = -1
"""Number of the process that emulates the network. Every other process has its rank as its number."""

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def main(arguments: Sequence[str]) -> None:
    """Run the launcher. `arguments` are file descriptors of control sockets: its own, the network's and the ranks'."""
    streams = [socket.socket(fileno=int(text)) for text in arguments]
    channel = FramedSocket(streams[0])
    task = channel.receive()
    if task is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    memory = os.memfd_create("chorale-plans")  # shared by all ranks that execute plans; grows when needed
    load_library(Path(task["library"]))
    if task["uses_gloo"]:
        import chorale.runners.execution.torch_collectives  # noqa: F401, PLC0415 - once, before ranks are forked
    wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    children = _start_children(streams, task | {"memory": memory}, (wake_read, wake_write))
    try:
        channel.send({"pids": [pid for pid, rank in children.items() if rank != NETWORK]})
        while (
            channel.fileno() not in select.select([channel.fileno(), wake_read], [], [])[0]
        ):  # until the runner has ended
            os.read(wake_read, 4096)
            for pid, status in [os.waitpid(pid, os.WNOHANG) for pid in children]:
                if pid:
                    channel.send({"died": children.pop(pid), "code": os.waitstatus_to_exitcode(status)})
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _start_children(streams: Sequence[socket.socket], task: Message, wake: tuple[int, int]) -> dict[int, int]:
    """Start the ranks, then the emulated network, if any. Return process id -> rank or NETWORK, in this order."""
    _, network, *controls = streams
    launcher = os.getpid()
    children: dict[int, int] = {}
    for number, control in [*enumerate(controls), *([(NETWORK, network)] if task["network"] is not None else [])]:
        pid = os.fork()
        if pid == 0:
            # Close other processes' descriptors, so that the end of every socket is noticed.
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
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # also ends a stopped rank, which cannot see its sockets close
    prctl(_PR_SET_TIMERSLACK, 1000)  # nanoseconds (default: 50,000): runs must start within a microsecond
    if os.getppid() != launcher:
        os._exit(1)


def _serve_as_rank(channel: FramedSocket, rank: int, ranks: int, task: Message) -> None:
    if task["namespaces"]:
        launcher = os.getppid()
        enter_namespaces(tuple(task["namespaces"][rank]))
        _live_no_longer_than(launcher)  # entering namespaces has cancelled PDEATHSIG
    engine, plans = Engine(rank, ranks, Path(task["library"])), RankPlans(rank, ranks, task["memory"])
    LocalRank(channel, engine, plans, rank, ranks).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
