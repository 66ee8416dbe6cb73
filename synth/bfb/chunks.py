"""How many chunks a shard needs, and how long each step takes with them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from chorale.synth.bfb.clock import MAX_TIMED_CHUNKS
from chorale.synth.bfb.network import MAX_CHUNKS, BfbNetwork
from chorale.synth.bfb.tasks import IntegralChunks, Loads, StepTimes, block_chunk_times, blocks_of
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.port import Executor, Progress

_USUAL_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MAX_TIMED_CHUNKS)
_NEARLY = Fraction(101, 100)


def chunk_times(
    network: BfbNetwork, loads: Loads, chunks: int, executor: Executor, progress: Progress | None = None
) -> Loads:
    """Return the least time of each step with `chunks` whole chunks per shard, in ticks of a chunk.

    Equal links: ceil(chunks * U), exactly, because the transportation polytope is integral (the paper's
    rounding, theorem 20, is only a bound). Unequal capacities or delays: one more pass over the problems.
    """
    top, bottom = loads.times.top * chunks, loads.times.bottom
    if network.is_homogeneous:
        return Loads(StepTimes(-(-top // bottom), np.ones_like(bottom)), loads.node, loads.links)
    start = Loads(StepTimes(top, bottom), loads.node, loads.links)
    shared = IntegralChunks(network, chunks, start.times)
    return merge_loads([start, *executor.map(block_chunk_times, blocks_of(network.nodes), shared, progress)])


def best_chunks(network: BfbNetwork, loads: Loads, executor: Executor) -> tuple[int, Loads]:
    """Return the smallest number of chunks per shard that reaches the loads of divisible shards, and its times.

    Necessary: every critical link of a step carries exactly c_k * (U - a_k), so that must be whole chunks. With equal
    links this is also sufficient; else multiples are tried in turn, and the common denominator for all links always
    works. Where delays differ that may be as large as the number of bytes: up to `MOST_TIMED_CHUNKS` are tried, then
    `_nearly_best_chunks` chooses.
    """
    needed, sufficient = _denominators(network, loads)
    most = MAX_TIMED_CHUNKS if network.has_delays else MAX_CHUNKS
    for chunks in range(needed, min(sufficient, most) + 1, needed):
        chosen = chunk_times(network, loads, chunks, executor)
        if np.array_equal(chosen.times.top * loads.times.bottom, loads.times.top * chunks * chosen.times.bottom):
            return chunks, chosen
    if network.has_delays:
        return _nearly_best_chunks(network, loads, executor)
    rule = f"without --chunks, bfb needs at most {MAX_CHUNKS} chunks per shard to reach its optimum"
    raise InvalidInput(
        rule, f"a topology that needs more ({sufficient} suffice)", "choose a number with --chunks, such as 12"
    )


def _nearly_best_chunks(network: BfbNetwork, loads: Loads, executor: Executor) -> tuple[int, Loads]:
    """Return the first of `_USUAL_CHUNKS` within 1 % of the time of divisible shards; if none is, the fastest."""
    ideal = _total_time(network, loads, 1)
    best: tuple[Fraction, int, Loads] | None = None
    for chunks in _USUAL_CHUNKS:
        chosen = chunk_times(network, loads, chunks, executor)
        total = _total_time(network, chosen, chunks)
        if best is None or total < best[0]:
            best = total, chunks, chosen
        if total <= ideal * _NEARLY:
            break
    if best is None:
        raise ValueError("there must be numbers of chunks to choose from")
    return best[1:]


def _total_time(network: BfbNetwork, loads: Loads, chunks: int) -> Fraction:
    steps = range(len(loads.times.top))
    return sum((network.step_time(loads.times.of_step(step), chunks) for step in steps), Fraction(0))


def merge_loads(parts: list[Loads]) -> Loads:
    """Return the largest load of each step over the blocks; the first block wins a tie."""
    top, bottom = parts[0].times.top.copy(), parts[0].times.bottom.copy()
    node, links = parts[0].node.copy(), parts[0].links.copy()
    for part in parts[1:]:
        larger = (part.times.bottom > 0) & ((bottom == 0) | (part.times.top * bottom > top * part.times.bottom))
        top[larger], bottom[larger] = part.times.top[larger], part.times.bottom[larger]
        node[larger], links[larger] = part.node[larger], part.links[larger]
    return Loads(StepTimes(top, bottom), node, links)


def _denominators(network: BfbNetwork, loads: Loads) -> tuple[int, int]:
    """Return (lcm over critical links, lcm over all links) of the denominators of c_k * (U_t - a_k) / grain."""
    needed = sufficient = 1
    kinds = np.unique(np.column_stack([network.capacities, network.delays]), axis=0).tolist()
    for step in range(len(loads.times.top)):
        time = loads.times.of_step(step)
        critical = critical_links(network, loads, step)
        critical_kinds = [(int(network.capacities[link]), int(network.delays[link])) for link in critical]
        sufficient = lcm(sufficient, *_parts(kinds, time, network.grain))
        needed = lcm(needed, *_parts(critical_kinds, time, network.grain))
    return needed, sufficient


def _parts(kinds: Sequence[Sequence[int]], time: Fraction, grain: int) -> list[int]:
    """Return the denominators of the shards that links of these (capacity, delay) carry until `time`."""
    return [(capacity * (time - delay) / grain).denominator for capacity, delay in kinds if delay < time]


def critical_links(network: BfbNetwork, loads: Loads, step: int) -> list[int]:
    """Return the ids of the critical in-links of `step`."""
    node = int(loads.node[step])
    first = int(network.offsets[node])
    degree = int(network.offsets[node + 1]) - first
    words = [int(word) for word in loads.links[step]]
    return [first + link for link in range(degree) if words[link // 64] >> (link % 64) & 1]
