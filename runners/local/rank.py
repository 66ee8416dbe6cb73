"""The process of one rank, and the launcher: a clean process that starts the network and the ranks, and outlives none.

The runner starts the launcher with `python -m`, because a process with threads must not fork. It reads its task from
its control socket, reports every child that dies, and kills and reaps all of them when that socket closes, whatever
ended the runner.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from chorale.runners.engine.library import Engine, EngineError, load_library
from chorale.runners.execution.rank_part import RankMemory, RankParts, is_silent
from chorale.runners.plans.rank_plans import RankPlans
from chorale.synth.collective import Collective

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_MAX_BYTES = 2**30


class FramedSocket:
    """One end of a control socket: length-prefixed JSON, nothing executable.

    `deadline` is a time of `time.monotonic()`; passing it raises TimeoutError.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self.fileno, self.close = stream.fileno, stream.close

    def send(self, document: Message, deadline: float | None = None) -> None:
        """Write `document`. Raises OSError when the other end is gone."""
        body = json.dumps(document, separators=(",", ":")).encode()
        self._limit(deadline)
        self._stream.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, deadline: float | None = None) -> Message | None:
        """Return the next document, None when the other end is gone."""
        head = self._read(_LENGTH.size, deadline)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        if length > _MAX_BYTES:
            raise ConnectionError(f"control message of {length} bytes")
        body = self._read(length, deadline)
        return None if body is None else dict(json.loads(body))

    def _read(self, length: int, deadline: float | None) -> bytes | None:
        content = bytearray(length)
        view = memoryview(content)
        while view:
            self._limit(deadline)
            try:
                count = self._stream.recv_into(view)
            except ConnectionResetError:
                return None
            if count == 0:
                return None
            view = view[count:]
        return bytes(content)

    def _limit(self, deadline: float | None) -> None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError
        self._stream.settimeout(remaining)


MATRIX_SIDE = 128


class ComputeLoad:
    """Computes beside a collective on request, in a thread of its own.

    Products of whole numbers: no linear algebra library with threads of its own takes part, and the interpreter is
    free while they are computed.
    """

    def __init__(self) -> None:
        self._matrix = np.arange(MATRIX_SIDE * MATRIX_SIDE, dtype=np.int64).reshape(MATRIX_SIDE, MATRIX_SIDE) % 7
        self._thread: threading.Thread | None = None
        self._end_s = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether products that were asked for may not be computed yet."""
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


class LocalRank:
    """One rank. Commands arrive on `control`, each with its answer:

    listen   where other ranks reach this one, if they do directly        -> listening, at which address
    ports    a name at which to listen for the ports of plans             -> listening
    gloo     where the ranks meet for Gloo's collectives                  -> joined
    load     the rank's part of every program, and where the others are   -> loaded
    prepare  a program, a size, fresh data and what to compute            -> ready
    go       the time at which to start, and the limit                    -> done with the time of the end of both
    check    whether every element is right                               -> checked
    trace    what each step of the last run took, if it was to be traced  -> traced
    status   what the blocks of a run that came to the limit waited for   -> blocked

    End of file on `control` ends the process. Where a run fails for what others did, there is no answer: they answer.
    """

    def __init__(self, control: FramedSocket, engine: Engine, plans: RankPlans, rank: int, ranks: int) -> None:
        self._control, self._engine, self._plans = control, engine, plans
        self._rank, self._ranks = rank, ranks
        self._parts = RankParts(engine, rank, _run_gloo, plans)
        self._load_beside = ComputeLoad()
        self._task: Message = {"program": 0, "products": 0}

    def serve(self) -> None:
        """Work until the runner is gone."""
        gc.disable()  # no pauses while links are timed; a run leaves no cycles behind
        gc.freeze()  # what the launcher imported need not be looked at again for each run
        commands: dict[str, Callable[[Message], Message | None]] = {
            "listen": lambda command: {"answer": "listening", "address": self._engine.listen(command["address"])},
            "ports": self._listen_for_ports,
            "gloo": self._join_gloo,
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
            "check": lambda _: {"answer": "checked", "complaint": self._parts.complaint()},
            "trace": lambda _: {"answer": "traced", "trace": self._parts.trace()},
            "status": lambda _: {
                "answer": "blocked", "program": self._task["program"], "blocks": self._parts.blocked
            },
        }  # fmt: skip
        while (command := self._control.receive()) is not None:
            try:
                answer = commands[command["do"]](command)
            except EngineError as error:
                if not is_silent(error):
                    raise
                answer = None
            if answer is not None:
                self._control.send(answer)

    def _listen_for_ports(self, command: Message) -> Message:
        self._plans.listen(command["names"][self._rank])
        return {"answer": "listening"}

    def _join_gloo(self, command: Message) -> Message:
        from chorale.runners.local import gloo  # noqa: PLC0415 - only where somebody asks for it

        gloo.join_group(self._rank, self._ranks, command["store"], command["interface"])
        return {"answer": "joined"}

    def _load(self, command: Message) -> Message:
        self._parts.load(command["programs"])
        self._plans.close()
        if plans := self._parts.plans:
            self._plans.load(Path(command["plans"]), plans)
        if command["ports"]:
            self._plans.connect(command["ports"], command["deadline"])
        limit_s = max(0.0, command["deadline"] - time.monotonic())
        self._engine.connect(command["addresses"], bytes.fromhex(command["token"]), limit_s)
        return {"answer": "loaded"}

    def _prepare(self, command: Message) -> Message:
        self._task = command
        self._parts.prepare(command)
        return {"answer": "ready"}

    def _go(self, command: Message) -> Message | None:
        at_s = command["at"]
        limit_s = max(0.0, command["deadline"] - max(at_s, time.monotonic()))
        if self._task["products"] > 0:
            _wait_until(at_s)
            self._load_beside.start(self._task["products"])
        end_s = self._parts.run(at_s, limit_s)
        return None if end_s is None else {"answer": "done", "end": max(end_s, self._load_beside.wait())}


def _run_gloo(_: int, collective: Collective, memory: RankMemory, start_s: float) -> None:
    from chorale.runners.local import gloo  # noqa: PLC0415 - only where somebody asks for it

    _wait_until(start_s)
    gloo.run_collective(collective, memory.input, memory.output)


def _wait_until(at_s: float) -> None:
    time.sleep(max(0.0, at_s - time.monotonic()))


NETWORK = -1
"""Who has died, where it is no rank."""

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29


def enter_namespaces(files: tuple[str, ...]) -> None:
    """Move this process, which must have one thread, to namespaces: the last is a network's, one before it a user's."""
    kinds = (_CLONE_NEWUSER, _CLONE_NEWNET)[-len(files) :]
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in files]
    setns = ctypes.CDLL(None, use_errno=True).setns
    for descriptor, kind in zip(descriptors, kinds, strict=True):
        if setns(descriptor, kind) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"the namespace of a rank cannot be entered: {os.strerror(error)}")
        os.close(descriptor)


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
            # Let go of what belongs to others, so that every end of file is noticed.
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for stream in streams:
                if stream is not control:
                    stream.close()
            for descriptor in wake:
                os.close(descriptor)
            _live_no_longer_than(launcher)
            if number == NETWORK:
                _be_network(control, task)
            _be_rank(control, number, len(controls), task)
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
        for pid, status in [os.waitpid(pid, os.WNOHANG) for pid in children]:
            if pid:
                channel.send({"died": children.pop(pid), "code": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main(sys.argv[1:])
