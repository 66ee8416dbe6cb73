"""Turns a plan of one-sided operations into messages with dependencies, for the flow-level simulation."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from chorale.runners.api.connections import Connection, ConnectionPaths
from chorale.runners.simulated.program_trace import ProgramTrace, Stuck
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operation, PlanBlock
from chorale.synth.schedule.schedule import Routes
from chorale.synth.simulation.flow_simulation import FlowTimes, MessageGraph
from chorale.synth.topology.topology import Topology


class _Put(NamedTuple):
    """A message: who puts how many chunks where, in which operation, which is gate `gate`."""

    connection: Connection
    block: int
    step: int
    gate: int
    chunks: int


class PlanFlows:
    """The flow graph of `plan` on `topology`, which must have been checked for each other.

    Blocks are sequential; a put holds its block until the data have left the rank, and what a signal after it tells
    is known when they have arrived. Signals, semaphores and local work take no time by themselves. Amounts are chunks.
    """

    def __init__(self, plan: ExecutionPlan, topology: Topology) -> None:
        self._plan = plan
        self._blocks = [
            (rank, index, block) for rank, body in enumerate(plan.ranks) for index, block in enumerate(body.blocks)
        ]
        self._first = np.cumsum([0, *(len(block.operations) for _, _, block in self._blocks)]).tolist()
        self._ends = [[plan.other_end(rank, n) for n in range(len(body.peers))] for rank, body in enumerate(plan.ranks)]
        self.puts = [put for number in range(len(self._blocks)) for put in self._puts(number)]
        paths = ConnectionPaths(topology)
        connections = sorted({put.connection for put in self.puts})
        self._routes = Routes.of_paths(paths.path(connection) or () for connection in connections)
        numbers = {connection: number for number, connection in enumerate(connections)}
        self._route = np.array([numbers[put.connection] for put in self.puts], dtype=np.int64)
        self._chunks = np.array([put.chunks for put in self.puts], dtype=np.int64)
        cause, effect = np.array(sorted(self._edges()), dtype=np.int64).reshape(-1, 2).T
        self.graph = MessageGraph(self._routes, self._route, self._chunks, self._first[-1], cause, effect)

    def trace(self, times: FlowTimes) -> ProgramTrace:
        """Return every message with its times; `times` are those of `graph`."""
        columns = [(*put.connection, put.block, put.step, put.gate) for put in self.puts]
        src, dst, channel, block, step, gate = np.array(columns, dtype=np.int64).reshape(-1, 6).T
        start_s = times.opened_s[gate]
        order = np.lexsort((block, src, start_s))
        return ProgramTrace(
            src[order], dst[order], channel[order], block[order], step[order], np.zeros(len(order), dtype=np.bool_),
            self._route[order], self._chunks[order].astype(np.float64), start_s[order], times.departed_s[order],
            times.arrived_s[order], self._routes, times.end_s,
        )  # fmt: skip

    def stuck(self, times: FlowTimes) -> list[Stuck]:
        """Return the blocks that did not finish, and what each waits for."""
        found = []
        for number, (rank, index, block) in enumerate(self._blocks):
            closed = np.flatnonzero(np.isnan(times.opened_s[self._first[number] : self._first[number + 1]]))
            if len(closed):
                step = int(closed[0])
                found.append(Stuck(rank, index, step, f"{block.operations[step].action.value} never ends"))
        return found

    def _puts(self, number: int) -> list[_Put]:
        rank, index, block = self._blocks[number]
        return [
            _Put(Connection(*ends), index, step, self._first[number] + step, chunks)
            for step, operation in enumerate(block.operations)
            for *ends, chunks in self._plan.puts(rank, block, operation)
        ]

    def _edges(self) -> set[tuple[int, int]]:
        """Return the (cause, effect) pairs of the graph, by the numbers of events in `MessageGraph`."""
        gates, messages = self._first[-1], len(self.puts)
        of_gate: dict[int, list[int]] = defaultdict(list)
        for message, put in enumerate(self.puts):
            of_gate[put.gate].append(message)
        edges = {(put.gate, gates + message) for message, put in enumerate(self.puts)}
        signals: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
        waits_at: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (rank, _, block) in enumerate(self._blocks):
            unsignalled: dict[int, list[int]] = defaultdict(list)
            for step, operation in enumerate(block.operations):
                gate = self._first[number] + step
                done = [gates + message for message in of_gate[gate]] or [gate]
                if step + 1 < len(block.operations):
                    edges |= {(cause, gate + 1) for cause in done}
                for message in of_gate[gate]:
                    unsignalled[self.puts[message].connection.dst].append(gates + messages + message)
                for channel in self._channels(block, operation):
                    if operation.action is Action.SIGNAL:
                        signals[self._ends[rank][channel]].append(
                            [gate, *unsignalled.pop(self._ends[rank][channel][0], [])]
                        )
                    elif operation.action is Action.WAIT:
                        waits_at[rank, channel].append(gate)
        for end, waits in waits_at.items():
            edges |= {(cause, gate) for causes, gate in zip(signals[end], waits, strict=False) for cause in causes}
        return edges | self._semaphore_edges()

    def _semaphore_edges(self) -> set[tuple[int, int]]:
        released: dict[tuple[int, int], list[int]] = defaultdict(list)
        acquired: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, (rank, _, block) in enumerate(self._blocks):
            for step, operation in enumerate(block.operations):
                gates_of = released if operation.action is Action.RELEASE else acquired
                for semaphore in operation.semaphores:
                    gates_of[rank, semaphore].append(self._first[number] + step)
        edges: set[tuple[int, int]] = set()
        for (rank, semaphore), gates in acquired.items():
            late = gates[self._plan.ranks[rank].semaphores[semaphore] :]
            edges |= set(zip(released[rank, semaphore], late, strict=False))
        return edges

    def _channels(self, block: PlanBlock, operation: Operation) -> list[int]:
        return [block.channels[local] for local in operation.channels]
