"""Breadth-first broadcast (BFB): every shard spreads along shortest paths, every step balanced exactly.

Source: Efficient Direct-Connect Topologies for Collective Communications, long version, section 6.1,
appendix A (reduce_scatter by the transpose), E.2 (chunks), E.3 (unequal links).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.bfb.chunks import best_chunks, chunk_times, critical_links, merge_loads
from synth.bfb.network import MAX_CHUNKS, Network, network_of
from synth.bfb.tasks import Loads, WholeChunks, block_loads, block_transfers, blocks_of
from synth.collective import ALLGATHER
from synth.errors import InvalidInput
from synth.executor.port import Executor, Progress
from synth.schedule.routes import Routes
from synth.schedule.schedule import Schedule
from synth.schedule.transfers import ColumnBounds
from synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Solved loads, chosen chunks and step times: all that the placement of chunks needs."""

    network: Network
    loads: Loads  # of divisible shards
    chunks: int
    chosen: Loads  # of whole chunks


def bfb_allgather(
    topology: Topology, executor: Executor, chunks: int | None = None, progress: Progress | None = None
) -> Schedule:
    """Return the BFB allgather of a strongly connected direct-connect `topology`.

    The number of steps is the diameter. Every step takes the least time that any assignment along shortest
    paths allows, exactly, for any link bandwidths and the given number of `chunks` per shard; without it, the
    smallest number that loses nothing against divisible shards. `certificate` names, for every step, the node
    and links that make the step as long as it is; `synth.verify.bfb_certificate` checks it.

    Cost: O(N * links) for hop counts, then for every node O(N * degree) and a few small flows per step.
    Raises InvalidInput for switches, unreachable nodes, or a size beyond the limits.
    """
    plan = _plan(topology, executor, chunks, progress)
    columns = _columns(plan, executor, progress)
    steps = len(plan.loads.times.top)
    bounds = ColumnBounds(steps, len(topology.links), topology.compute_count, plan.chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    routes = Routes.direct(len(topology.links))
    parameters = {"chunks": chunks}
    certificate = _certificate(plan)
    return Schedule(
        topology, ALLGATHER, "stepped", steps, plan.chunks, transfers, routes, "bfb", parameters, certificate
    )


def _plan(topology: Topology, executor: Executor, chunks: int | None, progress: Progress | None) -> _Plan:
    if chunks is not None and not 1 <= chunks <= MAX_CHUNKS:
        raise InvalidInput(f"chunks per shard must be 1 to {MAX_CHUNKS}", chunks, "choose a number in that range")
    network = network_of(topology)
    loads = merge_loads(executor.map(block_loads, blocks_of(network.nodes), network, progress))
    if chunks is None:
        return _Plan(network, loads, *best_chunks(network, loads, executor))
    return _Plan(network, loads, chunks, chunk_times(network, loads, chunks, executor, progress))


def _columns(plan: _Plan, executor: Executor, progress: Progress | None) -> list[NDArray[np.unsignedinteger]]:
    shared = WholeChunks(plan.network, plan.chunks, plan.chosen.times)
    parts = executor.map(block_transfers, blocks_of(plan.network.nodes), shared, progress)
    return [np.concatenate([part[column] for part in parts]) for column in range(5)]


def _certificate(plan: _Plan) -> Mapping[str, Any]:
    """Say for every step which node and links make its load, and which make its time in whole chunks."""
    steps = range(len(plan.loads.times.top))
    return {
        "kind": "bfb-steps",
        "loads": [_reason(plan.network, plan.loads, step) for step in steps],
        "times": [_reason(plan.network, plan.chosen, step) for step in steps],
    }


def _reason(network: Network, loads: Loads, step: int) -> Mapping[str, Any]:
    value = Fraction(int(loads.times.top[step]), int(loads.times.bottom[step])) / network.unit
    return {"value": str(value), "node": int(loads.node[step]), "links": critical_links(network, loads, step)}
