"""The process of one node: waits for commands, moves frames, runs programs and, where asked, computes beside them."""

from __future__ import annotations

import gc
import select
import socket
import threading
import time
from collections.abc import Mapping

import numpy as np

from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.execution.interpreter import Interpreter
from chorale.runners.execution.node_plan import NodePlan, decode_plan
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.local.framing import FramedSocket, Message
from chorale.runners.local.links import NEVER, FrameForwarder, FrameSink, IncomingLink, LinkClosed, OutgoingLink

MATRIX_SIDE = 128


class ComputeLoad:
    """Computes on request and makes itself readable when it is done, so that a loop over sockets can wait for it.

    Products of whole numbers: no linear algebra library with threads of its own takes part, and the interpreter is
    free while they are computed.
    """

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._matrix = np.arange(MATRIX_SIDE * MATRIX_SIDE, dtype=np.int64).reshape(MATRIX_SIDE, MATRIX_SIDE) % 7
        self._thread: threading.Thread | None = None

    def fileno(self) -> int:
        return self._here.fileno()

    @property
    def is_busy(self) -> bool:
        """Whether products that were asked for are not computed yet, as far as `settle` knows."""
        return self._thread is not None

    def start(self, matrix_products: int) -> None:
        """Begin to compute; nothing for none. One load at a time."""
        if matrix_products > 0:
            self._thread = threading.Thread(target=self._compute, args=(matrix_products,), daemon=True)
            self._thread.start()

    def settle(self) -> None:
        """Take note that the thread is done; to be called when this is readable."""
        self._here.recv(1)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Close what makes it readable; nothing may be under way."""
        self._here.close()
        self._there.close()

    def _compute(self, products: int) -> None:
        result = np.empty_like(self._matrix)
        for _ in range(products):
            np.matmul(self._matrix, self._matrix, out=result)
        self._there.send(b"\0")


class NodeProcess:
    """One node of the network. Commands arrive on `control`, each with its answer:

    load     plans of the programs and seconds per byte of the links -> loaded
    prepare  a program, a size, fresh data and what to compute       -> ready
    go       the time at which to start                              -> done with the time of the end of both
    check    whether every element is right                          -> checked
    status   what the blocks wait for, answered at any time          -> blocked

    End of file on `control` or on a link ends the process.
    """

    def __init__(
        self, control: FramedSocket, incoming: list[socket.socket], outgoing: Mapping[int, socket.socket]
    ) -> None:
        self._control = control
        self._sinks: dict[int, FrameSink] = {}
        self._outgoing = {link: OutgoingLink(stream) for link, stream in outgoing.items()}
        self._links = list(self._outgoing.values())
        self._incoming = {stream.fileno(): IncomingLink(stream, self._sinks) for stream in incoming}
        self._load_beside = ComputeLoad()
        self._products = 0
        self._readers = [control.fileno(), self._load_beside.fileno(), *self._incoming]
        self._plans: list[NodePlan] = []
        self._memory: RankMemory | None = None
        self._interpreter: Interpreter | None = None
        self._start_at = NEVER
        self._is_running = False
        self._commands = {
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
            "check": self._check,
            "status": self._status,
        }

    def serve(self) -> None:
        """Work until the runner or a neighbour is gone."""
        gc.disable()  # no pauses while links are timed; a run leaves no cycles behind
        try:
            while self._turn():
                pass
        except LinkClosed:
            return

    def _turn(self) -> bool:
        """Sleep until something happens and deal with it; return False when the runner is gone."""
        wake_at, blocked = self._start_at, []
        for link in self._links:
            wake_at = min(wake_at, link.due)
            if link.is_blocked:
                blocked.append(link.stream)
        timeout = None if wake_at == NEVER else max(0.0, wake_at - time.monotonic())
        readable, writable, _ = select.select(self._readers, blocked, (), timeout)
        for descriptor in readable:
            if descriptor in self._incoming:
                self._incoming[descriptor].receive()
            elif descriptor == self._load_beside.fileno():
                self._load_beside.settle()
            elif not self._obey():
                return False
        self._run_blocks()
        now = time.monotonic()
        for link in self._links:
            if link.is_blocked and link.stream in writable:
                link.flush()
            link.pump(now)
        return True

    def _run_blocks(self) -> None:
        if self._interpreter is None:
            return
        if self._start_at <= time.monotonic():
            self._start_at, self._is_running = NEVER, True
            self._load_beside.start(self._products)
            self._interpreter.start()
        elif self._is_running:
            self._interpreter.run()
        if self._is_running and self._interpreter.is_finished and not self._load_beside.is_busy:
            self._is_running = False
            self._control.send({"answer": "done", "end": time.monotonic()})

    def _obey(self) -> bool:
        command = self._control.receive()
        if command is None:
            return False
        self._commands[command["do"]](command)
        return True

    def _load(self, command: Message) -> None:
        self._plans = [decode_plan(plan) for plan in command["plans"]]
        for link, seconds in command["seconds_per_byte"]:
            self._outgoing[link].seconds_per_byte = seconds
        self._control.send({"answer": "loaded"})

    def _prepare(self, command: Message) -> None:
        plan, dtype = self._plans[command["program"]], command["dtype"]
        self._products = command["products"]
        self._memory = self._interpreter = None
        self._sinks.clear()
        gc.collect()

        def post(connection: int, message: memoryview) -> None:
            self._outgoing[plan.outgoing_links[connection]].enqueue(connection, message, time.monotonic())

        if plan.rank is not None:
            limit = ELEMENT_TYPES[dtype].exact_limit
            pattern = DataPattern(plan.ranks, command["run"], command["seed"], limit)
            self._memory = RankMemory(plan, plan.rank, command["elements"], dtype, pattern)
            self._interpreter = Interpreter(plan, self._memory, dtype, post)
            self._sinks.update(self._interpreter.inboxes)
        own = {block.send for block in plan.blocks}
        for connection, link in plan.outgoing_links.items():
            if connection not in own:
                self._sinks[connection] = FrameForwarder(connection, self._outgoing[link], time.monotonic)
        self._control.send({"answer": "ready"})

    def _go(self, command: Message) -> None:
        self._start_at = command["at"] if self._interpreter is not None else NEVER

    def _check(self, command: Message) -> None:
        complaint = None if self._memory is None else self._memory.mismatch()
        self._control.send({"answer": "checked", "complaint": complaint})

    def _status(self, command: Message) -> None:
        blocked = self._interpreter.blocked() if self._interpreter is not None and self._is_running else []
        self._control.send({"answer": "blocked", "blocks": blocked})
