"""Reports of `chorale lower` and `chorale lift`: predicted times, and what programs lose against their schedules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from chorale.runners.api.units import format_size
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.plans.plan import ExecutionPlan, PlanBlock
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.pricing import (
    DEFAULTS,
    Pricing,
    lowering_loss,
    program_time_per_byte,
    simulate_program,
    simulated_messages,
    usual_buffer_bytes,
)


def prediction(
    program: AnyProgram, topology: Topology, size_bytes: int | None, link_gbps: str | None
) -> dict[str, Any]:
    """Return the exact least time per byte of a right program and, for a size, the simulated time.

    InvalidInput if a size is given and the rate of a link is not known.
    """
    time_us = None
    if size_bytes is not None:
        network = Pricing.of({**dict.fromkeys(DEFAULTS), "link_gbps": link_gbps}, None).network(topology)
        time_us = simulate_program(program, topology, network, size_bytes, usual_buffer_bytes(program)).end_s * 1e6
    time_per_byte = rational_text(program_time_per_byte(program, topology))
    return {"time_per_byte": time_per_byte, "size_bytes": size_bytes, "time_us": time_us}


def sharing_notices(program: AnyProgram, options: LoweringOptions) -> list[dict[str, str]]:
    """Return what to say where groups of `options.block_group` thread blocks were asked for and not all blocks of a
    plan are shared, since no more would run at once. O(operations)."""
    if options.block_group == 1 or not isinstance(program, ExecutionPlan):
        return []
    alone = [sum(not block.is_shared and _moves(block) for block in body.blocks) for body in program.ranks]
    if not any(alone):
        return []
    rank = alone.index(max(alone))
    blocks = len(program.ranks[rank].blocks)
    message = (
        f"groups of {options.block_group} are where they fit: of {blocks} thread blocks of rank {rank}, {alone[rank]} "
        "are alone, because more would not run at once"
    )
    return [{"rule": "group", "message": message}]


def _moves(block: PlanBlock) -> bool:
    return any(operation.action.moves for operation in block.every_operation())


LARGE_BYTES = 2**30
LARGE_PLAN = 4_000
"""Instructions of a program of which no other forms are lowered as plans, to be compared with."""
LARGE_LOSS = 0.15
MIN_GAIN = 0.05
MAX_MESSAGES = 2**17
SPLITS = (2, 4, 8)


def loss_document(
    verified: VerifiedSchedule, options: LoweringOptions, program: Program, size_bytes: int | None
) -> dict[str, Any]:
    """Return `loss`, the part of the time that `program`, lowered with `options`, loses, and `advice` if it is much.

    At `size_bytes`, by default at its largest, else at 1 GiB. For the advice other channels and finer chunks are tried,
    except for large plans, of which each takes many seconds. Empty for stepped schedules, which lose nothing, and where
    a simulation would take long.
    """
    schedule, size_bytes = verified.schedule, size_bytes or options.max_bytes or LARGE_BYTES
    current = _loss(verified, program, size_bytes) if schedule.kind == "pipelined" else None
    if current is None:
        return {}
    document: dict[str, Any] = {"loss": {"size_bytes": size_bytes, "part": current}, "advice": None}
    if current < LARGE_LOSS:
        return document
    tried = () if _is_large_plan(program, options) else _others(verified, options)
    losses = [(loss, other) for other in tried if (loss := _lowered_loss(verified, other, size_bytes)) is not None]
    best, other = min(losses, key=lambda each: each[0], default=(current, options))
    size = format_size(size_bytes)
    words = [f"loses {current:.0%} at {size} against the cost of the schedule (flow model, no latencies)"]
    if best < current - MIN_GAIN:
        split = (other.chunks or schedule.chunks_per_shard) // schedule.chunks_per_shard
        words.append(f"--channels {other.channels} --split {split} loses {best:.0%}")
    if (schedule.trees_per_root or 1) > 1 and min(best, current) > LARGE_LOSS:
        words.append("a schedule with fewer trees per root (synth --k 1) may lose less")
    return document | {"advice": "; ".join(words)}


def _is_large_plan(program: Program, options: LoweringOptions) -> bool:
    if target_named(options.target).limits.one_sided_operations is None:
        return False
    return sum(len(block.instructions) for body in program.ranks for block in body.blocks) > LARGE_PLAN


def _others(verified: VerifiedSchedule, options: LoweringOptions) -> Iterator[LoweringOptions]:
    chunks = options.chunks or verified.schedule.chunks_per_shard
    for channels in sorted({1, 2 * options.channels} - {options.channels}):
        yield replace(options, channels=channels)
    for split in SPLITS:
        for channels in sorted({1, options.channels}):
            yield replace(options, channels=channels, chunks=chunks * split)


def _lowered_loss(verified: VerifiedSchedule, options: LoweringOptions, size_bytes: int) -> float | None:
    try:
        program = lower(verified, options, seeks_fit=False)
    except InvalidInput:  # it does not fit the target, and so is no alternative
        return None
    return _loss(verified, program, size_bytes)


def _loss(verified: VerifiedSchedule, program: Program, size_bytes: int) -> float | None:
    buffer_bytes = usual_buffer_bytes(program)
    if simulated_messages(program, size_bytes, buffer_bytes) > MAX_MESSAGES:
        return None
    return lowering_loss(verified, program, size_bytes, buffer_bytes)
