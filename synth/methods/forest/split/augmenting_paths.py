"""Shortest paths with residual capacity between two ports of a group, and what they take from arcs and known cuts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import inlined
from chorale.synth.methods.forest.split.cut_table import CutTable
from chorale.synth.methods.forest.split.switch_groups import FAR, SwitchGroups

_PATIENCE = 32  # blind ends on the search for a path before it is given up


class ResidualCapacities(NamedTuple):
    """What proposed splits leave of capacities, and scratch.

    src, dst:   int32 per arc: its ends;  residual: int64 per arc: units left
    slack:      int64 per known cut: what it can still lose
    give, take: int64 per port: units left on its arcs into and out of its group
    base:       int64 per port: `give` when the shares of the current round were fixed
    path:       the path found last
    dead, search: node v leads nowhere in the current search where `dead[v] == search[0]`
    """

    src: Ranks
    dst: Ranks
    residual: Integers
    slack: Integers
    give: Integers
    take: Integers
    base: Integers
    path: Integers
    dead: Integers
    search: Integers


@inlined
def residual_capacities(
    groups: SwitchGroups, src: Ranks, dst: Ranks, capacity: Integers, cuts: CutTable
) -> ResidualCapacities:
    """Return the room of untouched groups."""
    ports, nodes = len(groups.cluster_of), len(groups.member_index)
    give, take = np.zeros(ports, dtype=np.int64), np.zeros(ports, dtype=np.int64)
    for port in range(ports):
        for index in range(groups.entry_offsets[port], groups.entry_offsets[port + 1]):
            give[port] += capacity[groups.entries[index]]
        for index in range(groups.exit_offsets[port], groups.exit_offsets[port + 1]):
            take[port] += capacity[groups.exits[index]]
    return ResidualCapacities(
        src,
        dst,
        capacity.copy(),
        cuts.slack.copy(),
        give,
        take,
        give.copy(),
        np.empty(nodes + 2, dtype=np.int64),
        np.zeros(nodes, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


@inlined
def find_path(groups: SwitchGroups, group: int, port: int, partner: int, room: ResidualCapacities) -> int:
    """Write a shortest open path between two ports to `room.path` and return its arcs, 0 if none is found.

    At every switch the way goes on over the arc with most capacity left, and back where it ends blind.
    """
    entry, leave = _nearest_ends(groups, group, port, partner, room)
    if entry < 0:
        return 0
    room.path[0] = entry
    room.search[0] += 1
    start, target = room.dst[entry], room.src[leave]
    depth, node, blind_ends = 1, start, 0
    while node != target:
        onward = _next_arc(groups, group, node, target, room)
        if onward >= 0:
            room.path[depth] = onward
            depth += 1
            node = room.dst[onward]
            continue
        blind_ends += 1
        if node == start or blind_ends > _PATIENCE:
            return 0
        room.dead[node] = room.search[0]
        depth -= 1
        node = room.src[room.path[depth]]
    room.path[depth] = leave
    return depth + 1


@inlined
def _nearest_ends(
    groups: SwitchGroups, group: int, port: int, partner: int, room: ResidualCapacities
) -> tuple[int, int]:
    """Return the open arcs (into the group, out of it) between which the way is shortest, or (-1, -1)."""
    fewest, widest, entry, leave = FAR, 0, -1, -1
    for index in range(groups.entry_offsets[port], groups.entry_offsets[port + 1]):
        into = groups.entries[index]
        for other in range(groups.exit_offsets[partner], groups.exit_offsets[partner + 1]):
            out = groups.exits[other]
            length = _distance(groups, group, room.dst[into], room.src[out])
            width = min(room.residual[into], room.residual[out])
            if width > 0 and (length < fewest or (length == fewest and width > widest)) and length < FAR:
                fewest, widest, entry, leave = length, width, into, out
    return entry, leave


@inlined
def _next_arc(groups: SwitchGroups, group: int, node: int, target: int, room: ResidualCapacities) -> int:
    """Return the open arc with most capacity left on a shortest way from `node` to `target`, or -1."""
    away = _distance(groups, group, node, target)
    best, widest = -1, 0
    for index in range(groups.inner_offsets[node], groups.inner_offsets[node + 1]):
        arc = groups.inner[index]
        after = room.dst[arc]
        if room.residual[arc] <= widest or room.dead[after] == room.search[0]:
            continue
        if _distance(groups, group, after, target) + groups.length[arc] == away:
            best, widest = arc, room.residual[arc]
    return best


@inlined
def _distance(groups: SwitchGroups, group: int, source: int, target: int) -> int:
    row = groups.table_offsets[group] + groups.member_index[source] * groups.sizes[group]
    return int(groups.distance[row + groups.member_index[target]])


@inlined
def take_path(length: int, demand: int, cuts: CutTable, room: ResidualCapacities) -> int:
    """Take up to `demand` units of the path off the residuals and off the slack of cuts; return how many."""
    if length == 0:
        return 0
    amount = demand
    for index in range(length):
        amount = min(amount, room.residual[room.path[index]])
    for charging in (False, True):
        if charging and amount > 0:
            for index in range(length):
                room.residual[room.path[index]] -= amount
        for word in range(cuts.sides.shape[1]):
            amount = _weigh(word, length, amount, cuts, room, charging)
        if amount == 0:
            return 0
    return amount


@inlined
def _weigh(word: int, length: int, amount: int, cuts: CutTable, room: ResidualCapacities, charging: bool) -> int:
    """Return what the cuts of one word leave of `amount`, or charge it to them.

    Splitting (u, w), (w, t) off takes capacity from the cuts that have w on one side, u and t on the other.
    """
    start = cuts.sides[room.src[room.path[0]], word]
    anything = np.uint64(0)
    for index in range(length - 1):
        arc, following = room.path[index], room.path[index + 1]
        anything |= _hurt(start, cuts.sides[room.dst[arc], word], cuts.sides[room.dst[following], word])
    cut = 64 * word
    while anything:
        if anything & np.uint64(1):
            times = 0
            for index in range(length - 1):
                arc, following = room.path[index], room.path[index + 1]
                hurt = _hurt(start, cuts.sides[room.dst[arc], word], cuts.sides[room.dst[following], word])
                times += int((hurt >> np.uint64(cut - 64 * word)) & np.uint64(1))
            if charging:
                room.slack[cut] -= times * amount
            else:
                amount = min(amount, max(0, room.slack[cut]) // times)
        anything >>= np.uint64(1)
        cut += 1
    return amount


@inlined
def _hurt(source: np.uint64, switch: np.uint64, target: np.uint64) -> np.uint64:
    return ~(source ^ target) & (source ^ switch)
