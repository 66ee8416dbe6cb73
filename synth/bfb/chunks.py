"""How many chunks a shard needs, and how long each step takes with them."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np

from synth.bfb.network import MAX_CHUNKS, Network
from synth.bfb.tasks import Loads, StepTimes, WholeChunks, block_chunk_times, blocks_of
from synth.errors import InvalidInput
from synth.executor.port import Executor, Progress


def chunk_times(
    network: Network, loads: Loads, chunks: int, executor: Executor, progress: Progress | None = None
) -> Loads:
    """Return the least time of each step with `chunks` whole chunks per shard, in chunks per unit of capacity.

    Equal capacities: ceil(chunks * U), exactly, because the transportation polytope is integral (the paper's
    rounding, theorem 20, is only a bound). Unequal capacities: one more pass over the problems.
    """
    top, bottom = loads.times.top * chunks, loads.times.bottom
    if network.is_homogeneous:
        return Loads(StepTimes(-(-top // bottom), np.ones_like(bottom)), loads.node, loads.links)
    start = Loads(StepTimes(top, bottom), loads.node, loads.links)
    shared = WholeChunks(network, chunks, start.times)
    return merge_loads([start, *executor.map(block_chunk_times, blocks_of(network.nodes), shared, progress)])


def best_chunks(network: Network, loads: Loads, executor: Executor) -> tuple[int, Loads]:
    """Return the smallest number of chunks per shard that reaches the loads of divisible shards, and its times.

    Necessary: every critical link of a step carries exactly c_k * U, so that must be whole chunks. With equal
    capacities this is also sufficient; else multiples are tried in turn, and the common denominator of all
    c_k * U always works.
    """
    needed, sufficient = _denominators(network, loads)
    for chunks in range(needed, min(sufficient, MAX_CHUNKS) + 1, needed):
        chosen = chunk_times(network, loads, chunks, executor)
        if np.array_equal(chosen.times.top * loads.times.bottom, loads.times.top * chunks * chosen.times.bottom):
            return chunks, chosen
    rule = f"without --chunks, bfb needs at most {MAX_CHUNKS} chunks per shard to reach its optimum"
    raise InvalidInput(
        rule, f"a topology that needs more ({sufficient} suffice)", "choose a number with --chunks, such as 12"
    )


def merge_loads(parts: list[Loads]) -> Loads:
    """Return the largest load of each step over the blocks; the first block wins a tie."""
    top, bottom = parts[0].times.top.copy(), parts[0].times.bottom.copy()
    node, links = parts[0].node.copy(), parts[0].links.copy()
    for part in parts[1:]:
        larger = (part.times.bottom > 0) & ((bottom == 0) | (part.times.top * bottom > top * part.times.bottom))
        top[larger], bottom[larger] = part.times.top[larger], part.times.bottom[larger]
        node[larger], links[larger] = part.node[larger], part.links[larger]
    return Loads(StepTimes(top, bottom), node, links)


def _denominators(network: Network, loads: Loads) -> tuple[int, int]:
    """Return (lcm over critical links, lcm over all links) of the denominators of c_k * U_t."""
    needed = sufficient = 1
    values = [int(value) for value in np.unique(network.capacities)]
    for step in range(len(loads.times.top)):
        load = Fraction(int(loads.times.top[step]), int(loads.times.bottom[step]))
        sufficient = lcm(sufficient, *((load * value).denominator for value in values))
        critical = critical_links(network, loads, step)
        needed = lcm(needed, *((load * int(network.capacities[link])).denominator for link in critical))
    return needed, sufficient


def critical_links(network: Network, loads: Loads, step: int) -> list[int]:
    """Return the ids of the critical in-links of `step`."""
    node = int(loads.node[step])
    first = int(network.offsets[node])
    degree = int(network.offsets[node + 1]) - first
    words = [int(word) for word in loads.links[step]]
    return [first + link for link in range(degree) if words[link // 64] >> (link % 64) & 1]
