"""What BFB on a large expansion costs at least, from the exact costs of the small networks inside of it.

So most candidates of many nodes are seen to be beaten without a score of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from chorale.synth.finder.candidate import TopologyCandidate, least_bandwidth_factor
from chorale.synth.finder.score_cache import ScoreCache
from chorale.synth.finder.views.expansion_tree import Expansion, expansion_of

MAX_INNER_NODES = 2**11
"""Networks inside of others are scored up to this size, in milliseconds each."""


@dataclass(frozen=True, slots=True)
class CostBounds:
    """The fewest and the most steps of BFB on a network, and the least bandwidth factor."""

    least_steps: int
    most_steps: int
    least_factor: Fraction


def inner_specs(candidates: Sequence[TopologyCandidate]) -> list[str]:
    """Return the largest networks inside of candidates that are small enough to be scored."""
    large = [candidate for candidate in candidates if not candidate.exact and candidate.nodes > MAX_INNER_NODES]
    return list(dict.fromkeys(spec for candidate in large for spec in _inside(expansion_of(candidate.spec))))


def _inside(network: Expansion) -> Iterator[str]:
    if network.nodes <= MAX_INNER_NODES:
        yield network.spec
    else:
        for part in network.parts:
            yield from _inside(part)


def with_better_bounds(candidate: TopologyCandidate, scores: ScoreCache) -> TopologyCandidate:
    """Return the candidate; what it costs at least is raised to what follows from `scores` of networks inside of it."""
    if candidate.exact or candidate.nodes <= MAX_INNER_NODES:
        return candidate
    bounds = bounds_of(expansion_of(candidate.spec), scores)
    return replace(
        candidate,
        least_steps=max(candidate.least_steps, bounds.least_steps),
        least_factor=max(candidate.least_factor, bounds.least_factor),
    )


def bounds_of(network: Expansion, scores: ScoreCache) -> CostBounds:
    """Return bounds of the cost of BFB on `network`: its score, if there is one, else what the parts say.

    On a line graph each step brings `degree` times as much as on the network, but for one shard at most, and one more
    step 1 shard a link; on a degree expansion as much, and the copies of the node itself.
    """
    least = least_bandwidth_factor(network.nodes)
    if scores.has(network.spec):
        score = scores.of(network.spec)
        return CostBounds(score.steps, score.steps, score.bandwidth_factor)
    if network.kind == "base":
        return CostBounds(1, network.nodes - 1, least)
    inside = [bounds_of(part, scores) for part in network.parts]
    least_steps, most_steps = sum(one.least_steps for one in inside), sum(one.most_steps for one in inside)
    if network.kind == "product":
        return CostBounds(least_steps, most_steps, least)
    if network.kind == "degree":
        return CostBounds(max(least_steps, 2), most_steps + 1, max(least, inside[0].least_factor))
    missing = Fraction(most_steps - 1, network.parts[0].nodes)
    return CostBounds(least_steps + 1, most_steps + 1, max(least, inside[0].least_factor - missing))
