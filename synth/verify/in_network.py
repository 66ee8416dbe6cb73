"""Verification of schedules in which switches act: they add what several ranks send, or send copies to several.

A route may then begin or end at a switch that multicasts or adds. Such a switch is an actor without memory: for every
chunk it hands on one sum, in the step in which all its inputs arrive, or sends the result in the step in which it has
it. Ranks act as in `chorale.synth.verify.verify`. Nothing here shares code with the methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import bytes_per_second
from chorale.synth.verify import in_network_replay as kernels
from chorale.synth.verify.cells import ChunkIntervals, cell_text, row_blocks
from chorale.synth.verify.conditions import ShardConditions, kind_violations, shard_conditions
from chorale.synth.verify.replay import NEVER, add_loads, first_missing
from chorale.synth.verify.verified import Cost, Loads, LoadSummary, ScheduleViolation, cost_of, summarize

MEMORY_BYTES = 2**29

_ROW_FAULTS = {
    kernels.HANDED_ON_TWICE: ("reduced-twice", "hands on a partial sum for the second time"),
    kernels.RESULT_TWICE: ("switch-two-parents", "sends a result to a switch that has it already"),
}
_TIME_FAULTS = {
    kernels.TOO_EARLY: ("sent-before-received", "sends a chunk before it is there"),
    kernels.TOO_LATE: ("reduced-too-late", "adds to a partial sum already handed on"),
    kernels.SENT_ANOTHER_TIME: ("switch-stores", "sends from a switch what it does not get in that step"),
}
_CELL_FAULTS = {
    kernels.INCOMPLETE: ("sum-incomplete", "is not summed up in one place"),
    kernels.STORED: ("switch-stores", "would have to wait at a switch"),
    kernels.EMPTY: ("switch-empty", "is handed on by a switch that gets nothing of it"),
    kernels.CANNOT_ADD: ("switch-cannot-add", "is added by a switch that cannot add"),
    kernels.IN_A_CIRCLE: ("switch-circle", "goes around switches in a circle"),
    kernels.TURNED_TWICE: ("switch-two-parents", "is sent to the switch that sums it up"),
    kernels.LEADS_NOWHERE: ("switch-leaf", "ends at a switch"),
    kernels.CANNOT_COPY: ("switch-cannot-multicast", "is copied by a switch that cannot multicast"),
}


@dataclass(frozen=True, slots=True, eq=False)
class _Actors:
    """Ranks, then the switches that act. of_node: int32 per node, -1 for others;  node: of each switch that acts."""

    ranks: int
    of_node: NDArray[np.int32]
    node: list[int]
    can_add: NDArray[np.bool_]
    can_copy: NDArray[np.bool_]

    @staticmethod
    def of(schedule: Schedule) -> _Actors:
        topology = schedule.topology
        able = topology.abilities
        ranks, switches = topology.compute_count, sorted(able)
        of_node = np.full(topology.node_count, -1, dtype=np.int32)
        of_node[:ranks] = np.arange(ranks)
        of_node[switches] = ranks + np.arange(len(switches))
        can_add = np.array([able[switch].reduce for switch in switches], dtype=np.bool_)
        can_copy = np.array([able[switch].multicast for switch in switches], dtype=np.bool_)
        return _Actors(ranks, of_node, switches, can_add, can_copy)

    def tables(self, cells: int) -> kernels.ActorTables:
        """Return empty tables for so many cells."""
        actors, switches = self.ranks + len(self.node), len(self.node)
        return kernels.ActorTables(
            arrival=np.full((actors, cells), NEVER, dtype=np.uint16),
            handed_on=np.zeros((actors, cells), dtype=np.uint16),
            fed=np.zeros((actors, cells), dtype=np.uint16),
            first_fed=np.zeros((switches, cells), dtype=np.uint16),
            inputs=np.zeros((switches, cells), dtype=np.int32),
            goes_to=np.full((switches, cells), -1, dtype=np.int32),
            comes_from=np.full((switches, cells), -1, dtype=np.int32),
            copies=np.zeros((switches, cells), dtype=np.int32),
        )


def inspect_in_network(
    schedule: Schedule, size_bytes: int | None
) -> tuple[list[ScheduleViolation], tuple[Cost, LoadSummary] | None]:
    """Return what is wrong with `schedule`, or its cost and loads; its structure is sound already.

    O(chunk deliveries), at most about 0.5 GiB of tables at a time. The time per byte is that of the slowest link, or of
    the slowest adder; latencies add up along chains of switches within a step.
    """
    conditions, actors = shard_conditions(schedule), _Actors.of(schedule)
    violations = list(kind_violations(schedule, conditions))
    cells, loads = ChunkIntervals.of(schedule), np.zeros((max(1, schedule.steps), len(schedule.topology.links)), int)
    state = _Replay(schedule, conditions, actors, cells, np.zeros(len(actors.node), dtype=np.int64), loads)
    duplicates = 0
    for first, last in _windows(schedule, actors, cells) if not violations else ():
        try:
            duplicates += state.window(first, last)
        except _FaultError as fault:
            violations.append(fault.violation)
            break
    if violations:
        return violations, None
    state.add_loads()
    return [], (_cost(state, size_bytes), summarize(schedule, loads, duplicates))


class _FaultError(Exception):
    """The first fault of a window."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.violation = ScheduleViolation(rule, message)


def _windows(schedule: Schedule, actors: _Actors, cells: ChunkIntervals) -> Iterator[tuple[int, int]]:
    most = MEMORY_BYTES // (6 * (actors.ranks + len(actors.node)) + 34 * len(actors.node))
    first = 0
    while first < schedule.shard_count:
        last = max(first + 1, int(np.searchsorted(cells.offsets, cells.offsets[first] + most, side="right")) - 1)
        yield first, last
        first = last


