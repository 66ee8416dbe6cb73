"""Verification: an independent replay of a schedule, chunk by chunk, before anything may use it.

This code shares nothing with the synthesizers. It takes any Schedule, from any method or file, and checks that every
chunk is there before it is sent, everything is delivered, and nothing is reduced twice. A schedule in symmetric form
is replayed at rank 0, see `chorale.synth.verify.symmetric`; one in which switches add or multicast with these as
actors, see `chorale.synth.verify.in_network`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import CheckFailed
from chorale.synth.schedule.schedule import AnySchedule, Schedule
from chorale.synth.verify import replay, set_replay
from chorale.synth.verify.cells import ROWS_AT_ONCE, ChunkIntervals, cell_text, row_blocks
from chorale.synth.verify.conditions import ShardConditions, kind_violations, shard_conditions, structural_violations
from chorale.synth.verify.verified import Cost, LoadSummary, ScheduleViolation, VerifiedSchedule, cost_of, summarize

if TYPE_CHECKING:
    from chorale.synth.schedule.symmetric import SymmetricSchedule

MEMORY_BYTES = 2**29
"""Tables are cut into windows of shards of at most about this size."""


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Replay tables for shards `first` to `last - 1`."""

    first: int
    last: int
    arrival: replay.Times
    handed_on: replay.Times
    fed: replay.Times


def verify(schedule: AnySchedule, size_bytes: int | None = None) -> VerifiedSchedule:
    """Return the verified form of `schedule`, or raise CheckFailed naming the first fault.

    With `size_bytes`, the bytes of the whole vector, the cost holds the exact time at that size; InvalidInput where
    bandwidths count links. Cost: O(chunk deliveries) time, at most about 0.5 GiB of tables at a time; in symmetric
    form O(generators * links log links + degree * links + rows of rank 0 * log).

    >>> from chorale.synth import SerialExecutor, parse_collective, parse_topology
    >>> from chorale.synth.methods.catalog import synthesize_unverified
    >>> ring = parse_topology("uniring:1,4")
    >>> schedule = synthesize_unverified("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> str(verify(schedule).cost.time_per_byte)
    '3/4'
    """
    violations, verified = inspect(schedule, size_bytes)
    if verified is None:
        value = f"{violations[0].message} ({len(violations)} violation(s))"
        raise CheckFailed("a schedule must pass verification", value, "synthesize it again")
    return verified


def cost_if_sound(schedule: AnySchedule, size_bytes: int | None = None) -> Cost:
    """Return the cost that `verify` finds if `schedule` is sound, for choosing which to verify. O(hops of all rows)."""
    if isinstance(schedule, Schedule) and not schedule.is_in_network:
        return cost_of(schedule, _link_loads(schedule), size_bytes)
    return verify(schedule, size_bytes).cost


def inspect(
    schedule: AnySchedule, size_bytes: int | None = None
) -> tuple[list[ScheduleViolation], VerifiedSchedule | None]:
    """Return the violations of all kinds, and the verified schedule if there are none; `size_bytes` as in `verify`."""
    if schedule.form == "columns":
        violations, facts = _inspect_columns(schedule.expand(), size_bytes)
    else:
        from chorale.synth.verify.symmetric import inspect_symmetric  # noqa: PLC0415 (only large schedules need it)

        violations, facts = inspect_symmetric(cast("SymmetricSchedule", schedule), size_bytes)
    return violations, None if facts is None else VerifiedSchedule(schedule, *facts)


def _inspect_columns(
    schedule: Schedule, size_bytes: int | None
) -> tuple[list[ScheduleViolation], tuple[Cost, LoadSummary] | None]:
    violations = structural_violations(schedule)
    if violations:
        return violations, None
    if schedule.is_in_network:
        from chorale.synth.verify.in_network import inspect_in_network  # noqa: PLC0415 (few schedules need it)

        return inspect_in_network(schedule, size_bytes)
    violations, duplicates = _replay(schedule)
    if violations and _may_be_general(schedule, violations):
        violations = set_replay.set_replay_violations(schedule)
    if violations:
        return violations, None
    loads = _link_loads(schedule)
    return [], (cost_of(schedule, loads, size_bytes), summarize(schedule, loads, duplicates))


def _may_be_general(schedule: Schedule, violations: list[ScheduleViolation]) -> bool:
    """Sums that do not flow along trees (exchanges) may still be right; a slower replay of sets decides."""
    rules = {violation.rule for violation in violations}
    signs = {"reduced-twice", "sum-incomplete"}  # the second alone where each rank exchanges once: two ranks
    fits = schedule.collective.sizes is None and set_replay.fits_set_replay(schedule)
    return schedule.collective.reduces and not rules.isdisjoint(signs) and fits


