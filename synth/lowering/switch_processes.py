"""Schedules in which switches act, as schedules of processes: one for each rank, then one for each such switch.

So CPUs emulate such switches, and so a parameter server or a SmartNIC works that really is one. A process stores what
it gets; what a switch does within a step takes separate steps here.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.schedule.schedule import ColumnBounds, ProcessSchedule, Routes, Schedule
from chorale.synth.topology.relabelling import process_network, promoted

PROCESS_TARGET = "oneccl-xml"
"""The one target whose programs may have processes of switches: what CPUs execute."""


def require_processes(options: LoweringOptions) -> None:
    """Raise InvalidInput unless programs with `options` can have processes of switches."""
    if options.target != PROCESS_TARGET:
        rule = f"programs of blocks and messages in which switches act must be {PROCESS_TARGET}"
        raise InvalidInput(rule, options.target, f"use {PROCESS_TARGET}, or synthesize without --in-network")
    if not options.in_place:
        rule = "programs in which switches act must be in place"
        raise InvalidInput(rule, "out of place", "lower it in place")


def schedule_of_processes(schedule: Schedule) -> ProcessSchedule:
    """Return `schedule`, in which switches act, on the network of processes. O(rows * switches in a row).

    Rows through chains of switches within a step get steps that follow one another.
    """
    topology = schedule.topology
    switches = tuple(sorted(topology.abilities))
    origin = promoted(topology, switches).origin
    link_of = np.full(len(topology.links), -1, dtype=np.int32)
    link_of[origin] = np.arange(len(origin))
    routes = Routes(schedule.routes.offsets, link_of[schedule.routes.link_ids])
    rows = schedule.transfers
    pairs = np.stack([rows.step.astype(np.int64), _levels(schedule)])
    _, step = np.unique(pairs, axis=1, return_inverse=True)
    step = step.reshape(-1)
    order = np.argsort(step, kind="stable")
    steps = int(step.max(initial=-1)) + 1
    bounds = ColumnBounds(steps, len(routes), topology.compute_count, schedule.chunks_per_shard)
    columns = [step, *rows.columns[1:]]
    return ProcessSchedule(
        process_network(topology), schedule.collective, schedule.kind, steps, schedule.chunks_per_shard,
        bounds.pack([column[order] for column in columns]), routes, schedule.method, schedule.parameters,
        trees_per_root=schedule.trees_per_root, rank_count=topology.compute_count, switches=switches,
    )  # fmt: skip


def _levels(schedule: Schedule) -> NDArray[np.int64]:
    """Return per row through how many switches its chunks have passed before, in the same step."""
    rows, ranks = schedule.transfers, schedule.topology.compute_count
    src, dst = schedule.src.tolist(), schedule.dst.tolist()
    step, shard, low, high, adds = (
        column.tolist() for column in (rows.step, rows.shard, rows.lo, rows.hi, rows.reduce)
    )
    into: dict[tuple[int, int, int], list[int]] = {}
    for row, node in enumerate(dst):
        if node >= ranks:
            into.setdefault((step[row], shard[row], node), []).append(row)
    feeders = {
        row: [
            other
            for other in into.get((step[row], shard[row], node), ())
            if low[other] < high[row] and low[row] < high[other] and adds[other] >= adds[row]
        ]
        for row, node in enumerate(src)
        if node >= ranks
    }
    levels = [0] * len(src)
    for _ in range(schedule.topology.switch_count):
        deeper = {row: 1 + max((levels[other] for other in others), default=-1) for row, others in feeders.items()}
        if all(levels[row] == level for row, level in deeper.items()):
            break
        for row, level in deeper.items():
            levels[row] = level
    return np.array(levels, dtype=np.int64)


def with_first_stored(messages: ChannelMessages, ranks: int) -> ChannelMessages:
    """Return `messages` in which the first that reaches a process after the `ranks` is stored there, not added.

    For it has nothing to add it to. A message of which only some chunks are the first is cut. O(chunks * log(chunks)).
    """
    chosen = np.flatnonzero((messages.reduces == 1) & (messages.receiver >= ranks))
    if not len(chosen):
        return messages
    some = messages.select(chosen)
    row, chunk = some.cells()
    key = some.receiver[row].astype(np.int64) * (1 + int(chunk.max())) + chunk
    is_first = np.zeros(len(row), dtype=np.bool_)
    is_first[np.unique(key, return_index=True)[1]] = True
    begins = np.flatnonzero(np.diff(row, prepend=-1) | np.diff(is_first, prepend=~is_first[:1]))
    ends = np.append(begins[1:], len(row)) - 1
    place = np.concatenate([np.setdiff1d(np.arange(len(messages)), chosen), chosen[row[begins]]])
    cut = messages.select(place)
    kept = len(place) - len(begins)
    columns = {item.name: getattr(cut, item.name).copy() for item in fields(ChannelMessages)}
    columns["first"][kept:] = chunk[begins]
    columns["end"][kept:] = chunk[ends] + 1
    columns["reduces"][kept:] = ~is_first[begins]
    order = np.argsort(place, kind="stable")
    return ChannelMessages(**{name: column[order] for name, column in columns.items()})


SHAPE_OF_PROCESSES = CollectiveName.ALLREDUCE
"""Every process has room for the whole vector, chunk after chunk, as each rank of an allreduce in place has."""
