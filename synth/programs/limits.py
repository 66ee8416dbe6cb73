"""Limits of a target as data, and the check of a program against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from chorale.synth.programs.column_rules import RankFacts, facts_of, written_steps_of
from chorale.synth.programs.columns import columns_held
from chorale.synth.programs.message_sizes import MessageBuffer
from chorale.synth.programs.program import Op, Program, ProgramViolation, Protocol, RankProgram, ThreadBlock, Wait


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """The largest values that the reader of a target takes.

    ranks:                    ranks of a program
    channels:                 channels of a program
    threadblocks:             thread blocks of a rank
    resident_threadblocks:    thread blocks of a rank that surely run at once; more may hang, so `lower` stays below
    waitable_threadblocks:    ids below this can be waited on
    blocks_per_direction:     blocks of one rank and channel that send (and likewise that receive)
    steps:                    steps of a thread block as written, `nop` included
    waits:                    waits of a thread block in all
    single_wait:              whether a step carries one wait only, so that further ones need a `nop` each
    count:                    chunks of one instruction
    offset:                   largest first chunk of an operand
    elements_per_rank:        elements that the reader keeps for one rank: the root, all ranks, own blocks and steps
    elements:                 elements of a whole file
    fused_reductions:         longest run of local reductions that the runtime may fuse into one; None: never fuses
    largest_max_bytes:        largest vector in bytes that may be promised, None: any
    one_sided_operations:     operations of a block of a runtime of puts and signals (see
                              `chorale.synth.programs.plans`); None: the runtime knows sends and receives
    alltoall_in_place:        whether calls of alltoall can be in place
    alignment_bytes:          of which chunks must be multiples, besides of elements
    message_buffers:          buffers of a connection, which say how many chunks travel as one message at which size;
                              None: a message may be a single chunk at any size
    """

    ranks: int
    channels: int
    threadblocks: int
    resident_threadblocks: int
    waitable_threadblocks: int
    blocks_per_direction: int
    steps: int
    waits: int
    single_wait: bool
    count: int
    offset: int
    elements_per_rank: int
    elements: int
    fused_reductions: int | None
    largest_max_bytes: int | None
    one_sided_operations: int | None
    alltoall_in_place: bool
    alignment_bytes: int
    message_buffers: Mapping[Protocol, MessageBuffer] | None


def written_steps(block: ThreadBlock, limits: TargetLimits) -> int:
    """Return the steps of `block` as its target writes them, with a `nop` for each further wait of a step."""
    if not limits.single_wait:
        return len(block.instructions)
    return sum(max(1, len(instruction.waits)) for instruction in block.instructions)


def written_step_counts(program: RankProgram, limits: TargetLimits) -> list[int]:
    """Return `written_steps` of each block."""
    columns = columns_held(program)
    if columns is None:
        return [written_steps(block, limits) for block in program.blocks]
    return list((written_steps_of(columns) if limits.single_wait else columns.lengths).tolist())


def limit_violations(program: Program, limits: TargetLimits) -> list[ProgramViolation]:
    """Return every limit that `program` exceeds. O(instructions)."""
    found = list(_whole_program(program, limits))
    for rank in range(len(program.ranks)):
        found.extend(rank_limit_violations(program, rank, limits))
    return found


def rank_limit_violations(program: Program, rank: int, limits: TargetLimits) -> list[ProgramViolation]:
    """Return the limits that `rank` exceeds; nothing of other ranks is looked at. O(instructions of the rank)."""
    rank_program = program.ranks[rank]
    columns = columns_held(rank_program)
    if columns is not None and _keeps(facts_of(columns), limits, len(program.ranks)):
        return []
    found = list(_rank(rank, rank_program, limits, len(program.ranks)))
    waited = {wait for block in rank_program.blocks for item in block.instructions for wait in item.waits}
    for index, block in enumerate(rank_program.blocks):
        found.extend(_block(rank, index, block, limits))
        if limits.fused_reductions is not None:
            found.extend(_fused_runs(rank, index, block, limits.fused_reductions, waited))
    return found


def _keeps(facts: RankFacts, limits: TargetLimits, ranks: int) -> bool:
    """Return whether a rank of these facts surely keeps all limits."""
    steps = facts.steps_with_nops if limits.single_wait else facts.steps
    elements = facts.elements_with_nops if limits.single_wait else facts.elements
    return (
        facts.blocks <= limits.threadblocks
        and 1 + ranks + elements <= limits.elements_per_rank
        and facts.per_direction <= limits.blocks_per_direction
        and steps <= limits.steps
        and facts.waits <= limits.waits
        and facts.waited_block < limits.waitable_threadblocks
        and facts.chunks <= limits.count
        and facts.offset <= limits.offset
        and (limits.fused_reductions is None or not facts.reduces_locally)
    )


def _whole_program(program: Program, limits: TargetLimits) -> Iterator[ProgramViolation]:
    elements = 1 + sum(1 + _rank_elements(rank_program, limits) for rank_program in program.ranks)
    yield from _above("ranks", len(program.ranks), limits.ranks)
    yield from _above("channels", program.channels, limits.channels)
    yield from _above("elements of the file", elements, limits.elements)
    if limits.largest_max_bytes is not None:
        yield from _above("bytes of the vector", program.max_bytes, limits.largest_max_bytes)


def _rank(rank: int, program: RankProgram, limits: TargetLimits, ranks: int) -> Iterator[ProgramViolation]:
    yield from _above("thread blocks of a rank", len(program.blocks), limits.threadblocks, rank)
    elements = 1 + ranks + _rank_elements(program, limits)
    yield from _above("elements kept for one rank", elements, limits.elements_per_rank, rank)
    sending = Counter(block.channel for block in program.blocks if block.send_peer is not None)
    receiving = Counter(block.channel for block in program.blocks if block.recv_peer is not None)
    for what, counts in (("sending", sending), ("receiving", receiving)):
        for channel, count in sorted(counts.items()):
            name = f"{what} blocks of channel {channel}"
            yield from _above(name, count, limits.blocks_per_direction, rank)


def _block(rank: int, index: int, block: ThreadBlock, limits: TargetLimits) -> Iterator[ProgramViolation]:
    yield from _above("steps of a thread block", written_steps(block, limits), limits.steps, rank, index)
    waits = sum(len(instruction.waits) for instruction in block.instructions)
    yield from _above("waits of a thread block", waits, limits.waits, rank, index)
    for step, instruction in enumerate(block.instructions):
        yield from _above("chunks of an instruction", instruction.count, limits.count, rank, index, step)
        offset = max(instruction.src.offset, instruction.dst.offset)
        yield from _above("chunk offset", offset, limits.offset, rank, index, step)
        for wait in instruction.waits:
            last = limits.waitable_threadblocks - 1
            yield from _above("id of a block that is waited on", wait.block, last, rank, index, step)


def _fused_runs(
    rank: int, index: int, block: ThreadBlock, longest: int, waited: Collection[Wait]
) -> Iterator[ProgramViolation]:
    """A run of reductions ends where one of them waits, or is waited on."""
    run, previous = 0, None
    for step, instruction in enumerate(block.instructions):
        if instruction.op != Op.REDUCE:
            run, previous = 0, None
            continue
        fuses = (
            previous is not None
            and not instruction.waits
            and Wait(index, step - 1) not in waited
            and instruction.dst == previous.dst
            and instruction.src.buffer == previous.src.buffer
        )
        if fuses and previous is not None and instruction.count != previous.count:
            message = "reductions that fuse into one must have equal counts"
            yield ProgramViolation.at("fused reductions", message, rank, index, step)
        run, previous = (run + 1 if fuses else 1), instruction
        yield from _above("reductions that fuse into one", run, longest, rank, index, step)


def _rank_elements(program: RankProgram, limits: TargetLimits) -> int:
    return len(program.blocks) + sum(written_step_counts(program, limits))


def _above(what: str, value: int, largest: int, *position: int) -> Iterator[ProgramViolation]:
    if value > largest:
        yield ProgramViolation.at("limit", f"{what}: {value} is above the limit {largest}", *position)
