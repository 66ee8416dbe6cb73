"""How many chunks per shard an all-to-all schedule has, and which flows it rounds to them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from chorale.synth.identity import common_denominator
from chorale.synth.methods.alltoall.balance import ENOUGH, SharedFlows, balanced

MAX_DENOMINATOR = 4096
FEW_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 60, 64)
MORE_COUNTS = (96, 128, 192, 256, 384, 512, 720, 1024, 2048, 4096)
_NEARLY_BEST = Fraction(201, 200)


def chosen_flows(starts: Sequence[SharedFlows], upper: Fraction) -> tuple[int, SharedFlows]:
    """Return the smallest listed number of chunks whose rate is nearly the best of all listed, and its flows.

    The first of `starts` is preferred. Numbers up to 64, and that which makes all its flows whole; where none of them
    comes within 1 % of `upper`, which bounds the rate, all flows are balanced for these and for more chunks.
    """
    first = starts[0]
    exact = common_denominator(first.class_flow, MAX_DENOMINATOR)
    counts = sorted({*FEW_COUNTS, exact})
    rates = {count: (first.routed(count).rate(), first) for count in counts}
    if max(rate for rate, _ in rates.values()) * ENOUGH < upper:
        more = sorted({*counts, *MORE_COUNTS, *_denominators_of_capacities(first)})
        rates = {count: best_of(starts, count, upper) for count in more}
    best = max(rate for rate, _ in rates.values())
    count = next(count for count, (rate, _) in rates.items() if rate * _NEARLY_BEST >= best)
    return count, rates[count][1]


def best_of(starts: Sequence[SharedFlows], count: int, upper: Fraction) -> tuple[Fraction, SharedFlows]:
    """Return the best rate of `starts`, balanced, in `count` chunks per shard, and its flows."""
    best = balanced(starts[0], count, upper)
    for start in starts[1:]:
        if best[0] * ENOUGH < upper:
            best = max(best, balanced(start, count, upper), key=lambda pair: pair[0])
    return best


def _denominators_of_capacities(flows: SharedFlows) -> list[int]:
    """Return the numbers of chunks that make whole what nodes share out among their in-links by capacity."""
    problem = flows.reduction.full
    capacity = problem.class_capacity[problem.link_class]
    inwards = [int(capacity[problem.dst == node].sum()) for node in range(problem.node_count)]
    common = int(np.gcd.reduce(problem.class_capacity))
    return [total // common for total in sorted(set(inwards)) if 0 < total // common <= MAX_DENOMINATOR]
