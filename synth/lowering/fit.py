"""Whether a program fits its target, and which parameters near the asked ones would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from synth.lowering.limits import Limits, limit_violations
from synth.lowering.options import LoweringOptions
from synth.lowering.program import Program

MOST_TRIES = 8
_CHANNELS = (1, 2, 3, 4, 6, 8, 12, 16)
_INSTANCES = (1, 2, 3, 4, 6, 8)


def misfit(program: Program, limits: Limits) -> str:
    """Return which limit `program` exceeds and by what, "" if it fits. O(instructions)."""
    largest = max(range(len(program.ranks)), key=lambda rank: len(program.ranks[rank].blocks))
    blocks = len(program.ranks[largest].blocks)
    for violation in limit_violations(program, limits):
        return violation.message
    if blocks > limits.resident_threadblocks:
        bound = limits.resident_threadblocks
        return f"rank {largest}: thread blocks that must run at once: {blocks} is above the limit {bound}"
    return ""


def nearest_fit(options: LoweringOptions, fits: Callable[[LoweringOptions], bool]) -> LoweringOptions | None:
    """Return options that fit with channels and instances near those of `options`; None if a few tries find none."""
    for _, candidate in zip(range(MOST_TRIES), _by_distance(options), strict=False):
        if fits(candidate):
            return candidate
    return None


def _by_distance(options: LoweringOptions) -> Iterator[LoweringOptions]:
    """Yield neighbours of `options`: first those that use at most as many resources, by the change they need."""
    pairs = [(channels, instances) for channels in _CHANNELS for instances in _INSTANCES]
    asked = (options.channels, options.instances)

    def distance(pair: tuple[int, int]) -> tuple[float, int]:
        change = sum(max(new, old) / min(new, old) for new, old in zip(pair, asked, strict=True))
        return change, pair[0] * pair[1]

    for channels, instances in sorted(pairs, key=distance):
        if (channels, instances) != asked:
            yield replace(options, channels=channels, instances=instances)
