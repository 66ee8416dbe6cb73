"""Plans an all-to-all with given shard sizes for boxes of GPUs with a NIC per rail. A plan needs up to 3 library calls.

All ranks know the sizes of all shards and compute the same plan. The first call moves data to the ranks whose NICs will
send it, the second over these NICs to other boxes, and the third to its targets. The plan is used if it is
predicted to take less time than one library call, which sends each shard over the shortest path.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch._C import _distributed_c10d as c10d

from chorale.job.table.layout import Table
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.fabric import RailFabric, rail_fabric
from chorale.synth.methods.traffic.matrix import ChunkCounts, traffic_matrix
from chorale.synth.methods.traffic.two_level import pieces_over, plan_rails
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import bytes_per_second


@dataclass(frozen=True, slots=True, eq=False)
class RailExchange:
    """A planned all-to-all of pieces of shards, which takes several library calls.

    Call number `leg` moves piece i, which has `amounts[i]` elements, from rank `stops[leg][i]` to `stops[leg + 1][i]`.
    """

    amounts: NDArray[np.int64]
    stops: tuple[NDArray[np.int64], ...]

    def run(self, group: Any, rank: int, ranks: int, source: Any, target: Any, options: Any) -> None:
        """Run the plan on flat tensors. Return when the run is complete or, on an accelerator, enqueued.

        options: torch's options for each call of `group`
        """
        amounts, held = self.amounts, np.flatnonzero(self.stops[0] == rank)
        parts = _parts(held, amounts, source)
        for before, after in pairwise(self.stops):
            if np.array_equal(before, after):
                continue
            sends = held[np.argsort(after[held], kind="stable")]
            held = np.flatnonzero(after == rank)
            comes = held[np.argsort(before[held], kind="stable")]
            given = torch.cat([source[:0], *(parts[piece] for piece in sends.tolist())])
            taken = source.new_empty(int(amounts[comes].sum()))
            splits = [
                np.bincount(peers, weights=amounts[pieces], minlength=ranks).astype(int).tolist()
                for peers, pieces in ((before[comes], comes), (after[sends], sends))
            ]
            group.alltoall_base(taken, given, *splits, options or c10d.AllToAllOptions()).wait()
            parts = _parts(comes, amounts, taken)
        target.copy_(torch.cat([source[:0], *(parts[piece] for piece in held.tolist())]))


def _parts(pieces: NDArray[np.int64], amounts: NDArray[np.int64], whole: Any) -> dict[int, Any]:
    return dict(zip(pieces.tolist(), whole.split(amounts[pieces].tolist()), strict=True))


def network_of_table(table: Table, members: Sequence[int]) -> RailFabric | None:
    """Return the table's network if it has bandwidths and boxes with rails and `members` are all ranks, else None."""
    if tuple(members) != tuple(range(table.ranks)):
        return None
    with suppress(InvalidInput):  # for example, the spec names a file that this rank does not have
        topology = parse_topology(str(table.topology.get("spec", "")))
        bytes_per_second(topology)
        return rail_fabric(topology) if topology.compute_count == table.ranks else None
    return None


def planned_exchange(fabric: RailFabric, sizes: NDArray[np.int64], element_bytes: int) -> RailExchange | None:
    """Return a plan for `sizes` (elements by sender and receiver), or None if the plan would save less than 1 ms."""
    try:
        matrix = traffic_matrix("sizes", sizes)
    except InvalidInput:  # no rank sends anything, or the amounts are too large
        return None
    plan = plan_rails(fabric, matrix, ChunkCounts(matrix.amounts, Fraction(1)))
    pieces = plan.pieces
    near = pieces.sender < 0
    sender, receiver = np.where(near, pieces.source, pieces.sender), np.where(near, pieces.target, pieces.receiver)
    stops = pieces.source, sender, receiver, pieces.target
    legs_time = Fraction(0)
    for before, after in pairwise(stops):
        moves = before != after
        src, dst = before[moves].astype(np.int32), after[moves].astype(np.int32)
        is_far = fabric.box[src] != fabric.box[dst]
        over = np.where(is_far, src, np.int32(-1)), np.where(is_far, dst, np.int32(-1))
        legs_time += fabric.time(fabric.loads_of(src, dst, *over, pieces.amount[moves]))
    direct = fabric.loads_of(*pieces_over(matrix.amounts, *fabric.usual["direct"]))
    gain_s = (fabric.time(direct) - legs_time) * element_bytes / bytes_per_second(fabric.topology)
    if gain_s < 1e-3:  # a smaller gain is lost to two additional library calls and two copies
        return None
    own = np.arange(len(sizes))
    amounts = np.concatenate([pieces.amount, sizes.diagonal()])
    columns = [np.concatenate([stop, own]) for stop in stops]
    order = np.lexsort((columns[-1], columns[0]))
    order = order[amounts[order] > 0]
    return RailExchange(amounts[order], tuple(column[order] for column in columns))
