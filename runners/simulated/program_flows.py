"""Turns a program into messages with dependencies, for the flow-level simulation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.runners.api.programs import Connection, ConnectionPaths
from chorale.synth.programs.program import QUEUE_DEPTH, Instruction, Op, Program, ThreadBlock
from chorale.synth.schedule.schedule import Routes
from chorale.synth.simulation.simulate import FlowTimes, MessageGraph
from chorale.synth.topology.topology import Topology

TraceIndices = NDArray[np.integer[Any]]
Seconds = NDArray[np.float64]
Indices = NDArray[np.int64]
_ADDING = frozenset({Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND})


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTrace:
    """A table of a program's messages: columns with one entry per message, ordered by start time, sender and block.

    src, dst, channel: the message's connection
    block, step:       the sender's instruction; step counts from 0 within the block
    adds:              whether the receiver adds the message to its data
    route:             index of the message's path in `routes`
    chunks:            message size in the program's chunks
    start_s:           start of the sender's instruction (the message leaves alpha later)
    left_s, arrived_s: when the message's last byte left the sender, and when it arrived
    end_s:             when the program ended
    """

    src: TraceIndices
    dst: TraceIndices
    channel: TraceIndices
    block: TraceIndices
    step: TraceIndices
    adds: NDArray[np.bool_]
    route: TraceIndices
    chunks: NDArray[np.float64]
    start_s: Seconds
    left_s: Seconds
    arrived_s: Seconds
    routes: Routes
    end_s: float

    def __len__(self) -> int:
        return len(self.src)


class Stuck(NamedTuple):
    """A block that waits for an event that never happens."""

    rank: int
    block: int
    step: int
    reason: str


class _Edges(NamedTuple):
    cause: Indices
    effect: Indices


class ProgramFlows:
    """Builds the flow graph of `program` on `topology`. The caller must have checked that `topology` can run `program`.

    Blocks are sequential; local work takes no time. A send occupies its block until the message has left the rank. It
    starts only when the connection's queue has room; the protocol determines the queue's depth.

    loops:  number of times that every block runs its instructions, each time on an equal part of every chunk
    slices: number of equal messages into which an instruction splits its data; queues hold `slices` times as many
            messages
    Message sizes are in units of 1 / (loops * slices) chunk.
    """

    def __init__(self, program: Program, topology: Topology, loops: int = 1, slices: int = 1) -> None:
        self._program, self._loops, self._slices = program, loops, slices
        self._blocks = [
            (rank, number, block) for rank, part in enumerate(program.ranks) for number, block in enumerate(part.blocks)
        ]
        lengths = [len(block.instructions) * slices for _, _, block in self._blocks]
        self._first = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._ids = {(rank, number): index for index, (rank, number, _) in enumerate(self._blocks)}
        self._sends, self._takes = self._ends()
        # A gate opens when a part of an instruction starts. `_message[gate]` is the number of its message, or -1.
        self._message = np.full(self._first[-1], -1, dtype=np.int64)
        for number, gate in enumerate(np.sort(np.concatenate([np.zeros(0, np.int64), *self._sends.values()]))):
            self._message[gate] = number
        self.graph = self._graph(ConnectionPaths(topology))

    def stuck(self, times: FlowTimes) -> list[Stuck]:
        """Return the blocks that did not finish, and what each waits for."""
        opened = ~np.isnan(times.opened_s).reshape(self._loops, -1)
        found = []
        for index, (rank, number, block) in enumerate(self._blocks):
            closed = np.argwhere(~opened[:, self._first[index] : self._first[index + 1]])
            if len(closed):
                loop, part = closed[0].tolist()
                step = block.instructions[part // self._slices]
                reason = self._obstacle(opened[loop], rank, block, step, int(self._first[index]) + part)
                found.append(Stuck(rank, number, part // self._slices, reason))
        return found

    def trace(self, times: FlowTimes) -> ProgramTrace:
        """Return every message with its times. `times` are those of `graph`, all of whose events must have happened."""
        gates = np.flatnonzero(self._message >= 0)
        message = np.arange(self.graph.messages)
        gate, loop = gates[message % len(gates)], message // max(1, len(gates))
        start_s = times.opened_s[gate + loop * len(self._message)]
        block = np.searchsorted(self._first, gate, side="right") - 1
        step = (gate - self._first[block]) // self._slices
        src, dst, channel = np.array(list(self._sends), dtype=np.int64).reshape(-1, 3)[self.graph.route].T
        number = np.array([number for _, number, _ in self._blocks], dtype=np.int64)[block]
        flags = [step.op in _ADDING for _, _, block in self._blocks for step in block.instructions]
        adds_at, adds = np.repeat(np.array(flags, dtype=bool), self._slices), np.zeros(self._messages_of_a_loop, bool)
        for connection, gates_of in self._sends.items():
            adds[self._message[gates_of]] = adds_at[self._takes[connection]]
        adds, order = np.tile(adds, self._loops), np.lexsort((number, src, start_s))
        return ProgramTrace(
            src[order], dst[order], channel[order], number[order], step[order], adds[order], self.graph.route[order],
            self.graph.amount[order] / (self._loops * self._slices),
            start_s[order], times.departed_s[order], times.arrived_s[order], self.graph.routes, times.end_s,
        )  # fmt: skip

    def _ends(self) -> tuple[dict[Connection, Indices], dict[Connection, Indices]]:
        """Return two mappings: connection -> gates of the instructions that send on it, and of those that receive."""
        sends: dict[Connection, Indices] = {}
        takes: dict[Connection, Indices] = {}
        for index, (rank, _, block) in enumerate(self._blocks):
            if block.send_peer is not None:
                flags = [step.op.sends for step in block.instructions]
                sends[Connection(rank, block.send_peer, block.channel)] = self._gates_where(index, flags)
            if block.recv_peer is not None:
                flags = [step.op.receives for step in block.instructions]
                takes[Connection(block.recv_peer, rank, block.channel)] = self._gates_where(index, flags)
        return dict(sorted(sends.items())), takes

    def _gates_where(self, index: int, flags: list[bool]) -> Indices:
        gates: Indices = self._first[index] + np.flatnonzero(np.repeat(np.array(flags, dtype=bool), self._slices))
        return gates

    def _graph(self, paths: ConnectionPaths) -> MessageGraph:
        routes = Routes.of_paths(paths.path(connection) or () for connection in self._sends)
        count = int((self._message >= 0).sum())
        route, amount = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        steps = [step for _, _, block in self._blocks for step in block.instructions]
        counts = np.repeat([step.count for step in steps], self._slices)
        for number, gates in enumerate(self._sends.values()):
            route[self._message[gates]] = number
            amount[self._message[gates]] = counts[gates]
        edges = [*self._block_edges(), *self._queue_edges()]
        cause = np.concatenate([edge.cause for edge in edges])
        effect = np.concatenate([edge.effect for edge in edges])
        loops = self._loops
        return MessageGraph(routes, np.tile(route, loops), np.tile(amount, loops), self._gates, cause, effect)

    @property
    def _gates(self) -> int:
        return len(self._message) * self._loops

    @property
    def _messages_of_a_loop(self) -> int:
        return int(self._message.max(initial=-1)) + 1

    def _block_edges(self) -> Iterator[_Edges]:
        """Yield the edges between parts of instructions in a rank's blocks: the first part must end before the second
        starts. A block starts a loop only after its previous loop has ended.
        """
        pairs = []
        for index, (rank, _, block) in enumerate(self._blocks):
            first = int(self._first[index])
            pairs += [(gate - 1, gate) for gate in range(first + 1, int(self._first[index + 1]))]
            for number, step in enumerate(block.instructions):
                for wait in step.waits:
                    awaited = int(self._first[self._ids[rank, wait.block]]) + (wait.step + 1) * self._slices - 1
                    pairs.append((awaited, first + number * self._slices))
        before, after = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        sending = np.flatnonzero(self._message >= 0)
        for loop in range(self._loops):
            offset = loop * len(self._message)
            yield _Edges(self._done(before, loop), after + offset)
            yield _Edges(sending + offset, self._gates + loop * self._messages_of_a_loop + self._message[sending])
            if loop:
                busy = np.flatnonzero(np.diff(self._first))
                yield _Edges(self._done(self._first[busy + 1] - 1, loop - 1), self._first[busy] + offset)

    def _queue_edges(self) -> Iterator[_Edges]:
        """Yield the edges that make receivers wait for messages to arrive, and senders wait while a queue is full."""
        depth = QUEUE_DEPTH[self._program.protocol] * self._slices
        for connection, gates in self._sends.items():
            offsets = np.repeat(np.arange(self._loops), len(gates))
            send = np.tile(gates, self._loops) + offsets * len(self._message)
            message = np.tile(self._message[gates], self._loops) + offsets * self._messages_of_a_loop
            take = np.tile(self._takes[connection], self._loops) + offsets * len(self._message)
            yield _Edges(self._gates + self._messages_of_a_loop * self._loops + message, take)
            yield _Edges(take[:-depth], send[depth:])

    def _done(self, gates: Indices, loop: int) -> Indices:
        """Return each gate's end event: the departure of its message or, if it has no message, the gate's opening."""
        messages = self._message[gates]
        left = self._gates + loop * self._messages_of_a_loop + messages
        return np.where(messages >= 0, left, gates + loop * len(self._message))

    def _obstacle(self, opened: NDArray[np.bool_], rank: int, block: ThreadBlock, step: Instruction, gate: int) -> str:
        for wait in step.waits:
            index = self._ids[rank, wait.block]
            if not opened[self._first[index] + (wait.step + 1) * self._slices - 1]:
                return f"{step.op} waits for block {wait.block} instruction {wait.step}"
        if step.op.receives and block.recv_peer is not None:
            connection = Connection(block.recv_peer, rank, block.channel)
            place = int(np.flatnonzero(self._takes[connection] == gate)[0])
            if not opened[self._sends[connection][place]]:
                return f"{step.op} waits for a message from rank {block.recv_peer}"
        depth = QUEUE_DEPTH[self._program.protocol]
        return f"{step.op} waits for rank {block.send_peer} to take one of {depth} messages"
