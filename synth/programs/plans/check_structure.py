"""Rules of a plan that are checked without executing it: buffers, channels and their ends, operands, signal counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.check_structure import collective_violations
from chorale.synth.programs.memory import buffer_chunks
from chorale.synth.programs.plans.plan import (
    MAX_BLOCK_CHANNELS,
    MAX_BLOCK_OPERATIONS,
    MAX_BLOCK_REMOTES,
    MAX_OPERANDS,
    MAX_OPERATION_CHANNELS,
    MAX_OPERATION_SEMAPHORES,
    OFFSET_BYTES,
    Action,
    ExecutionPlan,
    Operand,
    Operation,
    PlanBlock,
    RankPlan,
    largest_bytes,
)
from chorale.synth.programs.program import Buffer, ProgramViolation

LARGEST_MIN_BYTES = 2**31 - 1


def plan_structure_violations(plan: ExecutionPlan) -> list[ProgramViolation]:
    """Return every broken rule. O(operations)."""
    found = list(_whole_plan(plan))
    for rank, body in enumerate(plan.ranks):
        found.extend(_buffers(plan, rank, body))
        for index, block in enumerate(body.blocks):
            found.extend(_block(plan, rank, index, block))
    # What follows names channels and semaphores by their numbers.
    return found or [*_signals(plan), *_semaphores(plan)]


def exceeded_plan_limit(plan: ExecutionPlan) -> str:
    """Return which limit of the executor the longest block of `plan` exceeds, "" for none."""
    longest = max(len(block.operations) for body in plan.ranks for block in body.blocks)
    if longest > MAX_BLOCK_OPERATIONS:
        return f"operations of a thread block: {longest} is above the limit {MAX_BLOCK_OPERATIONS}"
    return ""


def _whole_plan(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    ranks = len(plan.ranks)
    yield from collective_violations(plan)
    if plan.min_bytes > plan.max_bytes:
        yield ProgramViolation.at("never used", f"no size is from {plan.min_bytes} to {plan.max_bytes} bytes")
    if plan.min_bytes > LARGEST_MIN_BYTES:
        yield ProgramViolation.at("limit", f"min_message_size: {plan.min_bytes} is above the limit {LARGEST_MIN_BYTES}")
    largest = largest_bytes(plan.chunks, max(body.scratch_chunks for body in plan.ranks))
    if plan.origin and plan.max_bytes > largest:
        message = f"a vector of {plan.max_bytes} bytes has offsets of {OFFSET_BYTES} and more, which wrap"
        yield ProgramViolation.at("limit", message)
    ends = Counter((rank, peer) for rank, body in enumerate(plan.ranks) for peer in body.peers)
    for (rank, peer), count in sorted(ends.items()):
        if not 0 <= peer < ranks or peer == rank:
            yield ProgramViolation.at("peer", f"has a channel with {peer}, which is not another rank", rank)
        elif ends[peer, rank] != count:
            message = f"has {count} channels with rank {peer}, which has {ends[peer, rank]} with it"
            yield ProgramViolation.at("channel", message, rank)


def _buffers(plan: ExecutionPlan, rank: int, body: RankPlan) -> Iterator[ProgramViolation]:
    exact = buffer_chunks(plan.collective.name, plan.chunks, len(plan.ranks))
    if (body.input_chunks, body.output_chunks) != exact:
        declared = f"{body.input_chunks} and {body.output_chunks}"
        message = f"input and output have {declared} chunks, must have {exact[0]} and {exact[1]}"
        yield ProgramViolation.at("buffers", message, rank)
    if not body.blocks:
        yield ProgramViolation.at(
            "idle rank", "has no thread block; a rank without work needs one without operations", rank
        )
    for peer, buffer in body.remotes:
        if not 0 <= peer < len(plan.ranks) or peer == rank:
            yield ProgramViolation.at("remote buffer", f"names a buffer of {peer}, which is not another rank", rank)
        if peer not in body.peers:
            yield ProgramViolation.at(
                "remote buffer", f"names a buffer of rank {peer}, with which it has no channel", rank
            )
        if _is_elsewhere(plan, buffer):
            message = f"names {buffer} of rank {peer}, which in place lies elsewhere in memory than its own"
            yield ProgramViolation.at("remote buffer", message, rank)


def _is_elsewhere(plan: ExecutionPlan, buffer: Buffer) -> bool:
    """Whether ranks have `buffer` at different offsets of their memory, while the loader assumes that of its own."""
    shared = {CollectiveName.ALLGATHER: "i", CollectiveName.REDUCE_SCATTER: "o"}
    return plan.in_place and shared.get(plan.collective.name) == buffer


def _block(plan: ExecutionPlan, rank: int, index: int, block: PlanBlock) -> Iterator[ProgramViolation]:
    body = plan.ranks[rank]
    limits = (
        ("operations of a thread block", len(block.operations), MAX_BLOCK_OPERATIONS),
        ("channels of a thread block", len(block.channels), MAX_BLOCK_CHANNELS),
        ("remote buffers of a thread block", len(block.remotes), MAX_BLOCK_REMOTES),
    )
    for what, value, largest in limits:
        if value > largest:
            yield ProgramViolation.at("limit", f"{what}: {value} is above the limit {largest}", rank, index)
    for what, numbers, end in (("channel", block.channels, body.peers), ("remote buffer", block.remotes, body.remotes)):
        for number in numbers:
            if number >= len(end):
                yield ProgramViolation.at(what, f"names {what} {number}, the rank has {len(end)}", rank, index)
                return
    for step, operation in enumerate(block.operations):
        for rule, message in _operation(plan, rank, block, operation):
            yield ProgramViolation.at(rule, message, rank, index, step)


def _operation(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[tuple[str, str]]:
    action = operation.action
    signals = action in (Action.SIGNAL, Action.WAIT)
    locks = action in (Action.ACQUIRE, Action.RELEASE)
    numbers = (
        ("channel", operation.channels, len(block.channels), MAX_OPERATION_CHANNELS, signals),
        ("semaphore", operation.semaphores, len(plan.ranks[rank].semaphores), MAX_OPERATION_SEMAPHORES, locks),
    )
    for what, named, available, largest, needed in numbers:
        if any(number >= available for number in named):
            yield what, f"{action.value} names {what} {max(named)}, there are {available}"
        if len(named) > largest or (needed and not named):
            yield what, f"{action.value} names {len(named)} {what}s, must name 1 to {largest}"
        if needed and len(set(named)) < len(named):
            yield what, f"{action.value} names a {what} twice: threads would change one counter at once"
    if action.moves:
        yield from _operands(plan, rank, block, operation)


def _operands(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[tuple[str, str]]:
    sources, targets = operation.sources, operation.targets
    if not 0 < len(sources) <= MAX_OPERANDS or not 0 < len(targets) <= MAX_OPERANDS:
        yield "operand", f"{operation.action.value} must have 1 to {MAX_OPERANDS} sources and targets"
        return
    puts = operation.action is Action.PUT
    if len(targets) != (len(sources) if puts else 1) or (operation.action is Action.COPY and len(sources) != 1):
        yield "operand", f"{operation.action.value} has {len(sources)} sources and {len(targets)} targets"
    if any((operand.remote is None) == puts for operand in targets) or any(
        operand.remote is not None for operand in sources
    ):
        yield "operand", f"{operation.action.value} must read own buffers and write {'remote' if puts else 'own'} ones"
        return
    if len({operand.count for operand in (*sources, *targets)}) > 1:
        yield "count", "sources and targets differ in their number of chunks"
    if puts and len({operand.buffer for operand in sources}) > 1:
        yield "operand", "a put reads one buffer: the executor takes that of the first source for all"
    for operand in (*sources, *targets):
        yield from _range(plan, rank, block, operand)
    if not puts:
        yield from _overlaps(plan, rank, sources, targets[0])


def _range(plan: ExecutionPlan, rank: int, block: PlanBlock, operand: Operand) -> Iterator[tuple[str, str]]:
    owner, buffer = rank, operand.buffer
    if operand.remote is not None:
        if operand.remote >= len(block.remotes):
            yield "remote buffer", f"names remote buffer {operand.remote}, the block has {len(block.remotes)}"
            return
        owner, buffer = plan.ranks[rank].remotes[block.remotes[operand.remote]]
    if not 0 <= owner < len(plan.ranks):
        return
    body = plan.ranks[owner]
    chunks = {"i": body.input_chunks, "o": body.output_chunks, "s": body.scratch_chunks}[buffer or "s"]
    if operand.count < 1:
        yield "count", "moves no chunks, must move at least 1"
    elif operand.first + operand.count > chunks:
        last = operand.first + operand.count - 1
        yield "operand", f"{buffer}[{operand.first}..{last}] of rank {owner} is outside its {chunks} chunks"


def _overlaps(
    plan: ExecutionPlan, rank: int, sources: tuple[Operand, ...], target: Operand
) -> Iterator[tuple[str, str]]:
    """The threads of a block go over a stretch in no order."""
    layout = plan.layout(rank)
    written = layout.base(target.buffer or "s") + target.first
    for source in sources:
        distance = abs(layout.base(source.buffer or "s") + source.first - written)
        if 0 < distance < target.count:
            yield "overlap", f"reads chunks that it writes, {distance} further on"


def _signals(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Each direction of a channel is used by one block at either end, as often as by the other."""
    signalled: Counter[tuple[int, int]] = Counter()
    heard: Counter[tuple[int, int]] = Counter()
    users: dict[tuple[int, int, Action], int] = {}
    for rank, body in enumerate(plan.ranks):
        for index, block in enumerate(body.blocks):
            for operation in block.operations:
                for local in operation.channels if operation.action in (Action.SIGNAL, Action.WAIT) else ():
                    number = block.channels[local]
                    if users.setdefault((rank, number, operation.action), index) != index:
                        message = f"uses {operation.action.value} of channel {number}, as another block does"
                        yield ProgramViolation.at("shared channel", message, rank, index)
                    counts = signalled if operation.action is Action.SIGNAL else heard
                    counts[rank, number] += 1
    for rank, number in sorted({*signalled, *heard}):
        peer, other = plan.other_end(rank, number)
        if signalled[rank, number] != heard[peer, other]:
            message = (
                f"signals {signalled[rank, number]} times on channel {number}, rank {peer} waits {heard[peer, other]}"
            )
            yield ProgramViolation.at("signals", message, rank)
        if heard[rank, number] and not signalled[peer, other]:
            yield ProgramViolation.at("signals", f"waits on channel {number}, which rank {peer} never signals", rank)


def _semaphores(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Each semaphore is released by one block and acquired by one, equally often: it keeps its value between calls."""
    for rank, body in enumerate(plan.ranks):
        counts: Counter[tuple[int, Action]] = Counter()
        users: dict[tuple[int, Action], int] = {}
        for index, block in enumerate(body.blocks):
            for operation in block.operations:
                for number in operation.semaphores if operation.action in (Action.ACQUIRE, Action.RELEASE) else ():
                    counts[number, operation.action] += 1
                    if users.setdefault((number, operation.action), index) != index:
                        message = f"uses {operation.action.value} of semaphore {number}, as another block does"
                        yield ProgramViolation.at("semaphore", message, rank, index)
        for number in range(len(body.semaphores)):
            acquired, released = counts[number, Action.ACQUIRE], counts[number, Action.RELEASE]
            if acquired != released:
                message = f"semaphore {number} is released {released} times and acquired {acquired} times"
                yield ProgramViolation.at("semaphore", message, rank)
