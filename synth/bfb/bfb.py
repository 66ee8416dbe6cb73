"""Breadth-first broadcast (BFB): every shard spreads along shortest paths, every step balanced exactly.

Source: Efficient Direct-Connect Topologies for Collective Communications, long version, section 6.1,
appendix A (reduce_scatter by the transpose), E.2 (chunks), E.3 (unequal links).
"""

from __future__ import annotations

from chorale.synth.bfb.network import network_of
from chorale.synth.bfb.plan import certificate_of, make_plan, parameters_of, transfer_columns
from chorale.synth.bfb.symmetric import symmetric_bfb, uses_symmetries
from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.transfers import ColumnBounds
from chorale.synth.topology.topology import Topology


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
    is the first of 1, 2, 3, 4, 6, 8, 12, … 64 within 1 % of divisible shards, else the fastest of these. The
    certificate gives both times.

    Cost: O(N * links) for hop counts, then for every node O(N * degree) and a few small flows per step;
    on large networks with known symmetries that take any rank to any other, for one node only, then O(rows).
    Raises InvalidInput for switches, unreachable nodes, numbers beyond the limits, and for a `size_bytes` on a network
    whose bandwidths count links.
    """
    if uses_symmetries(topology):
        return symmetric_bfb(topology, ALLGATHER, executor, chunks, progress, size_bytes).expand()
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
