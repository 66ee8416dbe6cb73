"""Recommends where to place experts: which experts to replicate or swap, and how much time this saves.

Each step is the best of a few options: an expert with many tokens on the busiest ranks gets a replica on a less busy
rank, or is swapped with an expert there. Options are compared by the cut bound, then by how unequal the cuts' times
are. The baseline is the greedy rule of EPLB (DeepSeek, 2025): it adds replicas of the experts with the most tokens,
then places experts in descending order of tokens, each on the rank with the fewest tokens so far.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.synth.methods.traffic.cuts import Cut, cuts_of_tokens
from chorale.synth.methods.traffic.tokens import Numbers, TokenBatch, route_tokens
from chorale.synth.topology.topology import Topology

_SAMPLE = 4096
_EXPERTS, _RANKS = 4, 3


@dataclass(frozen=True, slots=True, eq=False)
class PlacementStep:
    """A change: `expert` on rank `source` is copied to rank `target`, or swapped with the expert `other` on `target`.

    time_lower: lower bound on the time to send the tokens after this step, in data / bandwidth
    placement:  the placement of all experts after this step, as in `TokenBatch`
    """

    expert: int
    source: int
    target: int
    other: int | None
    time_lower: Fraction
    placement: Numbers


def advise(topology: Topology, batch: TokenBatch, most: int) -> list[PlacementStep]:
    """Return up to `most` steps. Each step lowers the bound on the time to send the tokens, or makes cuts more equal.

    Deterministic. Steps are chosen with a sample of at most 4,096 tokens, but `time_lower` is for all tokens. O(most *
    tokens * ranks).
    """
    every = -(-len(batch.experts) // _SAMPLE)
    sample = batch._replace(experts=batch.experts[::every], sources=batch.sources[::every])
    ranks, placement = topology.compute_count, batch.placement
    steps: list[PlacementStep] = []
    cost = _cost(topology, sample)
    while len(steps) < most:
        cuts = _cuts(topology, sample._replace(placement=placement))
        options = [
            (_cost(topology, sample._replace(placement=after)), number, (expert, source, target, other), after)
            for number, (expert, source, target, other, after) in enumerate(_options(sample, placement, cuts, ranks))
        ]
        best = min(options, key=lambda option: option[:2], default=None)
        if best is None or best[0] >= cost:
            break
        cost, _, names, placement = best
        steps.append(PlacementStep(*names, bound_of(topology, batch._replace(placement=placement)), placement))
    return steps


def bound_of(topology: Topology, batch: TokenBatch) -> Fraction:
    """Return a lower bound on the time of any plan for `batch`, in data / bandwidth."""
    return max(cut.time for cut in _cuts(topology, batch))


def _cuts(topology: Topology, batch: TokenBatch) -> list[Cut]:
    return cuts_of_tokens(topology, route_tokens(batch, topology.compute_count))


def _cost(topology: Topology, batch: TokenBatch) -> tuple[Fraction, float]:
    """Return (bound, sum of the fourth powers of the cuts' times, which is large if the times are unequal)."""
    times = [cut.time for cut in _cuts(topology, batch)]
    most = max(times) or Fraction(1)
    return max(times), round(sum(float(time / most) ** 4 for time in times) * float(most) ** 4, 9)


def _options(
    batch: TokenBatch, placement: Numbers, cuts: list[Cut], ranks: int
) -> Iterator[tuple[int, int, int, int | None, Numbers]]:
    """Yield possible steps as (expert, source, target, expert to swap it with or None, new placement)."""
    tokens = np.bincount(batch.experts[batch.experts >= 0], minlength=len(placement))
    share = tokens / np.maximum((placement >= 0).sum(axis=1), 1)
    into = [cut for cut in cuts if not cut.is_out]
    busiest = max(into, key=lambda cut: cut.time)
    load = np.zeros(ranks)
    for cut in into:  # all ranks in a busy box count as busy
        ranks_there = list(cut.region.ranks)
        load[ranks_there] = np.maximum(load[ranks_there], float(cut.time))
    expert, replica = np.nonzero(np.isin(placement, busiest.region.ranks))
    hot = np.argsort(-share[expert], kind="stable")[:_EXPERTS]
    calm = [rank for rank in np.argsort(load, kind="stable").tolist() if rank not in busiest.region.ranks]
    for which, place in zip(expert[hot].tolist(), replica[hot].tolist(), strict=True):
        source = int(placement[which, place])
        for target in [rank for rank in calm if rank not in placement[which]][:_RANKS]:
            free = np.flatnonzero(placement[which] < 0)
            after = placement.copy() if len(free) else np.column_stack([placement, np.full(len(placement), -1)])
            after[which, free[0] if len(free) else -1] = target
            yield which, source, target, None, after
            there, there_place = np.nonzero(placement == target)
            if len(there):
                least = int(np.argmin(share[there]))
                after = placement.copy()
                after[which, place], after[there[least], there_place[least]] = target, source
                if source not in placement[there[least]]:
                    yield which, source, target, int(there[least]), after


def eplb(batch: TokenBatch, ranks: int, replicas: int) -> Numbers:
    """Return EPLB's greedy placement (see `TokenBatch`) with `replicas` additional replicas."""
    tokens = np.bincount(batch.experts[batch.experts >= 0], minlength=len(batch.placement)).astype(float)
    count = np.ones(len(tokens), dtype=np.int64)
    for _ in range(replicas):
        count[int(np.argmax(np.where(count < ranks, tokens / count, -1)))] += 1
    slots = np.full(ranks, -(-int(count.sum()) // ranks))
    load, placement = np.zeros(ranks), np.full((len(tokens), int(count.max())), -1)
    order = np.repeat(np.arange(len(tokens)), count)
    for expert in order[np.argsort(-(tokens / count)[order], kind="stable")].tolist():
        free = (slots > 0) & ~np.isin(np.arange(ranks), placement[expert])
        if not free.any():
            continue  # every rank that has room already has this expert
        rank = int(np.argmin(np.where(free, load, np.inf)))
        placement[expert, int(np.argmax(placement[expert] < 0))] = rank
        load[rank] += tokens[expert] / count[expert]
        slots[rank] -= 1
    return placement
