"""The plan of a breadth-first broadcast: loads, chunks and step times, before chunks are placed on links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bfb.chunks import best_chunks, chunk_times, critical_links, merge_loads
from chorale.synth.bfb.clock import MAX_TIMED_CHUNKS
from chorale.synth.bfb.network import MAX_CHUNKS, BfbNetwork
from chorale.synth.bfb.tasks import IntegralChunks, Loads, block_loads, block_transfers, blocks_of
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.port import Executor, Progress


@dataclass(frozen=True, slots=True, eq=False)
class BfbPlan:
    """Solved loads, chosen chunks and step times: all that the placement of chunks needs."""

    network: BfbNetwork
    loads: Loads  # of divisible shards
    chunks: int
    chosen: Loads  # of whole chunks

    @property
    def steps(self) -> int:
        return len(self.loads.times.top)


def make_plan(network: BfbNetwork, executor: Executor, chunks: int | None, progress: Progress | None) -> BfbPlan:
    """Return the plan for the nodes of `network`; chunks as in `bfb_allgather`."""
    if chunks is not None and not 1 <= chunks <= MAX_CHUNKS:
        raise InvalidInput(f"chunks per shard must be 1 to {MAX_CHUNKS}", chunks, "choose a number in that range")
    network.require_magnitude(MAX_TIMED_CHUNKS if chunks is None else chunks)
    loads = merge_loads(executor.map(block_loads, blocks_of(network.nodes), network, progress))
    if chunks is None:
        return BfbPlan(network, loads, *best_chunks(network, loads, executor))
    return BfbPlan(network, loads, chunks, chunk_times(network, loads, chunks, executor, progress))


def parameters_of(chunks: int | None, size_bytes: int | None) -> Mapping[str, int | None]:
    """Return what a schedule was asked for with."""
    return {"chunks": chunks} if size_bytes is None else {"chunks": chunks, "size_bytes": size_bytes}


def transfer_columns(plan: BfbPlan, executor: Executor, progress: Progress | None) -> list[NDArray[np.unsignedinteger]]:
    """Return the columns of `Transfers`: what every node receives, by node, step and shard."""
    shared = IntegralChunks(plan.network, plan.chunks, plan.chosen.times)
    parts = executor.map(block_transfers, blocks_of(plan.network.nodes), shared, progress)
    columns = [np.concatenate([part[column] for part in parts]) for column in range(5)]
    return [*columns, np.zeros(len(columns[0]), dtype=np.uint8)]


def certificate_of(plan: BfbPlan) -> Mapping[str, Any]:
    """Say for every step which node and links make its load, and which make its time in whole chunks."""
    steps = range(plan.steps)
    clock = plan.network.latency_ticks
    return {
        "kind": "bfb-steps",
        **({} if clock is None else {"size_bytes": clock.size_bytes}),
        "loads": [_reason(plan.network, plan.loads, step, 1) for step in steps],
        "times": [_reason(plan.network, plan.chosen, step, plan.chunks) for step in steps],
    }


def _reason(network: BfbNetwork, loads: Loads, step: int, chunks: int) -> Mapping[str, Any]:
    value = network.step_time(loads.times.of_step(step), chunks)
    return {"value": str(value), "node": int(loads.node[step]), "links": critical_links(network, loads, step)}
