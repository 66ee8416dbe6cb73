"""Makes breadth-first broadcasts (BFB): shards spread along shortest paths, and every step is optimally balanced.

On vertex-transitive networks, only the transfers of rank 0 are computed; symmetries map them to all ranks. Source: Zhao
et al., "Efficient Direct-Connect Topologies for Collective Communications", long version, section 6.1, appendices A
(reduce_scatter on the transpose), E.2 (chunks) and E.3 (links of different bandwidths and latencies).

`breadth_first_floor` bounds BFB's time without making a schedule: in step t, every node receives the shards of all
nodes at distance t over its incoming links, so the step takes as long as the slowest node needs. On networks such as
meshes, the slowest node differs from step to step, so the total time exceeds the time of any single node (section 4 of
the paper).
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.bfb.plan import (
    certificate_of,
    make_plan,
    network_of,
    network_of_nodes,
    parameters_of,
    transfer_columns,
)
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.topology.distance import distances_from, distances_to
from chorale.synth.topology.topology import Topology, automorphisms_are_transitive, transpose_with_links

if TYPE_CHECKING:
    from chorale.synth.schedule.symmetric import SymmetricSchedule


MAX_NODES = 512
"""Maximum number of nodes that `breadth_first_floor` examines. The bound is valid for any choice of nodes."""
MAX_EXPANDED_RANKS = 4096
"""Above this number of ranks, schedules are expanded to the rows of all ranks only on request, because this is slow."""
MIN_EXPANDED_SYMMETRICALLY = 64
"""From this number of ranks on, the rows of all ranks are made as symmetric images of rank 0's rows if possible."""
MIN_SYMMETRIC_RANKS = 512
"""From this number of ranks on, schedules are stored in symmetric form if symmetries are known."""


