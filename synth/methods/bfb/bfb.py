"""Breadth-first broadcast (BFB): every shard spreads along shortest paths, every step balanced exactly.

On vertex-transitive networks it is solved for rank 0 and carried to all ranks by symmetries.
Source: Efficient Direct-Connect Topologies for Collective Communications, long version, section 6.1,
appendix A (reduce_scatter by the transpose), E.2 (chunks), E.3 (unequal links).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chorale.synth.collective import ALLGATHER, Collective
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
from chorale.synth.topology.topology import Topology, transpose_with_links

if TYPE_CHECKING:
    from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule

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
