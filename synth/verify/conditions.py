"""What a collective requires of every shard, and structural checks that need no replay: column types, routes, ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.schedule.schedule import COLUMN_NAMES, Schedule, shard_count
from chorale.synth.verify.replay import NEVER
from chorale.synth.verify.verified import ScheduleViolation


@dataclass(frozen=True, slots=True, eq=False)
class ShardConditions:
    """starts: rank that holds the shard at the start (copies), or -1 where every rank holds a contribution.

    sum_ends: rank where the sum must be complete, or -1 for any one rank (allreduce, where copies follow).
    ends: rank that must hold the shard in the end, or -1 for every rank.
    """

    starts: NDArray[np.int32]
    sum_ends: NDArray[np.int32]
    ends: NDArray[np.int32]
    reduces: bool
    copies: bool


def shard_conditions(schedule: Schedule) -> ShardConditions:
    """Return the demands of the schedule's collective, one entry per shard."""
    ranks = schedule.topology.compute_count
    shards = np.arange(shard_count(schedule.topology, schedule.collective), dtype=np.int32)
    anywhere = np.full(len(shards), -1, dtype=np.int32)
    root = np.full(len(shards), schedule.collective.root or 0, dtype=np.int32)
    name = schedule.collective.name
    if name in (CollectiveName.ALLGATHER, CollectiveName.ALLGATHERV):
        return ShardConditions(shards, anywhere, anywhere, reduces=False, copies=True)
    if name == CollectiveName.BROADCAST:
        return ShardConditions(root, anywhere, anywhere, reduces=False, copies=True)
    if schedule.collective.is_alltoall:
        return ShardConditions(shards // ranks, anywhere, shards % ranks, reduces=False, copies=True)
    if name in (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE_SCATTERV):
        return ShardConditions(anywhere, shards, shards, reduces=True, copies=False)
    if name == CollectiveName.REDUCE:
        return ShardConditions(anywhere, root, root, reduces=True, copies=False)
    return ShardConditions(anywhere, anywhere, anywhere, reduces=True, copies=True)


def structural_violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Return what is wrong with the form of `schedule`; replay is only defined where this is empty."""
    violations = list(_route_violations(schedule))
    violations = violations or list(_column_violations(schedule))
    violations = violations or list(_size_violations(schedule))
    return violations or list(_row_violations(schedule))


def _route_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    routes, links = schedule.routes, schedule.topology.links
    lengths = np.diff(routes.offsets)
    if len(routes) and (lengths < 1).any():
        yield ScheduleViolation("route-empty", f"route {int(np.argmin(lengths))} has no links")
        return
    if routes.offsets[0] != 0 or routes.offsets[-1] != len(routes.link_ids):
        yield ScheduleViolation("route-table", "the route table does not cover its link ids")
        return
    if len(routes.link_ids) and not (routes.link_ids.min() >= 0 and routes.link_ids.max() < len(links)):
        yield ScheduleViolation("route-link", f"a route names a link outside 0 to {len(links) - 1}")
        return
    inner = np.ones(len(routes.link_ids), dtype=bool)
    inner[routes.offsets[:-1]] = False
    broken = np.flatnonzero(inner & (links.src[routes.link_ids] != links.dst[np.roll(routes.link_ids, 1)]))
    if len(broken):
        route = int(np.searchsorted(routes.offsets, broken[0], side="right")) - 1
        yield ScheduleViolation(
            "route-broken", f"route {route} has a link that does not start where the one before ends"
        )
    ends = np.concatenate([routes.sources(links), routes.destinations(links)]) if len(routes) else np.zeros(0)
    able = np.isin(ends, list(schedule.topology.abilities))
    if ((ends >= schedule.topology.compute_count) & ~able).any():
        yield ScheduleViolation("route-ends", "a route starts or ends at a switch that neither multicasts nor adds")
    elif able.any() and (schedule.kind != "pipelined" or schedule.barriers):
        yield ScheduleViolation("route-ends", "switches act in schedules that stream, without barriers")


def _size_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    """Yield sizes that do not fit the collective, and chunks that their shards do not have."""
    collective = schedule.collective
    if collective.sizes is None and not collective.name.is_uneven:
        return
    sizes = collective.sizes or ()
    most = schedule.chunks_per_shard
    if not collective.name.is_uneven or len(sizes) != schedule.shard_count or not 0 <= min(sizes) <= max(sizes) <= most:
        message = f"{collective} must have a size of 0 to {most} chunks for each of {schedule.shard_count} shards"
        yield ScheduleViolation("sizes", message)
        return
    transfers = schedule.transfers
    beyond = np.flatnonzero(transfers.hi > np.array(sizes, dtype=np.int64)[transfers.shard])
    if len(beyond):
        row = int(beyond[0])
        shard = int(transfers.shard[row])
        message = f"row {row}: chunk {int(transfers.hi[row]) - 1} of shard {shard}, which has {sizes[shard]}"
        yield ScheduleViolation("sizes", message)


def _column_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    bounds, transfers = schedule.bounds, schedule.transfers
    if schedule.steps >= NEVER - 1:
        yield ScheduleViolation("steps", f"{schedule.steps} steps are more than the {NEVER - 2} that can be replayed")
    ends = (0, *schedule.barriers, schedule.steps)
    if schedule.barriers and (schedule.kind != "pipelined" or any(one >= other for one, other in pairwise(ends))):
        yield ScheduleViolation(
            "barriers", f"barriers {schedule.barriers} do not part the {schedule.steps} steps of streams"
        )
    for name, column, dtype in zip(COLUMN_NAMES, transfers.columns, bounds.dtypes, strict=True):
        if column.dtype != dtype:
            yield ScheduleViolation("column-type", f"column {name} has type {column.dtype}, not {dtype}")
    limits = (bounds.steps, bounds.routes, bounds.shards, bounds.chunks_per_shard, bounds.chunks_per_shard + 1, 2)
    for name, column, limit in zip(COLUMN_NAMES, transfers.columns, limits, strict=True):
        if len(column) and int(column.max()) >= limit:
            row = int(np.argmax(column))
            yield ScheduleViolation("column-range", f"row {row}: {name} is {int(column.max())}, not below {limit}")


def _row_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    transfers = schedule.transfers
    empty = np.flatnonzero(transfers.lo >= transfers.hi)
    if len(empty):
        yield ScheduleViolation("interval", f"row {int(empty[0])}: the chunk interval is empty")
    self_sent = np.flatnonzero(schedule.src == schedule.dst)
    if len(self_sent):
        yield ScheduleViolation("self-send", f"row {int(self_sent[0])}: a rank sends to itself")


def kind_violations(schedule: Schedule, conditions: ShardConditions) -> Iterator[ScheduleViolation]:
    """Yield sums in a collective that only copies, and copies in one that only adds."""
    reduces = schedule.transfers.reduce
    if not conditions.reduces and reduces.any():
        yield ScheduleViolation(
            "unexpected-reduce", f"row {int(np.argmax(reduces))} reduces, but {schedule.collective} does not"
        )
    if not conditions.copies and len(reduces) and not reduces.all():
        yield ScheduleViolation(
            "unexpected-copy", f"row {int(np.argmin(reduces))} overwrites a partial sum of {schedule.collective}"
        )
