"""From a verified schedule to a program for a target."""

from __future__ import annotations

import re

from synth.collective import CollectiveName
from synth.errors import InvalidInput
from synth.lowering.dependences import instructions_of_blocks
from synth.lowering.drafts import Drafts, Role, draft_instructions
from synth.lowering.fit import misfit, nearest_fit
from synth.lowering.limits import Limits
from synth.lowering.memory import Shape
from synth.lowering.messages import messages_by_step
from synth.lowering.options import LoweringOptions
from synth.lowering.program import QUEUE_DEPTH, Program, RankProgram, ThreadBlock
from synth.lowering.targets import target_named
from synth.schedule.schedule import Schedule
from synth.verify.verified import VerifiedSchedule

LONGEST_INSTRUCTION = 71  # chunks; every dialect so far takes it
LONGEST_NAME = 63
MOST_CELLS = 2**25

_KINDS = ("stepped",)
_COLLECTIVES = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE)


class _TooBig(Exception):  # noqa: N818 - a reason, handed on at once
    """A program exceeds a limit so far that it is not even built; the text says which."""


def lower(verified: VerifiedSchedule, options: LoweringOptions) -> Program:
    """Return the program that executes `verified` on the target of `options`.

    Each instance is a copy of the schedule on its own part of every shard and its own channels. Every rank has one
    block for each direction of each of its connections. Raises InvalidInput for kinds and collectives that cannot
    be lowered, and where the target's limits are exceeded, with parameters that fit. O(chunks moved).
    """
    schedule = verified.schedule
    _require_supported(schedule)
    limits = target_named(options.target).limits
    if limits.largest_max_bytes is not None and options.max_bytes > limits.largest_max_bytes:
        rule = f"max_bytes for {options.target} must be at most {limits.largest_max_bytes}"
        raise InvalidInput(rule, options.max_bytes, "use 0 for as much as the runtime can do")
    program, excess = _attempt(schedule, options, limits)
    if program is None:
        raise _misfit_error(schedule, options, limits, excess)
    return program


def _require_supported(schedule: Schedule) -> None:
    if schedule.kind not in _KINDS:
        rule = f"schedules that can be lowered are {' or '.join(_KINDS)}"
        raise InvalidInput(rule, schedule.kind, "choose a method that makes one")
    if schedule.collective.name not in _COLLECTIVES:
        rule = f"collectives that can be lowered are {', '.join(_COLLECTIVES)}"
        raise InvalidInput(rule, schedule.collective.name.value, "choose one of these")


def _attempt(schedule: Schedule, options: LoweringOptions, limits: Limits) -> tuple[Program | None, str]:
    """Return the program, or None and which limit it exceeds."""
    try:
        program = _build(schedule, options, limits)
    except _TooBig as reason:
        return None, str(reason)
    excess = misfit(program, limits)
    return (None, excess) if excess else (program, "")


def _misfit_error(schedule: Schedule, options: LoweringOptions, limits: Limits, excess: str) -> InvalidInput:
    near = nearest_fit(options, lambda candidate: _attempt(schedule, candidate, limits)[0] is not None)
    asked = f"channels {options.channels}, instances {options.instances}"
    way_out = "use fewer chunks per shard, fewer ranks, or another target"
    if near is not None:
        way_out = f"channels {near.channels}, instances {near.instances} fits"
    return InvalidInput(f"a program must fit {options.target}: {excess}", asked, way_out)


def _build(schedule: Schedule, options: LoweringOptions, limits: Limits) -> Program:
    ranks = schedule.topology.compute_count
    chunks = ranks * schedule.chunks_per_shard * options.instances
    shape = Shape(schedule.collective.name, chunks, ranks, options.in_place)
    _require_moderate("ranks", ranks, limits.ranks)
    _require_moderate("largest chunk offset", chunks - 1, limits.offset)
    _require_moderate("chunks on all ranks together", chunks * ranks, MOST_CELLS)
    steps = messages_by_step(schedule, options)
    channels = 1 + max((message.channel for messages in steps for message in messages), default=0)
    _require_moderate("channels", channels, limits.channels)
    longest = min(LONGEST_INSTRUCTION, limits.count)
    drafts = draft_instructions(shape, steps, longest, QUEUE_DEPTH[options.protocol])
    return Program(
        name=_name(schedule),
        target=options.target,
        collective=schedule.collective,
        chunks=chunks,
        in_place=options.in_place,
        protocol=options.protocol,
        channels=channels,
        ranks=tuple(_rank_program(shape, drafts, rank) for rank in range(ranks)),
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        origin=schedule.id,
    )


def _require_moderate(what: str, value: int, largest: int) -> None:
    if value > largest:
        raise _TooBig(f"{what}: {value} is above the limit {largest}")


def _rank_program(shape: Shape, drafts: Drafts, rank: int) -> RankProgram:
    scratch = drafts.scratch_chunks[rank]
    own = drafts.by_rank[rank]
    keys = sorted({draft.block for draft in own})
    instructions = instructions_of_blocks(own, keys, shape.layout(rank, scratch))
    blocks = [
        ThreadBlock(
            send_peer=key.peer if key.role == Role.SEND else None,
            recv_peer=key.peer if key.role == Role.RECEIVE else None,
            channel=key.channel,
            instructions=items,
        )
        for key, items in zip(keys, instructions, strict=True)
    ]
    # Runtimes cannot launch a rank without a block.
    idle = ThreadBlock(None, None, 0, ())
    return RankProgram(drafts.input_chunks, drafts.output_chunks, scratch, tuple(blocks) or (idle,))


def _name(schedule: Schedule) -> str:
    """Return a short name in characters that every dialect takes."""
    words = f"{schedule.collective.name} {schedule.method} {schedule.topology.spec}"
    return re.sub(r"[^A-Za-z0-9 _.,:;()+-]", "_", words)[:LONGEST_NAME].strip()
