"""What to split off next: pairs of ports far apart first, over shortest paths, within what known cuts allow."""

from __future__ import annotations

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.methods.forest.split.augmenting_paths import (
    ResidualCapacities,
    find_path,
    residual_capacities,
    take_path,
)
from chorale.synth.methods.forest.split.cut_table import CutTable
from chorale.synth.methods.forest.split.splitting_off import Splits
from chorale.synth.methods.forest.split.switch_groups import SwitchGroups

# The rounds in which pairs of ports of a group are offered capacity. A share is what a port has to give, spread
# evenly over its partners of that round.
_ALIGNED_UNIT = 0  # same place in another cluster: one unit of the share
_ALIGNED = 1  # the rest of that share
_CROSSING_SHARE = 2  # any two clusters: a share
_CROSSING = 3  # whatever is left
_WITHIN_SHARE = 4  # same cluster
_WITHIN = 5
_RETURN = 6  # back to the port it came from: dropped
_ROUNDS = 7


@compiled
def propose(
    groups: SwitchGroups, src: Ranks, dst: Ranks, capacity: Integers, cuts: CutTable, aligned: bool, returns: bool
) -> Splits:
    """Return splits through the `groups` that leave no cut of `cuts` with negative slack.

    aligned: whether ports at the same place of different clusters are to be joined first
    returns: whether what is left may go back to where it came from, which drops it
    O(ports of a group ^ 2 + splits * degrees along their paths).
    """
    room = residual_capacities(groups, src, dst, capacity, cuts)
    buffer = Splits(np.empty(1024, np.int64), np.zeros(1025, np.int64), np.empty(4096, np.int64))
    made = 0
    for group in range(len(groups.sizes)):
        for stage in range(0 if aligned else _CROSSING_SHARE, _ROUNDS if returns else _RETURN):
            buffer, made = _offer(groups, group, stage, cuts, room, buffer, made)
    return Splits(buffer.amount[:made], buffer.offsets[: made + 1], buffer.arcs[: buffer.offsets[made]])


@inlined
def _offer(
    groups: SwitchGroups, group: int, stage: int, cuts: CutTable, room: ResidualCapacities, buffer: Splits, made: int
) -> tuple[Splits, int]:
    """Join ports of a group as one round does; return the buffer, which may have moved, and the splits in it."""
    first, last = groups.port_offsets[group], groups.port_offsets[group + 1]
    if not (room.give[first:last].any() and room.take[first:last].any()):
        return buffer, made
    if stage != _ALIGNED:
        room.base[first:last] = room.give[first:last]
    shifts = _shifts(groups, group, stage)
    for shift in range(1, shifts + 1):
        for port in range(first, last):
            if room.give[port] == 0:
                continue
            partner = _partner(groups, group, stage, shift, port)
            if partner < 0 or room.take[partner] == 0:
                continue
            wanted = _wanted(stage, room.base[port], shift, shifts, groups.turn[group])
            while wanted > 0:
                length = find_path(groups, group, port, partner, room)
                amount = take_path(length, wanted, cuts, room)
                if amount == 0:
                    break
                buffer = _append(buffer, made, amount, room.path[:length])
                made += 1
                wanted -= amount
                room.give[port] -= amount
                room.take[partner] -= amount
    return buffer, made


@inlined
def _append(buffer: Splits, made: int, amount: int, path: Integers) -> Splits:
    amounts, offsets, arcs = buffer
    used = offsets[made]
    if made == len(amounts):
        amounts, offsets = _doubled(amounts), _doubled(offsets)
    if used + len(path) > len(arcs):
        arcs = _doubled(arcs)
    amounts[made], offsets[made + 1] = amount, used + len(path)
    arcs[used : used + len(path)] = path
    return Splits(amounts, offsets, arcs)


@inlined
def _doubled(values: Integers) -> Integers:
    larger = np.empty(2 * len(values) + 1024, np.int64)
    larger[: len(values)] = values
    return larger


@inlined
def _shifts(groups: SwitchGroups, group: int, stage: int) -> int:
    if stage == _RETURN:
        return 1
    around = groups.group_clusters if stage <= _ALIGNED else groups.port_offsets
    return int(around[group + 1] - around[group] - 1)


@inlined
def _partner(groups: SwitchGroups, group: int, stage: int, shift: int, port: int) -> int:
    """Return the port that is `shift` further on around the group, or -1 if this round does not join them."""
    if stage == _RETURN:
        return port
    cluster = groups.cluster_of[port]
    if stage <= _ALIGNED:
        first, last = groups.group_clusters[group], groups.group_clusters[group + 1]
        other = cluster + shift
        other = other if other < last else other - (last - first)
        partner = groups.cluster_ports[other] + port - groups.cluster_ports[cluster]
        return partner if partner < groups.cluster_ports[other + 1] else -1
    first, last = groups.port_offsets[group], groups.port_offsets[group + 1]
    partner = port + shift
    partner = partner if partner < last else partner - (last - first)
    crossing = groups.cluster_of[partner] != cluster
    return partner if crossing == (stage <= _CROSSING) else -1


@inlined
def _wanted(stage: int, base: int, shift: int, shifts: int, turn: int) -> int:
    if stage in (_CROSSING, _WITHIN, _RETURN):
        return base
    each, rest = base // shifts, base % shifts
    start = turn * rest % shifts  # groups with equal ports take turns: they spread what is left over other shifts
    share = each + (rest * shift + start) // shifts - (rest * (shift - 1) + start) // shifts
    if stage == _ALIGNED_UNIT:
        return min(1, share)
    return max(0, share - 1) if stage == _ALIGNED else share
