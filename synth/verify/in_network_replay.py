"""Kernels that replay a schedule over all cells at once, in any order of rows (`chorale.synth.verify.verify`).

Actors are ranks, then switches that multicast or add, if any. Times are stored as step + 1, 0 for never in tables of
sums and `NEVER` in those of arrivals, as in `chorale.synth.verify.replay`. A switch stores nothing: what it gets in a
step it sends in the same step. So times do not grow at switches, and chains of them are followed to their ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.verify.replay import NEVER

Ranks = NDArray[np.int32]
Numbers = NDArray[np.int64]


class ActorTables(NamedTuple):
    """What happens to each cell of a window, per actor, and per switch that acts.

    arrival:    earliest arrival of what is finished;  handed_on: when an actor sent its partial sum
    fed:        when it last got one;  first_fed: when a switch first got one;  inputs: how many a switch gets
    goes_to:    the actor to which a switch hands its sum on;  comes_from: the one from which it has the result
    copies:     how many copies a switch sends
    """

    arrival: Matrix[np.uint16]
    handed_on: Matrix[np.uint16]
    fed: Matrix[np.uint16]
    first_fed: Matrix[np.uint16]
    inputs: Matrix[np.int32]
    goes_to: Matrix[np.int32]
    comes_from: Matrix[np.int32]
    copies: Matrix[np.int32]


HANDED_ON_TWICE, RESULT_TWICE = 1, 2


@inlined
def note_sum(tables: ActorTables, ranks: int, src: int, dst: int, cell: int, time: np.uint16) -> int:
    """Note that `src` hands a partial sum on to `dst`; return a fault or 0."""
    fault = HANDED_ON_TWICE if tables.handed_on[src, cell] != 0 else 0
    tables.handed_on[src, cell] = time
    tables.fed[dst, cell] = max(tables.fed[dst, cell], time)
    if src >= ranks:
        tables.goes_to[src - ranks, cell] = dst
    if dst >= ranks:
        earlier = tables.first_fed[dst - ranks, cell]
        tables.first_fed[dst - ranks, cell] = time if earlier == 0 else min(earlier, time)
        tables.inputs[dst - ranks, cell] += 1
    return fault


@inlined
def note_result(tables: ActorTables, ranks: int, src: int, dst: int, cell: int, time: np.uint16) -> int:
    """Note that `dst` gets a result from `src`; return 1 where it has it already."""
    again = 1 if tables.arrival[dst, cell] != np.uint16(NEVER) else 0
    tables.arrival[dst, cell] = min(tables.arrival[dst, cell], time)
    if dst >= ranks:
        tables.comes_from[dst - ranks, cell] = src
    if src >= ranks:
        tables.copies[src - ranks, cell] += 1
    return again


@compiled
def record_rows(
    rows: Matrix[np.int32], first: int, last: int, offsets: Numbers, ranks: int, tables: ActorTables
) -> tuple[int, int, int]:
    """Note what the rows of shards `first` to `last - 1` do; return (duplicate cells at ranks, a fault or 0, its row).

    rows: int32[7, rows] as `chorale.synth.verify.replay` has them, with actors in place of ranks.
    """
    duplicates = fault = 0
    culprit = -1
    for index in range(rows.shape[1]):
        shard = rows[3, index]
        if shard < first or shard >= last:
            continue
        time = np.uint16(rows[0, index] + 1)
        src, dst = rows[1, index], rows[2, index]
        base = offsets[shard] - offsets[first]
        for cell in range(base + rows[4, index], base + rows[5, index]):
            wrong = 0
            if rows[6, index]:
                wrong = note_sum(tables, ranks, src, dst, cell, time)
            elif note_result(tables, ranks, src, dst, cell, time) == 1:
                if dst >= ranks:
                    wrong = RESULT_TWICE
                else:
                    duplicates += 1
            if wrong != 0:
                fault, culprit = wrong, index
    return duplicates, fault, culprit


INCOMPLETE, STORED, EMPTY, CANNOT_ADD, IN_A_CIRCLE, TURNED_TWICE = 1, 2, 3, 4, 5, 6


@inlined
def fault_of_sum(tables: ActorTables, ranks: int, switch: int, cell: int, can_add: NDArray[np.bool_]) -> int:
    """Return a fault of what a switch does with partial sums, or 0."""
    actor = ranks + switch
    handed_on, inputs = tables.handed_on[actor, cell], tables.inputs[switch, cell]
    if inputs == 0:
        return EMPTY if handed_on != 0 else 0
    is_at_once = tables.first_fed[switch, cell] == tables.fed[actor, cell]
    if not is_at_once or (handed_on != 0 and handed_on != tables.fed[actor, cell]):
        return STORED
    if inputs > 1 and not can_add[switch]:
        return CANNOT_ADD
    following, hops = actor, 0
    while following >= ranks and tables.handed_on[following, cell] != 0:
        following = tables.goes_to[following - ranks, cell]
        hops += 1
        if hops > len(can_add):
            return IN_A_CIRCLE
    return 0


@compiled
def settle_actors(
    ends: Ranks, size: Numbers, ranks: int, can_add: NDArray[np.bool_], sums: Numbers, tables: ActorTables
) -> tuple[int, int, int]:
    """Find where each sum ends, note in `arrival` when it is complete there, and add up what switches add.

    ends: per cell, the rank that must hold the sum, or -1 for any actor
    size: chunks per cell, empty where all are one
    sums: per switch, chunks of sums of several inputs that it makes; added to
    Returns (a fault or 0, its actor, its cell).
    """
    for cell in range(tables.handed_on.shape[1]):
        holders = 0
        holder = -1
        for actor in range(ranks + len(can_add)):
            if actor >= ranks:
                fault = fault_of_sum(tables, ranks, actor - ranks, cell, can_add)
                if fault != 0:
                    return fault, actor, cell
                if tables.inputs[actor - ranks, cell] == 0:
                    continue
                if tables.inputs[actor - ranks, cell] > 1:
                    sums[actor - ranks] += size[cell] if len(size) else 1
            if tables.handed_on[actor, cell] == 0:
                holders += 1
                holder = actor
        if holders != 1 or (ends[cell] >= 0 and holder != ends[cell]):
            return INCOMPLETE, holder, cell
        if holder >= ranks and tables.arrival[holder, cell] != np.uint16(NEVER):
            return TURNED_TWICE, holder, cell
        tables.arrival[holder, cell] = min(tables.arrival[holder, cell], tables.fed[holder, cell])
    return 0, -1, -1


TOO_EARLY, TOO_LATE, SENT_ANOTHER_TIME = 1, 2, 3


@compiled
def check_actors(
    rows: Matrix[np.int32], first: int, last: int, offsets: Numbers, ranks: int, tables: ActorTables
) -> tuple[int, int]:
    """Check that ranks send what has arrived and feed what is handed on later, and that switches send at once.

    Returns (a fault or 0, its row).
    """
    for index in range(rows.shape[1]):
        shard = rows[3, index]
        if shard < first or shard >= last:
            continue
        step, src, dst = rows[0, index], rows[1, index], rows[2, index]
        base = offsets[shard] - offsets[first]
        for cell in range(base + rows[4, index], base + rows[5, index]):
            if rows[6, index]:
                handed_on = tables.handed_on[dst, cell]
                if dst < ranks and handed_on != 0 and handed_on <= step + 1:
                    return TOO_LATE, index
            elif src < ranks:
                if tables.arrival[src, cell] > step:
                    return TOO_EARLY, index
            elif tables.arrival[src, cell] != step + 1:
                return SENT_ANOTHER_TIME, index
    return 0, -1


LEADS_NOWHERE, CANNOT_COPY = 7, 8


@compiled
def check_copies(ranks: int, can_copy: NDArray[np.bool_], tables: ActorTables) -> tuple[int, int, int]:
    """Check what switches do with results: send them on, several only where they multicast, from a rank or a sum.

    Returns (a fault or 0, its actor, its cell).
    """
    switches = len(can_copy)
    for cell in range(tables.arrival.shape[1]):
        for switch in range(switches):
            actor = ranks + switch
            if tables.arrival[actor, cell] == np.uint16(NEVER):
                continue
            if tables.copies[switch, cell] == 0:
                return LEADS_NOWHERE, actor, cell
            if tables.copies[switch, cell] > 1 and not can_copy[switch]:
                return CANNOT_COPY, actor, cell
            hops = 0
            before = tables.comes_from[switch, cell]
            while before >= ranks:
                before = tables.comes_from[before - ranks, cell]
                hops += 1
                if hops > switches:
                    return IN_A_CIRCLE, actor, cell
    return 0, -1, -1


@compiled
def longest_paths(
    rows: Matrix[np.int32],
    latency: Numbers,
    first: int,
    last: int,
    offsets: Numbers,
    ranks: int,
    upward: Matrix[np.int64],
    downward: Matrix[np.int64],
    of_step: Numbers,
) -> bool:
    """Add up latencies through switches within steps: call it until it returns False, once per switch in a row.

    latency: per row;  upward, downward: per switch and cell, the latest of its inputs, of the result; they grow
    of_step: per step, the longest path between ranks; it grows
    """
    is_longer = False
    for index in range(rows.shape[1]):
        shard = rows[3, index]
        if shard < first or shard >= last:
            continue
        src, dst = rows[1, index], rows[2, index]
        base = offsets[shard] - offsets[first]
        for cell in range(base + rows[4, index], base + rows[5, index]):
            path = latency[index]
            if src >= ranks:
                path += upward[src - ranks, cell] if rows[6, index] else downward[src - ranks, cell]
            if dst < ranks:
                of_step[rows[0, index]] = max(of_step[rows[0, index]], path)
            elif rows[6, index]:
                if path > upward[dst - ranks, cell]:
                    upward[dst - ranks, cell] = path
                    is_longer = True
            elif path > downward[dst - ranks, cell]:
                downward[dst - ranks, cell] = path
                is_longer = True
    return is_longer
