"""What libraries do with given traffic on boxes with rails: every pair over one path, by a rank that relays.

NCCL sends from the sender's NIC, or with PXN (2.12 and later) from the NIC of the local rank whose index in its box is
that of the receiver, so that data arrives at the receiver's own NIC. Two-level exchanges (Tutel, DeepSpeed) do the same
in two phases, one inside boxes and one between ranks of equal index.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.methods.alltoall.rate import distances_by
from chorale.synth.methods.alltoall.routing import IntegralFlows
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology

Rail = Literal["sender", "receiver"]
RAILS: tuple[Rail, ...] = ("sender", "receiver")


class ShortestPaths:
    """One shortest path from every rank to every node: the first link into a node that leads a hop nearer.

    hops:    of `problem`, float64[ranks, nodes]
    parents: int64[ranks, nodes], the last link of each path, -1 at its source
    """

    def __init__(self, problem: Commodities) -> None:
        self.problem = problem
        self.hops = distances_by(problem, np.ones(problem.link_count))
        nearer = self.hops[:, problem.src] + 1 == self.hops[:, problem.dst]
        self.parents = np.full(self.hops.shape, -1, dtype=np.int64)
        for link in range(problem.link_count - 1, -1, -1):
            rows = np.flatnonzero(nearer[:, link])
            self.parents[rows, problem.dst[link]] = link

    def loads(self, demand: NDArray[np.int64], starts: NDArray[np.int64] | None = None) -> IntegralFlows:
        """Return int64[links]: the load of every link if row i of `demand`, int64[rows, nodes], goes from `starts[i]`.

        Row i starts at rank i by default. O(rows * nodes * longest path).
        """
        problem = self.problem
        hops, parents = (self.hops, self.parents) if starts is None else (self.hops[starts], self.parents[starts])
        need, loads = demand.copy(), np.zeros(problem.link_count, dtype=np.int64)
        for distance in range(int(hops.max()), 0, -1):
            row, node = np.nonzero((hops == distance) & (need > 0))
            link = parents[row, node]
            np.add.at(loads, link, need[row, node])
            np.add.at(need, (row, problem.src[link]), need[row, node])
        return loads


def relays_of(topology: Topology, rail: Rail) -> NDArray[np.int64]:
    """Return int64[ranks, ranks]: the rank that relays what the row sends to the column; the row itself within a box.

    Over the sender's rail that is the rank of the receiver's box with the sender's index, over the receiver's rail the
    rank of the sender's box with the receiver's index. Indices count modulo the ranks of a box.
    """
    box = np.array(boxes_of(topology))
    members = [np.flatnonzero(box == number) for number in range(int(box.max()) + 1)]
    index = np.empty(len(box), dtype=np.int64)
    for inside in members:
        index[inside] = np.arange(len(inside))
    widest = max(len(inside) for inside in members)
    rank_of = np.array([np.resize(inside, widest) for inside in members])
    near, same = (box[None, :], index[:, None]) if rail == "sender" else (box[:, None], index[None, :])
    own = np.arange(len(box))[:, None]
    return np.where(box[:, None] == box[None, :], own, rank_of[near, same])


def usual_relays(topology: Topology) -> dict[str, NDArray[np.int64]]:
    """Return what libraries do, by its name: the ranks that relay. Without a relay it is the direct path."""
    ranks = topology.compute_count
    direct = np.broadcast_to(np.arange(ranks)[:, None], (ranks, ranks))
    return {"direct": direct, **{f"{rail} rail": relays_of(topology, rail) for rail in RAILS}}


def leg_demands(demand: NDArray[np.int64], relays: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return what every rank sends on the way to relays, and what relays send on, like `demand` int64[ranks, nodes].

    What needs no relay, within a box, is sent by its own source in the second part.
    """
    ranks = len(relays)
    first, second = np.zeros_like(demand), np.zeros_like(demand)
    source, target = np.nonzero(demand[:, :ranks])
    amount, relay = demand[source, target], relays[source, target]
    np.add.at(first, (source, relay), np.where(relay == source, 0, amount))
    np.add.at(second, (relay, target), np.where(relay == target, 0, amount))
    return first, second


def rail_flows(paths: ShortestPaths, relays: NDArray[np.int64]) -> IntegralFlows:
    """Return int64[ranks, links]: the flows from each source, over the relays, all at once."""
    demand, ranks = paths.problem.demand, len(relays)
    flows = np.zeros((ranks, paths.problem.link_count), dtype=np.int64)
    for source in range(ranks):
        alone = np.zeros_like(demand)
        alone[source] = demand[source]
        first, second = leg_demands(alone, relays)
        starts = np.flatnonzero(second.any(axis=1))
        flows[source] = paths.loads(first[[source]], np.array([source]))
        if len(starts):
            flows[source] += paths.loads(second[starts], starts)
    return flows
