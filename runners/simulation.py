"""Exact replay of a program on a network of alpha-beta links."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from runners.connections import Connection, Paths
from runners.link_model import Ticks
from synth.lowering.program import QUEUE_DEPTH, Program, ThreadBlock
from synth.topology.topology import Topology


class Message(NamedTuple):
    """A message before a link: links serve in order of these fields. `whole_at`: when its last byte will be there."""

    ready: int
    connection: Connection
    number: int
    hop: int
    chunks: int
    whole_at: int


@dataclass(slots=True)
class _Queue:
    """A connection: its path, and how many of its messages were sent, have arrived and were taken."""

    path: tuple[int, ...]
    sender: int
    receiver: int
    sent: int = 0
    arrived: int = 0
    taken: int = 0


@dataclass(slots=True)
class _Link:
    free_at: int = 0
    waiting: list[Message] = field(default_factory=list)


class Stuck(NamedTuple):
    """Where a block waits for something that never happens."""

    rank: int
    block: int
    step: int
    reason: str


class Simulation:
    """One execution of `program` on `topology`.

    Blocks are sequential; local work takes no time. A send holds its block until the message has left the
    rank, and waits while the protocol's queue depth is used up by messages not yet taken. A link serves one
    message at a time, in the order in which they were ready, ties by connection. On a path of several links
    a message flows on as it comes in (cut-through) and is there when its last byte has passed every link.
    The result depends on nothing but the arguments. O(messages * log messages).
    """

    def __init__(self, program: Program, topology: Topology, ticks: Ticks) -> None:
        self._program = program
        self._ticks = ticks
        self._depth = QUEUE_DEPTH[program.protocol]
        self._now = self._last = 0
        self._blocks = [(rank, number) for rank, part in enumerate(program.ranks) for number in range(len(part.blocks))]
        self._ids = {place: block_id for block_id, place in enumerate(self._blocks)}
        self._finished = [0] * len(self._blocks)
        self._is_sending = [False] * len(self._blocks)
        self._waiters: dict[int, list[int]] = {}
        self._runnable: deque[int] = deque(range(len(self._blocks)))
        self._links = [_Link() for _ in range(len(topology.links))]
        self._touched: set[int] = set()
        self._queues = self._open_queues(Paths(topology))
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0

    def run(self) -> int:
        """Return the ticks until the last block finished, or went as far as it could (see `stuck`)."""
        while True:
            while self._runnable:
                self._run_block(self._runnable.popleft())
            for link in sorted(self._touched):
                self._serve(link)
            self._touched.clear()
            if not self._events:
                return self._last
            self._now = self._events[0][0]
            while self._events and self._events[0][0] == self._now:
                heapq.heappop(self._events)[2]()

    def stuck(self) -> list[Stuck]:
        """Return the blocks that did not finish."""
        found = []
        for block_id, (rank, number) in enumerate(self._blocks):
            block = self._block(block_id)
            if self._finished[block_id] < len(block.instructions):
                found.append(Stuck(rank, number, self._finished[block_id], self._obstacle(block_id) or ""))
        return found

    def _open_queues(self, paths: Paths) -> dict[Connection, _Queue]:
        senders, receivers = {}, {}
        for block_id, (rank, _) in enumerate(self._blocks):
            block = self._block(block_id)
            if block.send_peer is not None:
                senders[Connection(rank, block.send_peer, block.channel)] = block_id
            if block.recv_peer is not None:
                receivers[Connection(block.recv_peer, rank, block.channel)] = block_id
        return {c: _Queue(paths.path(c) or (), senders[c], receivers[c]) for c in senders}

    def _block(self, block_id: int) -> ThreadBlock:
        rank, number = self._blocks[block_id]
        return self._program.ranks[rank].blocks[number]

    def _run_block(self, block_id: int) -> None:
        block, (rank, _) = self._block(block_id), self._blocks[block_id]
        while not self._is_sending[block_id] and self._finished[block_id] < len(block.instructions):
            if self._obstacle(block_id) is not None:
                return
            step = block.instructions[self._finished[block_id]]
            if step.op.receives and block.recv_peer is not None:
                queue = self._queues[Connection(block.recv_peer, rank, block.channel)]
                queue.taken += 1
                self._runnable.append(queue.sender)
            if step.op.sends and block.send_peer is not None:
                self._is_sending[block_id] = True
                self._post(Connection(rank, block.send_peer, block.channel), step.count)
            else:
                self._finish(block_id)

    def _obstacle(self, block_id: int) -> str | None:
        """Return what the next step of a block waits for, None if it can start."""
        block, (rank, _) = self._block(block_id), self._blocks[block_id]
        step = block.instructions[self._finished[block_id]]
        for wait in step.waits:
            other = self._ids[rank, wait.block]
            if self._finished[other] <= wait.step:
                self._waiters.setdefault(other, []).append(block_id)
                return f"{step.op} waits for block {wait.block} instruction {wait.step}"
        if step.op.receives and block.recv_peer is not None:
            queue = self._queues[Connection(block.recv_peer, rank, block.channel)]
            if queue.arrived <= queue.taken:
                return f"{step.op} waits for a message from rank {block.recv_peer}"
        if step.op.sends and block.send_peer is not None:
            queue = self._queues[Connection(rank, block.send_peer, block.channel)]
            if queue.sent - queue.taken >= self._depth:
                return f"{step.op} waits for rank {block.send_peer} to take one of {self._depth} messages"
        return None

    def _finish(self, block_id: int) -> None:
        self._finished[block_id] += 1
        self._last = self._now
        self._runnable.extend(self._waiters.pop(block_id, ()))

    def _post(self, connection: Connection, chunks: int) -> None:
        queue = self._queues[connection]
        queue.sent += 1
        self._wait_for_link(Message(self._now, connection, queue.sent, 0, chunks, self._now))

    def _wait_for_link(self, message: Message) -> None:
        link = self._queues[message.connection].path[message.hop]
        heapq.heappush(self._links[link].waiting, message)
        self._touched.add(link)

    def _serve(self, link_id: int) -> None:
        """Let the next message onto the link, if it is free."""
        link = self._links[link_id]
        if not link.waiting or link.free_at > self._now:
            return
        message = heapq.heappop(link.waiting)
        duration = self._ticks.alpha + message.chunks * self._ticks.chunk[link_id]
        link.free_at = max(self._now + duration, message.whole_at)
        self._at(link.free_at, partial(self._touched.add, link_id))
        queue, latency = self._queues[message.connection], self._ticks.latency[link_id]
        if message.hop == 0:
            self._at(link.free_at, partial(self._left, queue.sender))
        if message.hop + 1 < len(queue.path):
            onward = message._replace(ready=self._now + latency, hop=message.hop + 1, whole_at=link.free_at + latency)
            self._at(onward.ready, partial(self._wait_for_link, onward))
        else:
            self._at(link.free_at + latency, partial(self._arrive, queue))

    def _left(self, block_id: int) -> None:
        self._is_sending[block_id] = False
        self._finish(block_id)
        self._runnable.append(block_id)

    def _arrive(self, queue: _Queue) -> None:
        queue.arrived += 1
        self._runnable.append(queue.receiver)

    def _at(self, time: int, action: Callable[[], None]) -> None:
        self._event_number += 1
        heapq.heappush(self._events, (time, self._event_number, action))
