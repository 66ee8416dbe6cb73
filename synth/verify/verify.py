"""Verifies schedules by replaying them chunk by chunk. All other code only uses verified schedules.

This code is independent of the synthesizers. It takes any schedule, from any method or file, and checks that every
chunk is present before it is sent, everything is delivered, and nothing is reduced twice. Schedules in symmetric form
are verified by `chorale.synth.verify.symmetric`.

A route may start or end at a switch that multicasts or reduces data. Such a switch has no memory. For every chunk, it
either sends one sum in the step in which all inputs arrive, or it sends copies of the result in the step in which the
result arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import CheckFailed
from chorale.synth.kernels import native
from chorale.synth.schedule.schedule import AnySchedule, Schedule
from chorale.synth.verify.replay import (
    NEVER,
    ROWS_AT_ONCE,
    ActorTables,
    ChunkIntervals,
    ShardConditions,
    fits_set_replay,
    row_blocks,
    set_replay_violations,
    shard_conditions,
    structural_violations,
)
from chorale.synth.verify.verified import (
    Cost,
    Loads,
    LoadSummary,
    ScheduleViolation,
    VerifiedSchedule,
    cost_of,
    summarize,
)

MEMORY_BYTES = 2**29
"""Approximate limit on the size of the tables in bytes. Larger schedules are replayed in several windows of shards."""

# In the order of `Fault` in kernels/cpp/verify.cpp.
_FAULTS = (
    ("", ""),
    ("reduced-twice", "sends a partial sum for the second time"),
    ("switch-two-parents", "sends a result to a switch that already has it"),
    ("sent-before-received", "sends a chunk before it is there"),
    ("reduced-too-late", "adds to a partial sum that was already sent"),
    ("switch-stores", "sends data from a switch that does not receive them in the same step"),
    ("sum-incomplete", "is not completely summed up at one node"),
    ("switch-stores", "would have to wait at a switch"),
    ("switch-empty", "is sent by a switch that does not receive it"),
    ("switch-cannot-add", "is added by a switch that cannot add"),
    ("switch-circle", "travels in a cycle of switches"),
    ("switch-two-parents", "is sent back to the switch that sums it up"),
    ("switch-leaf", "ends at a switch"),
    ("switch-cannot-multicast", "is copied by a switch that cannot multicast"),
)


def verify(schedule: AnySchedule) -> VerifiedSchedule:
    """Verify `schedule` by replaying it. Raises CheckFailed, which names the first fault, if it is wrong.

    Takes O(chunk deliveries) time and at most about 0.5 GiB for tables. A schedule in symmetric form with the rows of
    rank 0 takes O(generators * links log links + degree * links + rows log rows).

    >>> from chorale.synth import SerialExecutor, parse_collective, parse_topology
    >>> from chorale.synth.methods.catalog import synthesize_unverified
    >>> ring = parse_topology("uniring:1,4")
    >>> schedule = synthesize_unverified("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> str(verify(schedule).cost.time_per_byte)
    '3/4'
    """
    violations, verified = inspect(schedule)
    if verified is None:
        value = f"{violations[0].message} ({len(violations)} violation(s))"
        raise CheckFailed("the schedule does not verify: {}", value, "synthesize it again")
    return verified


def cost_if_sound(schedule: AnySchedule) -> Cost:
    """Return the cost that `schedule` has if it is correct, for a comparison before verification. O(hops of rows).

    If the schedule is symmetric, or switches reduce or multicast data, this already verifies the schedule.
    """
    if isinstance(schedule, Schedule) and not schedule.is_in_network:
        return cost_of(schedule, _link_loads(schedule))
    return verify(schedule).cost


def inspect(schedule: AnySchedule) -> tuple[list[ScheduleViolation], VerifiedSchedule | None]:
    """Verify `schedule` and return (violations, verified schedule or None if there are violations)."""
    if isinstance(schedule, Schedule):
        violations, facts = _inspect_columns(schedule)
    else:
        from chorale.synth.verify.symmetric import inspect_symmetric  # noqa: PLC0415 (only large schedules need it)

        violations, facts = inspect_symmetric(schedule)
    return violations, None if facts is None else VerifiedSchedule(schedule, *facts)


def _inspect_columns(schedule: Schedule) -> tuple[list[ScheduleViolation], tuple[Cost, LoadSummary] | None]:
    violations = structural_violations(schedule)
    if violations:
        return violations, None
    replay = Replay(schedule)
    violations = replay.run()
    # Correct sums that do not flow along trees can cause these faults too, so the slower replay, which uses sets of
    # ranks, decides. If two ranks send each other their contributions, "sum-incomplete" is the only fault.
    may_be_right = any(violation.rule in ("reduced-twice", "sum-incomplete") for violation in violations)
    collective = schedule.collective
    may_be_right &= collective.reduces and collective.sizes is None and not schedule.is_in_network
    if may_be_right and fits_set_replay(schedule):
        violations = set_replay_violations(schedule)
    if violations:
        return violations, None
    loads = _link_loads(schedule)
    cost = replay.cost(loads) if schedule.is_in_network else cost_of(schedule, loads)
    return [], (cost, summarize(loads.sum(axis=0), schedule.chunk_part, replay.duplicates))


class Replay:
    """The replay of one schedule. Actors are the ranks, followed by the switches that reduce or multicast data.

    switches:   node index of each switch that reduces or multicasts data
    sums:       number of chunks that each of these switches adds up
    path:       largest latency between ranks in each step, in ticks of `Routes.latencies`; None if not yet known, or if
                there are no such switches or no latencies
    duplicates: number of chunks that ranks received although they already had them
    """

    def __init__(self, schedule: Schedule) -> None:
        topology = schedule.topology
        able = topology.abilities if schedule.is_in_network else {}
        self.schedule = schedule
        self.conditions: ShardConditions = shard_conditions(schedule)
        self.cells = ChunkIntervals.of(schedule)
        self.ranks, self.switches = topology.compute_count, sorted(able)
        self.actor = np.full(topology.node_count, -1, dtype=np.int32)
        self.actor[: self.ranks] = np.arange(self.ranks)
        self.actor[self.switches] = self.ranks + np.arange(len(self.switches))
        self.can_add = np.array([able[switch].reduce for switch in self.switches], dtype=np.bool_)
        self.can_copy = np.array([able[switch].multicast for switch in self.switches], dtype=np.bool_)
        self.sums = np.zeros(len(self.switches), dtype=np.int64)
        self.path: NDArray[np.int64] | None = None
        self.duplicates = 0

    def run(self) -> list[ScheduleViolation]:
        """Replay the windows of shards; return the violations of the first window that has any. O(chunk deliveries)."""
        conditions, collective, reduces = self.conditions, self.schedule.collective, self.schedule.transfers.reduce
        violations: list[ScheduleViolation] = []
        if not conditions.reduces and reduces.any():
            text = f"row {int(np.argmax(reduces))} reduces, but {collective} does not"
            violations.append(ScheduleViolation("unexpected-reduce", text))
        if not conditions.copies and len(reduces) and not reduces.all():
            text = f"row {int(np.argmin(reduces))} overwrites a partial sum of {collective}"
            violations.append(ScheduleViolation("unexpected-copy", text))
        switches = len(self.switches)
        bytes_of_cell = (6 if conditions.reduces else 2) * (self.ranks + switches) + 34 * switches
        first = 0
        while not violations and first < self.schedule.shard_count:
            last = self.cells.window(first, MEMORY_BYTES // bytes_of_cell)
            violations = self.window(first, last)
            first = last
        return violations

    def window(self, first: int, last: int) -> list[ScheduleViolation]:
        """Replay shards `first` to `last - 1`. Return the violations found by the first check that fails."""
        conditions, offsets, ranks = self.conditions, self.cells.offsets, self.ranks
        begin, end = int(offsets[first]), int(offsets[last])
        size, counts = self.cells.size[begin:end], np.diff(offsets[first : last + 1])
        sum_ends, ends = (np.repeat(column[first:last], counts) for column in (conditions.sum_ends, conditions.ends))
        tables = self._tables(first, last)
        nowhere = self.cells.beyond(self.schedule.collective.sizes)[begin:end]
        if conditions.reduces and nowhere.any():  # chunks beyond a shard's end count as added up
            tables.handed_on[:ranks, nowhere] = 1
            tables.handed_on[sum_ends[nowhere], np.flatnonzero(nowhere)] = 0
        faults: list[ScheduleViolation] = []
        members = None
        if conditions.members is not None:
            members = np.repeat(conditions.members[:, first:last], counts, axis=1)
            members[:, nowhere] = True
        repeated = 0
        for start, rows in self._blocks():
            again, fault, row = native.record_rows(rows, first, last, offsets, ranks, tables)
            repeated += again
            faults += _row_fault(fault, start + row)
        self.duplicates += self._chunks_again(first, last, size, tables) if repeated and len(size) else repeated
        if conditions.reduces and members is not None and not faults:
            # A rank without a contribution, such as the target, may only send if it also receives sums. If it neither
            # sends nor receives, it counts as done.
            handed_on, fed = tables.handed_on[:ranks], tables.fed[:ranks]
            hollow = np.argwhere(~members & (handed_on != 0) & (fed == 0))
            if len(hollow):
                rank, cell = hollow[0].tolist()
                text = self.cells.text(begin + cell, rank, "is sent by a rank that has no part of it")
                return [ScheduleViolation("reduced-into-nothing", text)]
            handed_on[~members & (handed_on == 0) & (fed == 0)] = 1
        if conditions.reduces and not faults:
            settled = native.settle_actors(sum_ends, size, ranks, self.can_add, self.sums, tables)
            faults = self._cell_fault(settled, begin)
        for start, rows in self._blocks() if not faults else ():
            fault, row = native.check_actors(rows, first, last, offsets, ranks, tables)
            faults += _row_fault(fault, start + row)
        if conditions.copies and not faults:
            faults = self._cell_fault(native.check_copies(ranks, self.can_copy, tables), begin)
        if faults:
            return faults
        missing = tables.arrival[:ranks] == NEVER
        if missing.any():
            missing &= ((ends < 0) | (ends == np.arange(ranks)[:, np.newaxis])) & ~nowhere
            if members is not None and not conditions.reduces:
                missing &= members
        at, cells = np.nonzero(missing)
        if len(cells):
            chunks = int(size[cells].sum()) if len(size) else len(cells)
            text = self.cells.text(begin + int(cells[-1]), int(at[-1]), f"is missing ({chunks} in all)")
            return [ScheduleViolation("not-delivered", text)]
        if self.schedule.is_in_network and self.schedule.topology.links.latencies_s != (Fraction(0),):
            self._add_latencies(first, last, end - begin)
        return []

    def _chunks_again(self, first: int, last: int, size: NDArray[np.int64], tables: ActorTables) -> int:
        """Return the number of duplicate deliveries in the window: received chunks minus new chunks."""
        rows, ranks = self.schedule.transfers, self.ranks
        comes = (rows.shard >= first) & (rows.shard < last) & (rows.reduce == 0) & (self.schedule.dst < ranks)
        starts = np.count_nonzero(self.conditions.starts[first:last] >= 0) * self.schedule.chunks_per_shard
        held = int(((tables.arrival[:ranks] != NEVER).sum(axis=0) * size).sum())
        arrived = int((rows.hi[comes].astype(np.int64) - rows.lo[comes]).sum())
        return arrived - (held - int(starts))

    def _tables(self, first: int, last: int) -> ActorTables:
        """Return tables for shards `first` to `last - 1` before step 0, when each shard is only at its initial rank."""
        conditions, offsets, switches = self.conditions, self.cells.offsets, len(self.switches)
        cells = int(offsets[last] - offsets[first])
        actors = self.ranks + switches
        summed = (actors, cells) if conditions.reduces else (1, 1)
        arrival = np.full((actors, cells), NEVER, dtype=np.uint16)
        for shard in range(first, last) if conditions.copies else ():
            if conditions.starts[shard] >= 0:
                begin, end = offsets[shard : shard + 2] - offsets[first]
                arrival[conditions.starts[shard], begin:end] = 0
        return ActorTables(
            arrival=arrival,
            handed_on=np.zeros(summed, dtype=np.uint16),
            fed=np.zeros(summed, dtype=np.uint16),
            first_fed=np.zeros((switches, cells), dtype=np.uint16),
            inputs=np.zeros((switches, cells), dtype=np.int32),
            goes_to=np.full((switches, cells), -1, dtype=np.int32),
            comes_from=np.full((switches, cells), -1, dtype=np.int32),
            copies=np.zeros((switches, cells), dtype=np.int32),
        )

    def _blocks(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield the schedule's rows in blocks (see `row_blocks`), with actor numbers instead of node indices."""
        for start, rows in row_blocks(self.schedule, self.cells):
            if self.switches:
                rows[1:3] = self.actor[rows[1:3]]
            yield start, rows

    def _cell_fault(self, result: tuple[int, int, int], begin: int) -> list[ScheduleViolation]:
        fault, actor, cell = result
        if not fault:
            return []
        rule, what = _FAULTS[fault]
        is_rank = actor < self.ranks
        where = "" if is_rank else f", at {self.schedule.topology.node_ids[self.switches[actor - self.ranks]]}"
        return [ScheduleViolation(rule, self.cells.text(begin + cell, actor if is_rank else -1, what) + where)]

    def _add_latencies(self, first: int, last: int, cells: int) -> None:
        """Update the largest latency of each step, which may be that of a path through several switches."""
        of_route = self.schedule.routes.latencies(self.schedule.topology.links)[0].astype(np.int64)
        if self.path is None:
            self.path = np.zeros(max(1, self.schedule.steps), dtype=np.int64)
        upward, downward = (np.zeros((len(self.switches), cells), dtype=np.int64) for _ in range(2))
        span = (first, last, self.cells.offsets, self.ranks)
        is_longer = True
        while is_longer:
            is_longer = False
            for start, rows in self._blocks():
                latency = of_route[self.schedule.transfers.route[start : start + rows.shape[1]]]
                is_longer |= native.longest_paths(rows, latency, *span, upward, downward, self.path)
            np.maximum(downward, upward, out=downward)

    def cost(self, loads: Loads) -> Cost:
        """Return the cost for the link `loads`, including limits on sums in switches and latencies through switches."""
        schedule, topology = self.schedule, self.schedule.topology
        cost = cost_of(schedule, loads)
        chunk = Fraction(1, schedule.chunks_per_shard * topology.compute_count)
        time, latency_s = cost.time_per_byte, cost.latency_s
        for switch, sums in zip(self.switches, self.sums.tolist(), strict=True):
            limit = topology.abilities[switch].reduce_bandwidth
            if limit is not None:
                time = max(time, sums * chunk / limit)
        if self.path is not None:
            latency_s = Fraction(int(self.path.sum()), schedule.routes.latencies(topology.links)[1])
        return replace(cost, time_per_byte=time, latency_s=latency_s)


def _row_fault(fault: int, row: int) -> list[ScheduleViolation]:
    rule, what = _FAULTS[fault]
    return [ScheduleViolation(rule, f"row {row} {what}")] if fault else []


def _link_loads(schedule: Schedule) -> NDArray[np.int64]:
    """Return int64[steps, links]: chunks per step and link. O(hops of all rows)."""
    routes, rows = schedule.routes, schedule.transfers
    loads = np.zeros((max(1, schedule.steps), len(schedule.topology.links)), dtype=np.int64)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows.select(slice(start, start + ROWS_AT_ONCE))
        hops = np.diff(routes.offsets)[block.route]
        row = np.repeat(np.arange(len(block)), hops)
        hop = np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops)
        place = (
            block.step[row].astype(np.int64) * loads.shape[1] + routes.link_ids[routes.offsets[block.route[row]] + hop]
        )
        np.add.at(loads.reshape(-1), place, (block.hi.astype(np.int64) - block.lo)[row])
    return loads
