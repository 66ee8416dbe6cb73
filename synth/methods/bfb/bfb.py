"""Breadth-first broadcast (BFB): every shard spreads along shortest paths, every step balanced exactly.

On vertex-transitive networks it is solved for rank 0 and carried to all ranks by symmetries. Source: Efficient Direct-
Connect Topologies for Collective Communications, long version, section 6.1, appendix A (reduce_scatter by the
transpose), E.2 (chunks), E.3 (unequal links).

How fast breadth-first broadcast can be at best, without making it: what nodes have to receive in each step.

In step t every node receives the shards of all nodes at distance t, over its incoming links. The step takes at least as
long as that takes the node for which it takes longest. Where nodes differ, as on meshes, these nodes differ from step
to step, so that the sum is more than what any single node needs. Source: paper on direct-connect topologies, section 4,
the loads of a step.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.bfb.plan import (
    certificate_of,
    make_plan,
    network_of,
    network_of_rank_0,
    parameters_of,
    transfer_columns,
)
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.distance import distances_from, distances_to, sole_links
from chorale.synth.topology.topology import Topology, transpose_with_links

if TYPE_CHECKING:
    from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule


MAX_NODES = 512
"""Nodes that are looked at; the bound holds whichever these are."""


def breadth_first_floor(topology: Topology, collective: CollectiveName) -> Fraction | None:
    """Return a lower bound on T_B / M of breadth-first broadcast; None where none is known without making it.

    For allgather and reduce_scatter on networks without switches; an allreduce takes as long as both.
    O(nodes looked at * links).
    """
    if topology.switch_count or topology.compute_count < 2:
        return None
    if collective in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        return _floor(topology, inward=collective == CollectiveName.ALLGATHER)
    return None


def _floor(topology: Topology, inward: bool) -> Fraction:
    """Return the sum over steps of the longest time that a node needs; `inward`: to receive, else to send."""
    bandwidth, scale = _bandwidths(topology, inward)
    nodes = _nodes(topology, bandwidth)
    find = distances_to if inward else distances_from
    hops = find(topology, nodes).astype(np.int64)
    steps = int(hops.max()) + 1
    counts = np.bincount((np.arange(len(nodes))[:, None] * steps + hops).ravel(), minlength=len(nodes) * steps)
    at_distance = counts.reshape(len(nodes), steps)[:, 1:]
    total = Fraction(0)
    kinds = [
        (int(value), at_distance[bandwidth[nodes] == value].max(axis=0)) for value in set(bandwidth[nodes].tolist())
    ]
    forced = _forced_loads(topology, steps, inward) if len(nodes) == topology.compute_count else None
    for step in range(steps - 1):
        time = max(Fraction(int(most[step]), value) for value, most in kinds) * scale
        total += time if forced is None else max(time, topology.links.longest_time(forced[:, step + 1]))
    return total / topology.compute_count


def _forced_loads(topology: Topology, steps: int, inward: bool) -> NDArray[np.int64]:
    """Return int64[links, steps]: how many shards take the link in the step as there is no other shortest path.

    A node of a corner has one way to each node of its row. O(nodes * links).
    """
    links, nodes = topology.links, np.arange(topology.compute_count)
    tails, heads, find = (links.dst, links.src, distances_from) if inward else (links.src, links.dst, distances_to)
    hops = find(topology, nodes)
    link = sole_links(hops, tails, heads)
    only = link >= 0
    counts = np.bincount(link[only] * steps + hops[only], minlength=len(links) * steps)
    return counts.reshape(len(links), steps)


def _nodes(topology: Topology, bandwidth: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which nodes to look at: one where all are alike, else those of least bandwidth, and some of all."""
    count = topology.compute_count
    if count > 1 and automorphisms_are_transitive(topology):
        return np.zeros(1, dtype=np.int64)
    if count <= MAX_NODES:
        return np.arange(count)
    narrow = np.argsort(bandwidth, kind="stable")[: MAX_NODES // 2]
    spread = np.linspace(0, count - 1, MAX_NODES // 2).astype(np.int64)
    return np.flatnonzero(np.isin(np.arange(count), np.concatenate([narrow, spread])))


def _bandwidths(topology: Topology, inward: bool) -> tuple[NDArray[np.int64], int]:
    """Return the bandwidth of the links into each node (or out of it), in whole numbers of 1 / `scale`."""
    links = topology.links
    scale = lcm(*(Fraction(value).denominator for value in links.bandwidths))
    whole = np.array([int(Fraction(value) * scale) for value in links.bandwidths], dtype=np.int64)
    ends = links.dst if inward else links.src
    total = np.zeros(topology.node_count, dtype=np.int64)
    np.add.at(total, ends[links.src != links.dst], whole[links.bandwidth_class][links.src != links.dst])
    return total, scale


MAX_EXPANDED_RANKS = 4096
"""Above this number of ranks the rows of all ranks are too many to be written out as a matter of course."""

MIN_SYMMETRIC_RANKS = 64
"""From this number of ranks on, the rows of all ranks are images of those of rank 0 where symmetries are known.

Below, both ways take a few milliseconds."""


def uses_symmetries(topology: Topology) -> bool:
    """Whether it pays to solve rank 0 only, and `topology` is known to be vertex-transitive."""
    large = topology.compute_count >= MIN_SYMMETRIC_RANKS and not topology.switch_count
    return large and automorphisms_are_transitive(topology)


def prefers_symmetric_form(topology: Topology) -> bool:
    """Whether `topology` is too large for the rows of all ranks, and known to be vertex-transitive."""
    return topology.compute_count > MAX_EXPANDED_RANKS and automorphisms_are_transitive(topology)


def symmetric_bfb(
    topology: Topology,
    collective: Collective,
    executor: Executor,
    chunks: int | None = None,
    *,
    progress: Progress | None = None,
    size_bytes: int | None = None,
) -> SymmetricSchedule:
    """Return the breadth-first broadcast of `collective` as base transfers and symmetries.

    The same steps, chunks and cost as `bfb_allgather` (and its reversal) on the same topology: a symmetry takes
    the problems of rank 0 to those of any other rank, so that all have the same least times. Cost: O(degree *
    links) for hop counts, then the problems of one rank. Raises InvalidInput unless the symmetries that
    `topology` carries take rank 0 to every rank, and where breadth-first broadcast does not apply.
    """
    from chorale.synth.schedule.symmetric import SymmetricSchedule, symmetric_parts  # noqa: PLC0415 (large networks)

    has_scatter, has_gather = symmetric_parts(collective)
    scatter = gather = None
    if has_scatter:
        scatter = _gather(transpose_with_links(topology)[0], executor, chunks, progress, size_bytes)
    if has_gather:
        gather = _gather(topology, executor, chunks, progress, size_bytes)
    return SymmetricSchedule(topology, collective, scatter, gather, "bfb", parameters_of(chunks, size_bytes))


def _gather(
    topology: Topology, executor: Executor, chunks: int | None, progress: Progress | None, size_bytes: int | None
) -> SymmetricGather:
    from chorale.synth.schedule.symmetric import SymmetricGather  # noqa: PLC0415 (as above)

    plan = make_plan(network_of_rank_0(topology, size_bytes), executor, chunks, progress)
    bounds = ColumnBounds(plan.steps, len(topology.links), topology.compute_count, plan.chunks)
    base = bounds.pack(transfer_columns(plan, executor, progress))
    return SymmetricGather(topology, plan.steps, plan.chunks, base, certificate_of(plan))


def bfb_allgather(
    topology: Topology,
    executor: Executor,
    chunks: int | None = None,
    progress: Progress | None = None,
    size_bytes: int | None = None,
) -> Schedule:
    """Return the BFB allgather of a strongly connected direct-connect `topology`.

    The number of steps is the diameter. Every step takes the least time that any assignment along shortest
    paths allows, exactly, for any link bandwidths and the given number of `chunks` per shard; without it, the
    smallest number that loses nothing against divisible shards. `certificate` names, for every step, the node
    and links that make the step as long as it is; `chorale.synth.verify.bfb_certificate` checks it.

    size_bytes: bytes of the whole vector. With it, the time of a step is the largest latency + load / bandwidth of a
    link that is used, and links whose latency does not pay at this size stay unused; without it latencies do not
    count. Where latencies differ, the number of chunks that loses nothing may be enormous: if 64 do not suffice, it
    is the first of 1, 2, 3, 4, 6, 8, 12, … 64, then of what suits the busiest links and doublings up to 4096, within
    1 % of divisible shards, else the fastest of these. The certificate gives both times.

    Cost: O(N * links) for hop counts, then for every node O(N * degree) and a few small flows per step;
    on large networks with known symmetries that take any rank to any other, for one node only, then O(rows).
    Raises InvalidInput for switches, unreachable nodes, numbers beyond the limits, and for a `size_bytes` on a network
    whose bandwidths count links.
    """
    if uses_symmetries(topology):
        return symmetric_bfb(topology, ALLGATHER, executor, chunks, progress=progress, size_bytes=size_bytes).expand()
    plan = make_plan(network_of(topology, size_bytes), executor, chunks, progress)
    columns = transfer_columns(plan, executor, progress)
    bounds = ColumnBounds(plan.steps, len(topology.links), topology.compute_count, plan.chunks)
    transfers = bounds.pack(columns)
    routes = Routes.direct(len(topology.links))
    parameters = parameters_of(chunks, size_bytes)
    certificate = certificate_of(plan)
    return Schedule(
        topology, ALLGATHER, "stepped", plan.steps, plan.chunks, transfers, routes, "bfb", parameters, certificate
    )
