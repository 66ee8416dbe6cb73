"""Breadth-first broadcast of vertex-transitive networks: solved for rank 0, carried to all ranks by symmetries."""

from __future__ import annotations

from chorale.synth.bfb.network import network_of_rank_0
from chorale.synth.bfb.plan import certificate_of, make_plan, parameters_of, transfer_columns
from chorale.synth.collective import Collective
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.schedule.symmetric import SymmetricGather, SymmetricSchedule, symmetric_parts
from chorale.synth.schedule.transfers import ColumnBounds
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose_with_links

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
    progress: Progress | None = None,
    size_bytes: int | None = None,
) -> SymmetricSchedule:
    """Return the breadth-first broadcast of `collective` as base transfers and symmetries.

    The same steps, chunks and cost as `bfb_allgather` (and its reversal) on the same topology: a symmetry takes
    the problems of rank 0 to those of any other rank, so that all have the same least times. Cost: O(degree *
    links) for hop counts, then the problems of one rank. Raises InvalidInput unless the symmetries that
    `topology` carries take rank 0 to every rank, and where breadth-first broadcast does not apply.
    """
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
    plan = make_plan(network_of_rank_0(topology, size_bytes), executor, chunks, progress)
    bounds = ColumnBounds(plan.steps, len(topology.links), topology.compute_count, plan.chunks)
    base = bounds.pack(transfer_columns(plan, executor, progress))
    return SymmetricGather(topology, plan.steps, plan.chunks, base, certificate_of(plan))
