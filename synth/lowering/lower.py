"""Lowers a verified schedule to a program for a target."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.fragments import FragmentLimits, Placement, fragments_of, stays_in_order
from chorale.synth.lowering.messages import (
    MIN_LEVELS_FOR_CHANNEL_RANGES,
    messages_of,
    streaming_chunks,
    streaming_order,
    tree_levels,
)
from chorale.synth.lowering.options import MAX_CHANNELS, LoweringOptions
from chorale.synth.lowering.rank_programs import UNBOUNDED, hanging_blocks, ops_of_ranks, rank_program
from chorale.synth.lowering.switches import PROCESS_TARGET, SHAPE_OF_PROCESSES, schedule_of_processes, with_first_stored
from chorale.synth.lowering.vector_layout import VectorLayout, buffers_of, rechunked, vector_layout_of
from chorale.synth.programs.check_structure import MOST_CHUNKS, MSCCL_BUFFERS, TargetLimits, above, limit_violations
from chorale.synth.programs.memory import BufferShape, switch_collective
from chorale.synth.programs.plans.check_structure import numbering_violations
from chorale.synth.programs.plans.plan import RankPlan
from chorale.synth.programs.plans.run import MAX_CLOCK_ENTRIES
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import (
    QUEUE_DEPTH,
    WHOLE_CHUNKS,
    PlanOptions,
    Program,
    ProgramViolation,
    RankProgram,
)
from chorale.synth.schedule.schedule import ProcessSchedule, Schedule
from chorale.synth.targets.registry import LONGEST_NAME, target_named
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.verify.verified import VerifiedSchedule

MAX_CELLS = 2**25
MAX_CELLS_IN_ORDER = 2**28  # higher limit, because nothing is stored per chunk if chunks stay in order
MAX_DEFAULT_CHANNELS = 8
DEFAULT_MAX_BYTES = 2**30
MAX_DOUBLINGS = 5  # how often the search for options that fit doubles the channel count


class _TooBig(Exception):  # noqa: N818 - caught in this file
    """Raised if a program would exceed a limit, before it is built; the message names the limit."""


def lower(verified: VerifiedSchedule, options: LoweringOptions, seeks_fit: bool = True) -> Program:
    """Return the program that executes `verified` on the target in `options`.

    Each instance is a copy of the schedule that uses its own part of every shard and its own channels. A rank has one
    thread block for each direction of a connection, or one block for two directions if blocks are scarce. A block
    executes the schedule's steps (or the levels of its trees) in order and waits only if necessary. Programs for
    uneven collectives are always out of place. O(chunks moved * log(chunks of a step)).

    Args:
        verified: The schedule.
        options: The target, and the settings for lowering.
        seeks_fit: Whether an error message suggests options that fit. Finding them takes further attempts.

    Raises:
        InvalidInput: A limit of the target is exceeded, or the target does not support the options or the schedule.

    >>> from synth import SerialExecutor, parse_collective, parse_topology, synthesize
    >>> ring = parse_topology("ring:4")
    >>> verified = synthesize("bfb", ring, parse_collective("allgather"), None, SerialExecutor())
    >>> program = lower(verified, LoweringOptions("msccl-xml", channels=2))
    >>> program.name, len(program.ranks), program.channels
    ('allgather bfb ring:4', 4, 2)
    """
    columns = verified.schedule.expand()
    schedule = rechunked(_of_processes(columns, options), options.chunks)
    options = replace(options, in_place=options.in_place and not schedule.collective.name.is_uneven)
    limits = limits_of(options)
    if limits.one_sided_operations is None and options.moves_differently:
        rule = f"{options.target} must have no reads, groups, pipelines or boxes: its runtime sends and receives"
        raise InvalidInput(rule, "one of them", "leave them out, or use mscclpp-json")
    if limits.largest_max_bytes is not None and options.max_bytes > limits.largest_max_bytes:
        rule = f"max_bytes for {options.target} must be at most {limits.largest_max_bytes}"
        raise InvalidInput(rule, options.max_bytes, "use 0 for as much as the runtime can do")
    if schedule.collective.name == CollectiveName.ALLTOALL and options.in_place and not limits.alltoall_in_place:
        rule = f"an alltoall for {options.target} must be out of place, because the runtime refuses in-place calls"
        raise InvalidInput(rule, "in place", "lower it with --outofplace (in_place=False)")
    program, excess = _attempt(schedule, options, limits)
    if program is None:
        fits = lambda candidate: _attempt(schedule, candidate, limits)[0] is not None  # noqa: E731
        near = nearest_fit(options, fits) if seeks_fit else None
        requested = f"channels {options.channels}, instances {options.instances}"
        hint = "use fewer chunks per shard, fewer ranks, or another target"
        if near is not None:
            hint = f"channels {near.channels}, instances {near.instances} fits"
        elif options.block_group > 1:
            hint = f"use smaller block groups than {options.block_group}, or {hint}"
        raise InvalidInput(f"a program must fit {options.target}: {excess}", requested, hint)
    return replace(program, origin=columns.id)


def _of_processes(schedule: Schedule, options: LoweringOptions) -> Schedule:
    """Return `schedule` with switches turned into processes. Raises InvalidInput if the target does not allow this."""
    if not schedule.is_in_network:
        return schedule
    if options.target != PROCESS_TARGET:
        rule = f"programs in which switches add or multicast must be for {PROCESS_TARGET}"
        raise InvalidInput(rule, options.target, f"use {PROCESS_TARGET}, or synthesize without --in-network")
    if not options.in_place:
        raise InvalidInput("programs with switches that add must be in place", "", "lower it in place")
    return schedule_of_processes(schedule)


def with_default_channels(verified: VerifiedSchedule, options: LoweringOptions) -> LoweringOptions:
    """Return `options` with the number of channels for which the schedule is expected to be fastest.

    Runtimes move a long chunk in several passes. In deep trees, several channels let consecutive passes overlap. The
    best number of channels is about 2 d / b, if a pass takes time d and occupies the busiest link for time b. If
    this number does not fit, fewer are used. Without deep trees, or if one pass is enough, there is one channel.
    """
    columns = _of_processes(verified.schedule.expand(), options)
    schedule, limits = rechunked(columns, options.chunks), limits_of(options)
    # If a chunk of the largest vector fits into a message, one pass over the steps is enough.
    largest_bytes = options.max_bytes or DEFAULT_MAX_BYTES
    slot_bytes = MSCCL_BUFFERS[options.protocol].slot_bytes
    is_one_pass = largest_bytes <= vector_layout_of(schedule, options.instances).chunks * slot_bytes
    if tree_levels(schedule) < MIN_LEVELS_FOR_CHANNEL_RANGES or is_one_pass:
        return replace(options, channels=1)
    times = streaming_order(schedule, _vector(schedule, options, limits))
    most = 2
    if times is not None:
        most = min((4 * times.end + times.busiest) // (2 * times.busiest), MAX_DEFAULT_CHANNELS)
        most = 1 if 4 * times.end < 5 * times.busiest else most
    choices = (replace(options, channels=channels) for channels in range(most, 0, -1))
    fitting = (choice for choice in choices if _attempt(schedule, choice, limits)[0] is not None)
    return next(fitting, replace(options, channels=1))


def limits_of(options: LoweringOptions) -> TargetLimits:
    limits = target_named(options.target).limits
    if options.sm_count is None:
        return limits
    return replace(limits, resident_threadblocks=min(options.sm_count, limits.threadblocks))


def _attempt(schedule: Schedule, options: LoweringOptions, limits: TargetLimits) -> tuple[Program | None, str]:
    """Lower the schedule; return (program, ""), or (None, message about the limit that the program would exceed)."""
    try:
        program = _build(schedule, options, limits)
        # In a fused instruction, the send waits for the receive, so fused blocks may wait for each other in a cycle.
        if options.fuse and limits.one_sided_operations is None and hanging_blocks(program):
            program = _build(schedule, replace(options, fuse=False), limits)
    except _TooBig as reason:
        return None, str(reason)
    excess = exceeded_limit(program, limits)
    return (None, excess) if excess else (program, "")


def _build(schedule: Schedule, options: LoweringOptions, limits: TargetLimits) -> Program:
    ranks = schedule.topology.compute_count
    vector = _vector(schedule, options, limits)
    switches: tuple[int, ...] = ()
    if isinstance(schedule, ProcessSchedule):
        switches = schedule.switches
        collective = switch_collective(schedule.collective, schedule.rank_count, len(switches))
        shape = BufferShape(SHAPE_OF_PROCESSES, vector.chunks, ranks, in_place=True)
    else:
        collective, shape = buffers_of(schedule, vector, options.in_place)
    chunks = shape.chunks
    _require_at_most("ranks", ranks, limits.ranks)
    _require_at_most("largest chunk offset", chunks - 1, limits.offset)
    most_cells = MAX_CELLS_IN_ORDER if stays_in_order(shape) else MAX_CELLS
    _require_at_most("chunks on all ranks together", shape.identities * ranks, most_cells)
    messages = messages_of(schedule, vector, options)
    if switches or schedule.collective.name == CollectiveName.COMBINE:
        holds = np.zeros((ranks, shape.identities), dtype=np.bool_)  # whether the rank contributes to the chunk
        for rank in range(ranks - len(switches)):
            holds[rank, shape.initial_chunks(rank)] = True
        messages = with_first_stored(messages, holds)
    channels = 1 + int(messages.channel.max(initial=0))
    _require_at_most("channels", channels, limits.channels)
    placement = Placement(shape, messages)
    # Data that stream along a tree are forwarded when a fragment is complete, so short fragments are best there.
    streams = schedule.kind == "pipelined" and not schedule.collective.is_alltoall
    is_one_sided = limits.one_sided_operations is not None
    most = limits.count if is_one_sided else min(MOST_CHUNKS, limits.count)
    by_chunk = options.block_group > 1 or options.pipeline_bytes > 0
    longest = 1 if by_chunk or (streams and vector.is_single_shard) else most
    # Puts never wait for their receivers, so exchanges need not be cut.
    cuts = FragmentLimits(longest, most if is_one_sided else QUEUE_DEPTH[options.protocol], across=not streams)
    fragments = fragments_of(placement, messages, cuts)

    # A block that sends and receives cannot hang if each send of its rank can be ordered to fit into the buffer.
    max_blocks = UNBOUNDED if (fragments.turn < 0).any() else limits.resident_threadblocks
    # The operations that add packets always store the sum.
    stores_sums = limits.one_sided_operations is not None and options.protocol == "LL"
    bodies = [
        rank_program(placement, ops, rank, max_blocks, options.fuse, stores_sums)
        for rank, ops in enumerate(ops_of_ranks(fragments, placement, cuts.longest, sends_first=options.fuse))
    ]
    plan = WHOLE_CHUNKS
    if limits.one_sided_operations is not None:
        boxes = boxes_of(schedule.topology, options.ranks_per_box)
        how = options.reads, options.block_group, options.pipeline_bytes, boxes if max(boxes) else ()
        plan = PlanOptions(*how, options.threads, options.vector_bytes)
    words = f"{schedule.collective.name} {schedule.method} {schedule.topology.spec}"
    return Program(
        name=re.sub(r"[^A-Za-z0-9 _.,:;()+-]", "_", words)[:LONGEST_NAME].strip(),  # accepted by every target
        target=options.target,
        collective=collective,
        chunks=chunks,
        in_place=options.in_place,
        protocol=options.protocol,
        channels=channels,
        ranks=tuple(bodies),
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        origin=schedule.id,
        plan=plan,
        switches=switches,
    )


def _vector(schedule: Schedule, options: LoweringOptions, limits: TargetLimits) -> VectorLayout:
    """Divide the vector into chunks. For trees with many roots, transfers are split so that data can stream."""
    vector = vector_layout_of(schedule, options.instances)
    if vector.is_single_shard or not tree_levels(schedule):
        return vector
    return vector.split_transfers(streaming_chunks(schedule, vector, limits))


def _require_at_most(what: str, value: int, largest: int) -> None:
    if value > largest:
        raise _TooBig(f"{what}: {value} is above the limit {largest}")


def exceeded_limit(program: Program, limits: TargetLimits) -> str:
    """Return a message about the first limit that `program` exceeds, or "" if it fits. O(instructions)."""

    def beyond_device(ranks: Sequence[RankProgram] | Sequence[RankPlan]) -> Iterator[ProgramViolation]:
        rank = max(range(len(ranks)), key=lambda rank: len(ranks[rank].blocks))
        blocks = len(ranks[rank].blocks)
        return above("thread blocks that must run at once", blocks, limits.resident_threadblocks, rank)

    for violation in (*limit_violations(program, limits), *beyond_device(program.ranks)):
        return violation.message
    if limits.one_sided_operations is None:
        return ""
    # Check first whether the clocks that are needed to check the plan would take too much memory, because making a plan
    # takes long if there are many blocks. The estimate includes one signal in flight for each block.
    blocks = program.plan.group * sum(len(body.blocks) for body in program.ranks)
    ports = program.plan.group * sum(
        peer is not None and program.plan.joined_by_port(rank, peer)
        for rank, body in enumerate(program.ranks)
        for block in body.blocks
        for peer in (block.send_peer, block.recv_peer)
    )
    rows = 2 if ports or program.protocol == "LL" else 1
    entries = (2 * blocks + ports) * (blocks + ports + len(program.ranks)) * rows
    if entries > MAX_CLOCK_ENTRIES:
        return f"clock entries with which order is checked: at least {entries} is above the limit {MAX_CLOCK_ENTRIES}"
    plan = plan_of(program)
    for violation in (*beyond_device(plan.ranks), *numbering_violations(plan)):
        return violation.message
    return ""


def nearest_fit(options: LoweringOptions, fits: Callable[[LoweringOptions], bool]) -> LoweringOptions | None:
    """Return the closest options that fit, with another channel or instance count; None if there are none.

    Fewer instances or fewer channels need fewer blocks; more channels mean fewer steps per block. Each of these changes
    is tried separately. If none helps, fewer channels with one instance are tried. O(log) calls to `fits`.
    """

    def largest(high: int, with_count: Callable[[int], LoweringOptions]) -> list[LoweringOptions]:
        """Return a list of the options with the largest count below `high` that fits, or [] if no count fits."""
        low = 1
        if high == 1 or not fits(with_count(1)):
            return []
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(with_count(middle)) else (low, middle)
        return [with_count(low)]

    doubled = (options.channels * 2**power for power in range(1, 1 + MAX_DOUBLINGS))
    more = (replace(options, channels=count) for count in doubled if count <= MAX_CHANNELS)
    found = largest(options.instances, lambda count: replace(options, instances=count))
    found += largest(options.channels, lambda count: replace(options, channels=count))
    found += islice(filter(fits, more), 1)
    if not found and options.instances > 1:
        found = largest(options.channels, lambda count: replace(options, instances=1, channels=count))

    def change(near: LoweringOptions) -> float:
        pairs = ((options.channels, near.channels), (options.instances, near.instances))
        return sum(max(pair) / min(pair) for pair in pairs)

    return min(found, key=change, default=None)
