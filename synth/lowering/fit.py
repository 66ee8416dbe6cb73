"""Whether a program fits its target, and which parameters close to the requested ones would fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chorale.synth.lowering.options import MAX_CHANNELS, LoweringOptions
from chorale.synth.programs.limits import TargetLimits, limit_violations
from chorale.synth.programs.plans.check_structure import exceeded_plan_limit
from chorale.synth.programs.plans.run import MAX_CLOCK_ENTRIES
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import Program

MAX_DOUBLINGS = 5


def exceeded_limit(program: Program, limits: TargetLimits) -> str:
    """Return which limit `program` exceeds and by what, "" if it fits. O(instructions)."""
    largest = max(range(len(program.ranks)), key=lambda rank: len(program.ranks[rank].blocks))
    blocks = len(program.ranks[largest].blocks)
    for violation in limit_violations(program, limits):
        return violation.message
    if blocks > limits.resident_threadblocks:
        bound = limits.resident_threadblocks
        return f"rank {largest}: thread blocks that must run at once: {blocks} is above the limit {bound}"
    if limits.one_sided_operations is None:
        return ""
    ports = sum(
        peer is not None and program.plan.joined_by_port(rank, peer)
        for rank, body in enumerate(program.ranks)
        for block in body.blocks
        for peer in (block.send_peer, block.recv_peer)
    )
    # Before a plan is made, which takes long where there are as many blocks.
    blocks = sum(len(body.blocks) for body in program.ranks)
    excess = exceeded_clock_limit(len(program.ranks), blocks, ports, bool(ports) or program.protocol == "LL")
    if excess:
        return excess
    plan = plan_of(program)
    excess = exceeded_plan_limit(plan, limits.resident_threadblocks)
    blocks = sum(len(body.blocks) for body in plan.ranks)
    ports = sum(len(body.port_peers) for body in plan.ranks)
    return excess or exceeded_clock_limit(len(plan.ranks), blocks, ports, bool(ports) or plan.settings.packets)


def exceeded_clock_limit(ranks: int, blocks: int, ports: int, by_others: bool) -> str:
    """Return that clocks of so many blocks and ports of all ranks, and one signal of each block on its way, exceed what
    the check of a plan has room for, "" if they do not. by_others: whether ports or packets tell of what happened."""
    entries = (2 * blocks + ports) * (blocks + ports + ranks) * (2 if by_others else 1)
    if entries <= MAX_CLOCK_ENTRIES:
        return ""
    return f"clock entries with which order is checked: at least {entries} is above the limit {MAX_CLOCK_ENTRIES}"


def nearest_fit(options: LoweringOptions, fits: Callable[[LoweringOptions], bool]) -> LoweringOptions | None:
    """Return options that fit and differ from `options` in channels or instances as little as possible.

    Fewer instances or channels take fewer blocks, more channels leave fewer steps for each block: the three are
    tried one by one, then fewer channels of one instance; None if none helps. O(log) calls of `fits`.
    """
    fewer_instances = _most(options.instances, lambda count: fits(replace(options, instances=count)))
    fewer_channels = _most(options.channels, lambda count: fits(replace(options, channels=count)))
    more_channels = _fewest(options.channels, lambda count: fits(replace(options, channels=count)))
    found = [replace(options, instances=count) for count in fewer_instances]
    found += [replace(options, channels=count) for count in (*fewer_channels, *more_channels)]
    if not found and options.instances > 1:
        alone = replace(options, instances=1)
        found = [
            replace(alone, channels=count)
            for count in _most(alone.channels, lambda count: fits(replace(alone, channels=count)))
        ]
    return min(found, key=lambda near: _change(options, near), default=None)


def _change(asked: LoweringOptions, near: LoweringOptions) -> float:
    pairs = ((asked.channels, near.channels), (asked.instances, near.instances))
    return sum(max(pair) / min(pair) for pair in pairs)


def _most(requested: int, fits: Callable[[int], bool]) -> list[int]:
    """Return the largest count below `requested` that fits, as a list of one, by bisection; [] if 1 does not fit."""
    if requested == 1 or not fits(1):
        return []
    low, high = 1, requested
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return [low]


def _fewest(requested: int, fits: Callable[[int], bool]) -> list[int]:
    """Return the first doubling of `requested` that fits, as a list of one; [] if none does."""
    doubled = (requested * 2**power for power in range(1, 1 + MAX_DOUBLINGS))
    first = next((count for count in doubled if count <= MAX_CHANNELS and fits(count)), None)
    return [] if first is None else [first]