def breadth_first_floor(topology: Topology, collective: CollectiveName) -> Fraction | None:
    """Return a lower bound on BFB's bandwidth time per byte, or None if none is known without making a schedule.

    A bound is known only for allgather and reduce_scatter on networks without switches. The sum of these two bounds is
    a bound for allreduce. O(nodes considered * links).
    """
    if topology.switch_count or topology.compute_count < 2:
        return None
    if collective not in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER):
        return None
    inward, links, ranks = collective == CollectiveName.ALLGATHER, topology.links, topology.compute_count
    units, scale = links.integer_bandwidths()
    bandwidth = np.zeros(ranks, dtype=np.int64)
    useful = links.src != links.dst
    np.add.at(bandwidth, (links.dst if inward else links.src)[useful], units[useful])
    if automorphisms_are_transitive(topology):
        nodes = np.zeros(1, dtype=np.int64)
    elif ranks <= MAX_NODES:
        nodes = np.arange(ranks)
    else:  # the nodes with the least bandwidth, and a sample of all nodes
        narrow = np.argsort(bandwidth, kind="stable")[: MAX_NODES // 2]
        nodes = np.unique(np.append(narrow, np.linspace(0, ranks - 1, MAX_NODES // 2).astype(np.int64)))
    hops = (distances_to if inward else distances_from)(topology, nodes).astype(np.int64)
    steps = int(hops.max()) + 1
    counts = np.bincount((np.arange(len(nodes))[:, None] * steps + hops).ravel(), minlength=len(nodes) * steps)
    at_distance = counts.reshape(len(nodes), steps)[:, 1:]
    kinds = [(value, at_distance[bandwidth[nodes] == value].max(axis=0)) for value in set(bandwidth[nodes].tolist())]
    longest = (max(Fraction(int(most[step]), value) for value, most in kinds) for step in range(steps - 1))
    return sum(longest, Fraction(0)) * scale / ranks


def prefers_symmetric_form(topology: Topology) -> bool:
    """Return whether `topology` is so large and symmetric that schedules should store only the rows of rank 0."""
    return topology.compute_count >= MIN_SYMMETRIC_RANKS and automorphisms_are_transitive(topology)


def symmetric_bfb(
    topology: Topology,
    collective: Collective,
    executor: Executor,
    chunks: int | None = None,
    *,
    progress: Progress | None = None,
    size_bytes: int | None = None,
) -> SymmetricSchedule:
    """Return the breadth-first schedule of `collective`, stored as the transfers of rank 0 and symmetries.

    An allgather has the same steps, chunks and cost as the result of `bfb_allgather`, because symmetries map rank 0 to
    all other ranks, so that all ranks need the same time in each step. A reduce_scatter has the steps, chunks and cost
    of the allgather on the transpose. O(degree * links) for hop counts, plus the time for one rank's flow problems.

    Raises:
        InvalidInput: if symmetries of `topology` do not map rank 0 to every rank, and in the same cases as
            `bfb_allgather`.
    """
    from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule, symmetric_parts  # noqa: PLC0415

    def gather(network: Topology) -> SymmetricGather:
        rank_0 = network_of_nodes(network, np.zeros(1, dtype=np.int64), size_bytes)
        plan = make_plan(rank_0, executor, chunks, progress)
        bounds = ColumnBounds(plan.steps, len(network.links), network.compute_count, plan.chunks)
        base = bounds.pack(transfer_columns(plan, executor, progress))
        return SymmetricGather(network, plan.steps, plan.chunks, base, certificate_of(plan))

    has_scatter, has_gather = symmetric_parts(collective)
    scatter = gather(transpose_with_links(topology)[0]) if has_scatter else None
    parameters = parameters_of(chunks, size_bytes)
    return SymmetricSchedule(topology, collective, scatter, gather(topology) if has_gather else None, "bfb", parameters)


def bfb_allgather(
    topology: Topology,
    executor: Executor,
    chunks: int | None = None,
    progress: Progress | None = None,
    size_bytes: int | None = None,
) -> Schedule:
    """Return the BFB allgather of a strongly connected network without switches. The number of steps is the diameter.

    Whatever the bandwidths, every step takes exactly the minimum time that is possible if data use shortest paths. The
    certificate names the node and the links that determine the time of each step;
    `chorale.synth.verify.bfb_certificate` checks it. Takes O(N * links) for hop counts, then, for each node (one node
    on large networks with symmetries), O(N * degree) and a few small flow problems per step, then O(rows of the
    schedule).

    Args:
        chunks: chunks per shard; None for the smallest number that is as fast as infinitely divisible shards.
        size_bytes: size of the complete vector in bytes; None to ignore latencies. With a size, a step takes the
            largest latency + load / bandwidth of any link, and links whose latency is too high are not used. If
            latencies differ, an enormous number of chunks may be necessary to be as fast as divisible shards. If more
            than 64 are necessary, several numbers up to 64 are tried, then larger ones up to 4096, including numbers
            for which the loads of the busiest links are close to whole numbers of chunks. The first number within 1 %
            of the time of divisible shards is chosen, or else the fastest number. The certificate contains the times
            for divisible shards and for the chosen number.

    Raises:
        InvalidInput: if there are switches or unreachable nodes, if there are too many nodes, hops or chunks, if
            numbers would exceed 64 bits, or if `size_bytes` is given but bandwidths are not in bytes per second.
    """
    is_large = topology.compute_count >= MIN_EXPANDED_SYMMETRICALLY and not topology.switch_count
    if is_large and automorphisms_are_transitive(topology):
        return symmetric_bfb(topology, ALLGATHER, executor, chunks, progress=progress, size_bytes=size_bytes).expand()
    plan = make_plan(network_of(topology, size_bytes), executor, chunks, progress)
    bounds = ColumnBounds(plan.steps, len(topology.links), topology.compute_count, plan.chunks)
    return Schedule(
        topology, ALLGATHER, "stepped", plan.steps, plan.chunks,
        bounds.pack(transfer_columns(plan, executor, progress)), Routes.direct(len(topology.links)), "bfb",
        parameters_of(chunks, size_bytes), certificate_of(plan),
    )  # fmt: skip
