"""Turns a plan of one-sided operations into messages with dependencies, for the flow-level simulation."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import NamedTuple

import numpy as np

from chorale.runners.api.programs import Connection, ConnectionPaths
from chorale.runners.simulated.program_flows import ProgramFlows, ProgramTrace, Stuck
from chorale.synth.programs.plans.moves import MoveMaker, pieces_of_a_chunk, unrolled
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind, Operand, Operation, PlanBlock
from chorale.synth.programs.program import AnyProgram, Message, Program
from chorale.synth.schedule.schedule import Routes
from chorale.synth.simulation.simulate import FlowTimes, MessageGraph, NetworkModel
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class PlanPrices:
    """The latencies of a plan's operations in seconds, in addition to the time of bytes on the links.

    packets, port_packets: time until the receiver sees packets that threads have written, or that a port has written
    put:                   time until chunks written by threads have arrived
    read:                  time until the data of a read, or a switch's result, have arrived (a round trip)
    signal, relaxed:       time until the receiver sees a signal in memory, with and without ordering of earlier writes
    port:                  time until the receiver sees a signal, or a put with signal, through a port
    launch, packet_launch: time to start a call that uses signals, or one that uses packets

    The defaults are based on what NCCL 2.27 assumes per step (src/graph/tuning.cc): for LL 0.6 us on NVLink and 2.7 us
    on the network, for Simple 3.4 us and 14 us. Starting a call takes 6.6 us with packets (as for LL) and 8.4 us with
    signals (as for Simple). A read takes twice as long as a step of LL.
    The defaults are meant for ranking kinds of plans and have not been measured with MSCCL++.
    """

    packets: float = 0.6e-6
    port_packets: float = 2.7e-6
    put: float = 0.6e-6
    read: float = 1.2e-6
    signal: float = 2.8e-6
    relaxed: float = 0.6e-6
    port: float = 14e-6
    launch: float = 8.4e-6
    packet_launch: float = 6.6e-6

    def of_move(self, operation: Operation) -> float:
        """Return the latency of the data that `operation` moves between ranks."""
        if operation.kind == "port":
            if operation.action.packets:
                return self.port_packets
            return self.port if operation.action.signals else self.put
        if operation.action.packets:
            return self.packets
        reads = any(each.remote is not None or each.switch is not None for each in operation.sources)
        return self.read if reads or operation.kind == "switch" else self.put

    def of_signal(self, operation: Operation) -> float:
        """Return the latency of the signal that `operation` sends. It is 0 for a put with signal, because `of_move`
        includes it there."""
        if operation.action.moves:
            return 0.0
        if operation.kind == "port":
            return self.port
        return self.relaxed if operation.action is Action.RELAXED_SIGNAL else self.signal


FREE = PlanPrices(*(0.0,) * 9)


def priced(program: AnyProgram, model: NetworkModel) -> tuple[PlanPrices, NetworkModel]:
    """Return the latencies of `program`'s operations, and the network model for its messages.

    For a plan, if `model` has no alpha, operations have latencies and links have none. Otherwise, operations have none.
    """
    if not program.one_sided or model.alpha_s:
        return FREE, model
    return PlanPrices(), replace(model, link_latency_s=Fraction(0), hop_s=Fraction(0))


class PlanMessages:
    """Finds the messages that the operations of `plan` send on `topology`.

    A group of ranks uses a switch if the switch supports the operation and has links to and from all of them. The
    switch then reads each rank's chunks once and returns their sum, or sends one rank's chunks to all ranks, including
    that rank. Without such a switch, chunks go directly between the rank and each other rank of the group. Message
    sizes are counted in parts of chunks (`parts` per chunk), so that they are integers.
    """

    def __init__(self, plan: ExecutionPlan, topology: Topology) -> None:
        self._plan, self._topology = plan, topology
        links = topology.links
        operations = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
        self.parts = lcm(*{operation.part[1] for operation in operations})
        self._joined = set(zip(links.src.tolist(), links.dst.tolist(), strict=True))

    def of_operation(self, rank: int, block: PlanBlock, operation: Operation) -> list[Message]:
        """Return the messages of an operation in a block on `rank`; a sender or receiver may be a switch."""
        whole = replace(operation, part=(0, 1))
        share = self.parts // operation.part[1]
        if operation.kind != "switch" or not operation.action.moves:
            return [each._replace(chunks=each.chunks * share) for each in self._plan.puts(rank, block, whole)]
        found: list[Message] = []
        for operands, reads in ((operation.sources, True), (operation.targets, False)):
            for operand in operands:
                if operand.switch is not None:
                    found += self._through_switch(rank, block, operation, operand, reads)
        return found

    def all(self) -> Iterator[tuple[Connection, int]]:
        """Yield the connection and the size (in parts of chunks) of every message. O(operations)."""
        for rank, body in enumerate(self._plan.ranks):
            for block in body.blocks:
                for operation in block.every_operation():
                    for *ends, chunks in self.of_operation(rank, block, operation):
                        yield Connection(*ends), chunks

    def _through_switch(
        self, rank: int, block: PlanBlock, operation: Operation, operand: Operand, reads: bool
    ) -> list[Message]:
        group = self._plan.ranks[rank].switches[block.switches[operand.switch or 0]][1]
        flags = 2 if operation.action.packets else 1
        chunks = operand.count * flags * (self.parts // operation.part[1])
        fitting = (
            switch
            for switch, ability in sorted(self._topology.abilities.items())
            if (ability.reduce if reads else ability.multicast)
            and all({(peer, switch), (switch, peer)} <= self._joined for peer in group)
        )
        switch = next(fitting, None)
        if switch is None:
            others = (peer for peer in group if peer != rank)
            return [Message(*((peer, rank) if reads else (rank, peer)), 0, chunks) for peer in others]
        if reads:
            return [*(Message(peer, switch, 0, chunks) for peer in group), Message(switch, rank, 0, chunks)]
        return [Message(rank, switch, 0, chunks), *(Message(switch, peer, 0, chunks) for peer in group)]


class _Put(NamedTuple):
    """A message that operation number `step` of a block sends.

    gate:    number of the gate whose opening starts the message, see `MessageGraph`
    chunks:  size in parts of chunks
    is_read: whether the block waits until the data have arrived, as it does for reads and switch operations
    delay_s: latency in addition to the time on the links
    """

    connection: Connection
    block: int
    step: int
    gate: int
    chunks: int
    is_read: bool
    delay_s: float


class _Signal(NamedTuple):
    """A signal between two ranks. `end` is (receiving rank, its channel); `MessageGraph` explains `gate`."""

    end: tuple[int, int]
    kind: Kind
    gate: int
    delay_s: float


_End = tuple[int, int, Kind]
"""One end of a channel: (rank, number of the channel within the rank, channel kind)."""


class PlanFlows:
    """Builds the flow graph of `plan` on `topology`. The caller must have checked that `topology` can run `plan`.

    `prices` are the operations' latencies. Blocks are sequential. A put occupies its block until the data have left the
    rank; a read or a switch operation occupies its block until the data have arrived. A waiting block continues when
    the signal and the data that were put before the signal have arrived, or when its packets have arrived. A pipeline
    is not split into parts. Semaphores, barriers and local work take no time. Message sizes are in chunks. Signals with
    a latency are messages without chunks and links; their numbers follow those of the puts.
    """

    def __init__(self, plan: ExecutionPlan, topology: Topology, prices: PlanPrices = FREE) -> None:
        self._plan, self._prices = plan, prices
        self._messages = PlanMessages(plan, topology)
        self._blocks = [
            (rank, index, block) for rank, body in enumerate(plan.ranks) for index, block in enumerate(body.blocks)
        ]
        self._steps = [list(unrolled(block, 1)) for _, _, block in self._blocks]
        self._first = np.cumsum([0, *(len(steps) for steps in self._steps)]).tolist()
        self.puts = [
            _Put(
                Connection(*ends), index, step, self._first[number] + gate, chunks,
                ends[0] != rank or operation.kind == "switch", prices.of_move(operation),
            )
            for number, (rank, index, block) in enumerate(self._blocks)
            for gate, (step, operation, *_) in enumerate(self._steps[number])
            for *ends, chunks in self._messages.of_operation(rank, block, operation)
        ]  # fmt: skip
        self._told = [signal for number in range(len(self._blocks)) for signal in self._signals(number)]
        paths = ConnectionPaths(topology)
        connections = sorted({put.connection for put in self.puts})
        self._routes = Routes.of_paths([*(paths.path(connection) or () for connection in connections), ()])
        numbers = {connection: number for number, connection in enumerate(connections)}
        self._route = np.array([numbers[put.connection] for put in self.puts], dtype=np.int64)
        self._chunks = np.array([put.chunks for put in self.puts], dtype=np.float64) / self._messages.parts
        cause, effect = np.array(sorted(self._edges()), dtype=np.int64).reshape(-1, 2).T
        silent = len(self._told)
        route = np.concatenate([self._route, np.full(silent, len(connections))])
        chunks = np.concatenate([self._chunks, np.zeros(silent)])
        delay_s = np.array([*(put.delay_s for put in self.puts), *(signal.delay_s for signal in self._told)])
        self.graph = MessageGraph(self._routes, route, chunks, self._first[-1], cause, effect, delay_s)

    def trace(self, times: FlowTimes) -> ProgramTrace:
        """Return every message with its times; `times` are those of `graph`."""
        columns = [(*put.connection, put.block, put.step, put.gate) for put in self.puts]
        src, dst, channel, block, step, gate = np.array(columns, dtype=np.int64).reshape(-1, 6).T
        start_s, puts = times.opened_s[gate], slice(len(self.puts))
        order = np.lexsort((block, src, start_s))
        launch_s = self._prices.packet_launch if self._plan.settings.packets else self._prices.launch
        return ProgramTrace(
            src[order], dst[order], channel[order], block[order], step[order], np.zeros(len(order), dtype=np.bool_),
            self._route[order], self._chunks[order], start_s[order], times.departed_s[puts][order],
            times.arrived_s[puts][order], self._routes, times.end_s + launch_s,
        )  # fmt: skip

    def stuck(self, times: FlowTimes) -> list[Stuck]:
        """Return the blocks that did not finish, and what each waits for."""
        found = []
        for number, (rank, index, _) in enumerate(self._blocks):
            closed = np.flatnonzero(np.isnan(times.opened_s[self._first[number] : self._first[number + 1]]))
            if len(closed):
                step = int(closed[0])
                at = self._steps[number][step]
                found.append(Stuck(rank, index, at.number, f"{at.operation.action.value} never ends"))
        return found

    def _signals(self, number: int) -> list[_Signal]:
        """Return the signals of block number `number` that have a latency, one per channel, in the block's order."""
        rank, _, block = self._blocks[number]
        return [
            _Signal(self._plan.other_end(rank, block.channels_of(operation.kind)[local], operation.kind),
                    operation.kind, self._first[number] + gate, self._prices.of_signal(operation))
            for gate, (_, operation, *_) in enumerate(self._steps[number])
            for local in (operation.channels if operation.action.signals and self._prices.of_signal(operation) else ())
        ]  # fmt: skip

    def _edges(self) -> set[tuple[int, int]]:
        """Return the graph's (cause, effect) pairs. Events have the numbers that `MessageGraph` defines."""
        gates = self._first[-1]
        of_gate: dict[int, list[int]] = defaultdict(list)
        for message, put in enumerate(self.puts):
            of_gate[put.gate].append(message)
        starts = [*(put.gate for put in self.puts), *(signal.gate for signal in self._told)]
        edges = {(gate, gates + message) for message, gate in enumerate(starts)}
        for number in range(len(self._blocks)):
            gate_range = range(self._first[number], self._first[number + 1] - 1)
            for gate in gate_range:  # an operation ends when its data have left or, if it reads, have arrived
                ends = [self._arrival + m if self.puts[m].is_read else gates + m for m in of_gate[gate]]
                edges |= {(cause, gate + 1) for cause in ends or [gate]}
        packets = self._packet_edges(of_gate)
        return edges | self._signal_edges(of_gate) | self._semaphore_edges() | self._barrier_edges() | packets

    @property
    def _arrival(self) -> int:
        """Return the event number of the first message's arrival. The arrivals of the other messages follow it."""
        return int(self._first[-1]) + len(self.puts) + len(self._told)

    def _signal_edges(self, of_gate: dict[int, list[int]]) -> set[tuple[int, int]]:
        """Return edges to each wait, from the peer's signal and from the arrival of data put before that signal."""
        signals: dict[_End, list[list[int]]] = defaultdict(list)
        told = iter(range(self._arrival + len(self.puts), self._arrival + len(self.puts) + len(self._told)))
        waits_at: dict[_End, list[int]] = defaultdict(list)
        for number, (rank, _, block) in enumerate(self._blocks):
            put: dict[int, list[int]] = defaultdict(list)
            for step, (_, operation, *_) in enumerate(self._steps[number]):
                gate = self._first[number] + step
                for message in of_gate[gate] if not all(self.puts[m].is_read for m in of_gate[gate]) else ():
                    put[self.puts[message].connection.dst].append(self._arrival + message)
                for local in operation.channels if operation.action.signals or operation.action.waits else ():
                    own = block.channels_of(operation.kind)[local]
                    peer, other = self._plan.other_end(rank, own, operation.kind)
                    if operation.action.signals:
                        heard = next(told) if self._prices.of_signal(operation) else gate
                        signals[peer, other, operation.kind].append([heard, *put.pop(peer, [])])
                    else:
                        waits_at[rank, own, operation.kind].append(gate)
        return {
            (cause, gate)
            for end, waits in waits_at.items()
            for causes, gate in zip(signals[end], waits, strict=False)
            for cause in causes
        }

    def _packet_edges(self, of_gate: dict[int, list[int]]) -> set[tuple[int, int]]:
        """Return edges to each operation that reads packets, from the packets' arrival or, if they were written on the
        same rank, from the operation that wrote them.
        """
        pieces = pieces_of_a_chunk(self._plan, 1)
        maker, arrival = MoveMaker(self._plan, pieces), self._arrival
        written: dict[tuple[int, int], list[int]] = defaultdict(list)
        taken: list[tuple[tuple[int, int], int]] = []
        for number, (rank, _, block) in enumerate(self._blocks):
            for step, (_, operation, repeat, _) in enumerate(self._steps[number]):
                gate = self._first[number] + step
                for move in maker.moves(rank, block, operation, repeat) if operation.action.packets else ():
                    for each in move.packets:
                        sent = [arrival + m for m in of_gate[gate] if self.puts[m].connection.dst == each.rank]
                        for piece in range(each.first, each.first + each.count):
                            written[each.rank, piece] += sent or [gate]
                    taken += [((e.rank, e.first + piece), gate) for e in move.takes for piece in range(e.count)]
        return {(cause, gate) for slot, gate in taken for cause in written[slot] if cause != gate}

    def _barrier_edges(self) -> set[tuple[int, int]]:
        """Return the barriers' edges: a block continues when all its barrier's blocks have reached the same round."""
        met: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for number, (rank, _, _) in enumerate(self._blocks):
            rounds: Counter[int] = Counter()
            for step, (_, operation, *_) in enumerate(self._steps[number]):
                if operation.barrier is not None:
                    met[rank, operation.barrier[0], rounds[operation.barrier[0]]].append(self._first[number] + step)
                    rounds[operation.barrier[0]] += 1
        ends = set(self._first[1:])
        return {(a, b + 1) for gates in met.values() for a in gates for b in gates if a != b and b + 1 not in ends}

    def _semaphore_edges(self) -> set[tuple[int, int]]:
        released: dict[tuple[int, int], list[int]] = defaultdict(list)
        acquired: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (rank, _, _) in enumerate(self._blocks):
            for step, (_, operation, *_) in enumerate(self._steps[number]):
                gates_of = released if operation.action is Action.RELEASE else acquired
                for semaphore in operation.semaphores:
                    gates_of[rank, semaphore].append(self._first[number] + step)
        edges: set[tuple[int, int]] = set()
        for (rank, semaphore), gates in acquired.items():
            late = gates[self._plan.ranks[rank].semaphores[semaphore] :]
            edges |= set(zip(released[rank, semaphore], late, strict=False))
        return edges


def flows_of(
    program: AnyProgram, topology: Topology, loops: int = 1, slices: int = 1, prices: PlanPrices = FREE
) -> PlanFlows | ProgramFlows:
    """Return the flow graph of a checked program or plan.

    loops, slices: see `ProgramFlows`; must be 1 for a plan
    prices:        latencies of operations, used for plans only
    """
    if isinstance(program, ExecutionPlan):
        return PlanFlows(program, topology, prices)
    assert isinstance(program, Program)
    return ProgramFlows(program, topology, loops, slices)
