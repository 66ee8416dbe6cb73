"""Advice on where experts should be: which to replicate or to swap, and what that gains.

Each step is the best of a few: an expert that many tokens need on the busiest ranks gets a replica on a rank that is
less busy, or changes places with an expert there. What decides is the bound by cuts, then how unequal all cuts are. The
baseline is the greedy rule of EPLB (DeepSeek, 2025): replicas for the experts with most tokens each, then experts in
falling order, each to the rank with the fewest tokens so far.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.synth.methods.traffic.copies import Cut, cuts_of
from chorale.synth.methods.traffic.tokens import Numbers, TokenBatch, route_tokens
from chorale.synth.topology.topology import Topology

_SAMPLE = 4096
_EXPERTS, _RANKS = 4, 3


@dataclass(frozen=True, slots=True, eq=False)
class PlacementStep:
    """`expert` of `source` is copied to `target`, or swapped with `other` there; time_lower: the bound afterwards.

    placement: of all experts afterwards, as in `TokenBatch`
    """

    expert: int
    source: int
    target: int
    other: int | None
    time_lower: Fraction
    placement: Numbers


def advise(topology: Topology, batch: TokenBatch, most: int) -> list[PlacementStep]:
    """Return up to `most` steps that each lower the bound on the time of the tokens, or make ranks less unequal.

    Deterministic. Steps are chosen by at most 4,096 of the tokens, evenly spread; `time_lower` is for all. O(most *
    tokens * ranks).
    """
    every = -(-len(batch.experts) // _SAMPLE)
    sample = batch._replace(experts=batch.experts[::every], sources=batch.sources[::every])
    ranks, placement = topology.compute_count, batch.placement
    steps: list[PlacementStep] = []
    cost = _cost(topology, sample)
    while len(steps) < most:
        cuts = cuts_of(topology, route_tokens(sample._replace(placement=placement), ranks))
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
    """Return the time that no plan of `batch` can beat, in amount / bandwidth; 0 if no token leaves its rank."""
    return max(cut.time for cut in cuts_of(topology, route_tokens(batch, topology.compute_count)))


def _cost(topology: Topology, batch: TokenBatch) -> tuple[Fraction, float]:
    """Return the bound, and how unequal cuts are: the fourth powers of their times, which the largest dominate."""
    times = [cut.time for cut in cuts_of(topology, route_tokens(batch, topology.compute_count))]
    return max(times), round(sum(float(time / max(times)) ** 4 for time in times) * float(max(times)) ** 4, 9)


def _options(
    batch: TokenBatch, placement: Numbers, cuts: list[Cut], ranks: int
) -> Iterator[tuple[int, int, int, int | None, Numbers]]:
    """Yield expert, source, target, what it is swapped with, and the placement then."""
    tokens = np.bincount(batch.experts[batch.experts >= 0], minlength=len(placement))
    share = tokens / np.maximum((placement >= 0).sum(axis=1), 1)
    into = [cut for cut in cuts if not cut.is_out]
    busiest = max(into, key=lambda cut: cut.time)
    load = np.zeros(ranks)
    for cut in into:  # ranks of busy boxes are busy
        load[list(cut.ranks)] = np.maximum(load[list(cut.ranks)], float(cut.time))
    expert, replica = np.nonzero(np.isin(placement, busiest.ranks))
    hot = np.argsort(-share[expert], kind="stable")[:_EXPERTS]
    calm = [rank for rank in np.argsort(load, kind="stable").tolist() if rank not in busiest.ranks]
    for which, place in zip(expert[hot].tolist(), replica[hot].tolist(), strict=True):
        source = int(placement[which, place])
        for target in [rank for rank in calm if rank not in placement[which]][:_RANKS]:
            yield which, source, target, None, _with_replica(placement, which, target)
            there, there_place = np.nonzero(placement == target)
            if len(there):
                least = int(np.argmin(share[there]))
                after = placement.copy()
                after[which, place], after[there[least], there_place[least]] = target, source
                if source not in placement[there[least]]:
                    yield which, source, target, int(there[least]), after


def _with_replica(placement: Numbers, expert: int, target: int) -> Numbers:
    free = np.flatnonzero(placement[expert] < 0)
    if len(free):
        after = placement.copy()
    else:
        after = np.column_stack([placement, np.full(len(placement), -1)])
        free = np.array([placement.shape[1]])
    after[expert, free[0]] = target
    return after


def eplb(batch: TokenBatch, ranks: int, replicas: int) -> Numbers:
    """Return the placement by EPLB's greedy rule with so many additional replicas, like `TokenBatch.placement`."""
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
            continue  # every rank with room has it
        rank = int(np.argmin(np.where(free, load, np.inf)))
        placement[expert, int(np.argmax(placement[expert] < 0))] = rank
        load[rank] += tokens[expert] / count[expert]
        slots[rank] -= 1
    return placement