@dataclass(slots=True, eq=False)
class _Replay:
    """The replay of one schedule. sums: per switch, chunks that it adds;  path_s: per step, in parts of a second."""

    schedule: Schedule
    conditions: ShardConditions
    actors: _Actors
    cells: ChunkIntervals
    sums: NDArray[np.int64]
    loads: Loads
    path: NDArray[np.int64] | None = None

    def window(self, first: int, last: int) -> int:
        """Replay shards `first` to `last - 1`; return how many chunks ranks get twice. Raises _FaultError."""
        offsets, ranks = self.cells.offsets, self.actors.ranks
        begin, end = int(offsets[first]), int(offsets[last])
        size, counts = self.cells.size[begin:end], np.diff(offsets[first : last + 1])
        tables = self.actors.tables(end - begin)
        for shard in range(first, last):
            if self.conditions.starts[shard] >= 0:
                tables.arrival[self.conditions.starts[shard], offsets[shard] - begin : offsets[shard + 1] - begin] = 0
        duplicates = 0
        for start, rows in self.blocks():
            again, fault, row = kernels.record_rows(rows, first, last, offsets, ranks, tables)
            duplicates += again
            _require_row(_ROW_FAULTS, fault, start + row)
        if self.conditions.reduces:
            ends = np.repeat(self.conditions.sum_ends[first:last], counts)
            settled = kernels.settle_actors(ends, size, ranks, self.actors.can_add, self.sums, tables)
            self.require_cell(settled, begin)
        for start, rows in self.blocks():
            fault, row = kernels.check_actors(rows, first, last, offsets, ranks, tables)
            _require_row(_TIME_FAULTS, fault, start + row)
        if self.conditions.copies:
            self.require_cell(kernels.check_copies(ranks, self.actors.can_copy, tables), begin)
        ends = np.repeat(self.conditions.ends[first:last], counts)
        missing, rank, cell = first_missing(np.ascontiguousarray(tables.arrival[:ranks]), size, ends)
        if missing:
            raise _FaultError(
                "not-delivered", cell_text(self.cells, begin, rank, cell, f"is missing ({missing} in all)")
            )
        if self.schedule.topology.links.latencies_s != (Fraction(0),):
            self.add_latencies(first, last, end - begin)
        return duplicates

    def blocks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield rows with actors in place of nodes."""
        for start, rows in row_blocks(self.schedule, self.cells):
            rows[1:3] = self.actors.of_node[rows[1:3]]
            yield start, rows

    def require_cell(self, result: tuple[int, int, int], begin: int) -> None:
        fault, actor, cell = result
        if fault:
            rule, what = _CELL_FAULTS[fault]
            names, ranks = self.schedule.topology.node_ids, self.actors.ranks
            where = "" if actor < ranks else f", at {names[self.actors.node[actor - ranks]]}"
            raise _FaultError(rule, cell_text(self.cells, begin, actor if actor < ranks else -1, cell, what) + where)

    def add_loads(self) -> None:
        """Add up what links carry in each step."""
        routes, rows = self.schedule.routes, self.schedule.transfers
        columns = (column.astype(np.int32) for column in (rows.step, rows.route, rows.lo, rows.hi))
        step, route, lo, hi = columns
        add_loads(step, route, hi - lo, routes.offsets, routes.link_ids, self.loads)

    def add_latencies(self, first: int, last: int, cells: int) -> None:
        """Find the longest path of each step, through as many switches as there are in a row."""
        of_route = self.schedule.routes.latencies(self.schedule.topology.links)[0].astype(np.int64)
        if self.path is None:
            self.path = np.zeros(max(1, self.schedule.steps), dtype=np.int64)
        upward, downward = (np.zeros((len(self.actors.node), cells), dtype=np.int64) for _ in range(2))
        span = (first, last, self.cells.offsets, self.actors.ranks)
        is_longer = True
        while is_longer:
            is_longer = False
            for start, rows in self.blocks():
                latency = of_route[self.schedule.transfers.route[start : start + rows.shape[1]]]
                is_longer |= kernels.longest_paths(rows, latency, *span, upward, downward, self.path)
            np.maximum(downward, upward, out=downward)


def _require_row(faults: dict[int, tuple[str, str]], fault: int, row: int) -> None:
    if fault:
        rule, what = faults[fault]
        raise _FaultError(rule, f"row {row} {what}")


def _cost(state: _Replay, size_bytes: int | None) -> Cost:
    """Return the cost of links, or of adders where these are slower, with latencies through chains of switches."""
    schedule, topology = state.schedule, state.schedule.topology
    cost = cost_of(schedule, state.loads)
    chunk = Fraction(1, schedule.chunks_per_shard * topology.compute_count)
    time = cost.time_per_byte
    for switch, sums in zip(state.actors.node, state.sums.tolist(), strict=True):
        limit = topology.abilities[switch].reduce_bandwidth
        if limit is not None:
            time = max(time, sums * chunk / limit)
    latency_s = cost.latency_s
    if state.path is not None:
        _, parts = schedule.routes.latencies(topology.links)
        latency_s = Fraction(int(state.path.sum()), parts)
    if size_bytes is None:
        return replace(cost, time_per_byte=time, latency_s=latency_s)
    time_s = latency_s + time * size_bytes / bytes_per_second(topology)
    return replace(cost, time_per_byte=time, latency_s=latency_s, time_s=time_s)