def _replay(schedule: Schedule) -> tuple[list[ScheduleViolation], int]:
    conditions = shard_conditions(schedule)
    violations: list[ScheduleViolation] = list(kind_violations(schedule, conditions))
    duplicates = 0
    if violations:
        return violations, 0
    cells = ChunkIntervals.of(schedule)
    for window in _windows(schedule, cells):
        window_violations, window_duplicates = _replay_window(schedule, conditions, cells, window)
        violations += window_violations
        duplicates += window_duplicates
        if len(violations) >= 20:
            break
    return violations, duplicates


def _windows(schedule: Schedule, cells: ChunkIntervals) -> Iterator[_Window]:
    ranks = schedule.topology.compute_count
    max_cells = MEMORY_BYTES // (2 * ranks * (3 if schedule.collective.reduces else 1))
    first = 0
    while first < schedule.shard_count:
        last = max(first + 1, int(np.searchsorted(cells.offsets, cells.offsets[first] + max_cells, side="right")) - 1)
        shape = (ranks, int(cells.offsets[last] - cells.offsets[first]))
        summed = shape if schedule.collective.reduces else (1, 1)
        handed_on, fed = np.zeros(summed, dtype=np.uint16), np.zeros(summed, dtype=np.uint16)
        yield _Window(first, last, np.full(shape, replay.NEVER, dtype=np.uint16), handed_on, fed)
        first = last


def _replay_window(
    schedule: Schedule, conditions: ShardConditions, cells: ChunkIntervals, window: _Window
) -> tuple[list[ScheduleViolation], int]:
    span = (window.first, window.last, cells.offsets)
    shards = slice(window.first, window.last)
    begin, end = (int(cells.offsets[shard]) for shard in (window.first, window.last))
    counts = np.diff(cells.offsets[window.first : window.last + 1])
    violations: list[ScheduleViolation] = []
    duplicates = 0
    _mark_starts(conditions, cells, window)
    nowhere = cells.beyond(schedule.collective.sizes)[begin:end]
    if conditions.reduces and nowhere.any():  # as if it had been added up
        window.handed_on[:, nowhere] = 1
        window.handed_on[np.repeat(conditions.sum_ends[shards], counts)[nowhere], np.flatnonzero(nowhere)] = 0
    for start, rows in row_blocks(schedule, cells):
        again, twice, culprit = replay.record_times(
            rows, *span, cells.size, window.arrival, window.handed_on, window.fed
        )
        duplicates += again
        if twice:
            violations.append(
                ScheduleViolation("reduced-twice", f"row {start + culprit} hands on a partial sum for the second time")
            )
    if conditions.reduces:
        sum_ends = np.repeat(conditions.sum_ends[shards], counts)
        wrong, rank, cell = replay.settle_sums(window.handed_on, window.fed, window.arrival, sum_ends)
        if wrong:
            violations.append(
                ScheduleViolation(
                    "sum-incomplete", cell_text(cells, begin, rank, cell, "is not summed up in one place")
                )
            )
    for start, rows in row_blocks(schedule, cells):
        early, early_row, late, late_row = replay.check_times(rows, *span, window.arrival, window.handed_on)
        if early:
            violations.append(
                ScheduleViolation("sent-before-received", f"row {start + early_row} sends a chunk before it is there")
            )
        if late:
            violations.append(
                ScheduleViolation("reduced-too-late", f"row {start + late_row} adds to a partial sum already handed on")
            )
    ends = np.repeat(conditions.ends[shards], counts)
    ends[nowhere] = schedule.topology.compute_count  # no rank
    missing, rank, cell = replay.first_missing(window.arrival, cells.size[begin:end], ends)
    if missing and not violations:
        violations.append(
            ScheduleViolation("not-delivered", cell_text(cells, begin, rank, cell, f"is missing ({missing} in all)"))
        )
    return violations, duplicates


def _mark_starts(conditions: ShardConditions, cells: ChunkIntervals, window: _Window) -> None:
    begin = cells.offsets[window.first]
    for shard in range(window.first, window.last):
        if conditions.starts[shard] >= 0:
            shard_cells = slice(cells.offsets[shard] - begin, cells.offsets[shard + 1] - begin)
            window.arrival[conditions.starts[shard], shard_cells] = 0


def _link_loads(schedule: Schedule) -> NDArray[np.int64]:
    """Return int64[steps, links]: chunks per step and link. O(hops of all rows)."""
    routes, rows = schedule.routes, schedule.transfers
    loads = np.zeros((max(1, schedule.steps), len(schedule.topology.links)), dtype=np.int64)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = rows.select(slice(start, start + ROWS_AT_ONCE))
        step, route, lo, hi = (column.astype(np.int32) for column in (block.step, block.route, block.lo, block.hi))
        replay.add_loads(step, route, hi - lo, routes.offsets, routes.link_ids, loads)
    return loads
