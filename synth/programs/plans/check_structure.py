"""Rules of a plan that are checked without executing it: buffers, channels and their ends, operands, signal counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.check_structure import collective_violations
from chorale.synth.programs.memory import declared_chunks
from chorale.synth.programs.plans.check_operations import operation_faults
from chorale.synth.programs.plans.plan import (
    MAX_BARRIERS,
    MAX_BLOCK_CHANNELS,
    MAX_BLOCK_OPERATIONS,
    MAX_BLOCK_REMOTES,
    OFFSET_BYTES,
    Action,
    ExecutionPlan,
    Kind,
    Operand,
    Operation,
    PlanBlock,
    RankPlan,
    largest_bytes,
)
from chorale.synth.programs.program import Buffer, ProgramViolation

LARGEST_MIN_BYTES = 2**31 - 1
MAX_BLOCK_THREADS = 1024  # that a GPU starts


def plan_structure_violations(plan: ExecutionPlan) -> list[ProgramViolation]:
    """Return every broken rule. O(operations)."""
    found = list(_whole_plan(plan))
    for rank, body in enumerate(plan.ranks):
        found.extend(_buffers(plan, rank, body))
        for index, block in enumerate(body.blocks):
            found.extend(_block(plan, rank, index, block))
    # What follows names channels and semaphores by their numbers.
    return found or [*_signals(plan), *_semaphores(plan), *_barriers(plan)]


def exceeded_plan_limit(plan: ExecutionPlan, resident_blocks: int) -> str:
    """Return which limit of the executor a rank of `plan` exceeds, "" for none; all its blocks must run at once."""
    rank, body = max(enumerate(plan.ranks), key=lambda item: len(item[1].blocks))
    if len(body.blocks) > resident_blocks:
        blocks = len(body.blocks)
        return f"rank {rank}: thread blocks that must run at once: {blocks} is above the limit {resident_blocks}"
    for rank, body in enumerate(plan.ranks):
        for index, block in enumerate(body.blocks):
            for violation in _numbering(body, rank, index, block):
                return violation.message
    return ""


def _whole_plan(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    ranks = len(plan.ranks)
    yield from collective_violations(plan)
    yield from _sizes_and_threads(plan)
    for rank, body in enumerate(plan.ranks):
        for kind, peers in (("memory", body.peers), ("port", body.port_peers)):
            for peer in sorted(set(peers)):
                if not 0 <= peer < ranks or peer == rank:
                    message = f"has a {kind} channel with {peer}, which is not another rank"
                    yield ProgramViolation.at("peer", message, rank)
        for _, group in body.switches:
            if len(set(group)) < len(group) or not all(0 <= each < ranks for each in group):
                yield ProgramViolation.at("switch", f"has a switch channel of {group}, which are no ranks", rank)


def _sizes_and_threads(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    if plan.min_bytes > plan.max_bytes or plan.max_bytes == 0:
        yield ProgramViolation.at("never used", f"no size is from {plan.min_bytes} to {plan.max_bytes} bytes")
    if plan.settings.threads > MAX_BLOCK_THREADS:
        message = f"num_threads_per_block: {plan.settings.threads} is above the limit {MAX_BLOCK_THREADS}"
        yield ProgramViolation.at("limit", message)
    if plan.min_bytes > LARGEST_MIN_BYTES:
        yield ProgramViolation.at("limit", f"min_message_size: {plan.min_bytes} is above the limit {LARGEST_MIN_BYTES}")
    largest = largest_bytes(plan.chunks, max(body.scratch_chunks for body in plan.ranks))
    if plan.origin and plan.max_bytes > largest:
        message = f"a vector of {plan.max_bytes} bytes has offsets of {OFFSET_BYTES} and more, which wrap"
        yield ProgramViolation.at("limit", message)


def _buffers(plan: ExecutionPlan, rank: int, body: RankPlan) -> Iterator[ProgramViolation]:
    exact = declared_chunks(plan.collective, plan.chunks, len(plan.ranks))
    if (body.input_chunks, body.output_chunks) != exact:
        declared = f"{body.input_chunks} and {body.output_chunks}"
        message = f"input and output have {declared} chunks, must have {exact[0]} and {exact[1]}"
        yield ProgramViolation.at("buffers", message, rank)
    if not body.blocks:
        yield ProgramViolation.at(
            "idle rank", "has no thread block; a rank without work needs one without operations", rank
        )
    for number, (peer, buffer) in enumerate(body.remotes):
        kinds = body.access[number] if number < len(body.access) else ("memory",)
        if not 0 <= peer < len(plan.ranks) or peer == rank:
            yield ProgramViolation.at("remote buffer", f"names a buffer of {peer}, which is not another rank", rank)
        if not all(peer in body.peers_of(kind) for kind in kinds):
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
    numbering = list(_numbering(plan.ranks[rank], rank, index, block))
    yield from numbering
    if any(violation.rule != "limit" for violation in numbering):
        return
    for step, operation in enumerate(block.operations):
        for rule, message in operation_faults(plan, rank, block, operation):
            yield ProgramViolation.at(rule, message, rank, index, step)
        for each in operation.body or (operation,):
            local = [operand for operand in each.sources if operand.buffer is not None]
            if each.action in _ON_THE_SPOT and each.targets and each.targets[0].buffer is not None:
                for rule, message in _overlaps(plan, rank, tuple(local), each.targets[0]):
                    yield ProgramViolation.at(rule, message, rank, index, step)


def _numbering(body: RankPlan, rank: int, index: int, block: PlanBlock) -> Iterator[ProgramViolation]:
    """Yield what is too much in a block, and what it names that the rank does not have."""
    limits = (
        ("operations of a thread block", sum(1 for _ in block.every_operation()), MAX_BLOCK_OPERATIONS),
        ("channels of a thread block", max(len(block.channels), len(block.port_channels)), MAX_BLOCK_CHANNELS),
        ("switch channels of a thread block", len(block.switches), MAX_BLOCK_CHANNELS),
        ("remote buffers of a thread block", max(len(block.remotes), len(block.port_remotes)), MAX_BLOCK_REMOTES),
    )
    for what, value, largest in limits:
        if value > largest:
            yield ProgramViolation.at("limit", f"{what}: {value} is above the limit {largest}", rank, index)
    numbered = (
        ("channel", block.channels, len(body.peers)),
        ("channel", block.port_channels, len(body.port_peers)),
        ("switch", block.switches, len(body.switches)),
        ("remote buffer", (*block.remotes, *block.port_remotes), len(body.remotes)),
    )
    for what, numbers, end in numbered:
        for number in numbers:
            if number >= end:
                yield ProgramViolation.at(what, f"names {what} {number}, the rank has {end}", rank, index)


_ON_THE_SPOT = frozenset(
    {Action.COPY, Action.REDUCE, Action.REDUCE_SEND, Action.READ_REDUCE, Action.READ_REDUCE_SEND, Action.REDUCE_PACKETS}
    | {Action.REDUCE_SEND_PACKETS, Action.REDUCE_COPY_PACKETS, Action.REDUCE_COPY_SEND_PACKETS}
)
"""Operations that read and write own memory."""


def _overlaps(
    plan: ExecutionPlan, rank: int, sources: tuple[Operand, ...], target: Operand
) -> Iterator[tuple[str, str]]:
    """The threads of a block go over a stretch in no order."""
    layout = plan.layout(rank)
    written = layout.base(target.buffer or "s") + target.first
    for source in sources:
        if (source.buffer == "s") != (target.buffer == "s"):
            continue
        distance = abs(layout.base(source.buffer or "s") + source.first - written)
        if 0 < distance < target.count:
            yield "overlap", f"reads chunks that it writes, {distance} further on"


Round = tuple[int, int] | None
"""How often something is done: once a call, or once for each part of such a pipeline."""


def _rounds(block: PlanBlock) -> Iterator[tuple[Round, Operation]]:
    for operation in block.operations:
        if operation.action is Action.PIPELINE:
            yield from ((operation.pipeline, each) for each in operation.body)
        else:
            yield None, operation


def _signals(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Each direction of a channel is used by one block at either end, as often as by the other."""
    signalled: dict[ChannelEnd, Counter[Round]] = defaultdict(Counter)
    heard: dict[ChannelEnd, Counter[Round]] = defaultdict(Counter)
    users: dict[tuple[ChannelEnd, bool], int] = {}
    for rank, body in enumerate(plan.ranks):
        for index, block in enumerate(body.blocks):
            for often, operation in _rounds(block):
                for local in operation.channels if operation.action.signals or operation.action.waits else ():
                    end = rank, block.channels_of(operation.kind)[local], operation.kind
                    if users.setdefault((end, operation.action.waits), index) != index:
                        what = "waits on" if operation.action.waits else "signals on"
                        message = f"{what} {operation.kind} channel {end[1]}, as another block does"
                        yield ProgramViolation.at("shared channel", message, rank, index)
                    (heard if operation.action.waits else signalled)[end][often] += 1
    yield from _unmatched(plan, signalled, heard, users)


ChannelEnd = tuple[int, int, Kind]
"""Rank, number of a channel within the rank, kind of the channel."""
_Counts = Mapping[ChannelEnd, Counter[Round]]


def _unmatched(
    plan: ExecutionPlan, signalled: _Counts, heard: _Counts, users: Mapping[tuple[ChannelEnd, bool], int]
) -> Iterator[ProgramViolation]:
    for rank, number, kind in sorted({*signalled, *heard}):
        told = signalled.get((rank, number, kind), Counter())
        peer, other = plan.other_end(rank, number, kind)
        waited = heard.get((peer, other, kind), Counter())
        sender, receiver = users.get(((rank, number, kind), False)), users.get(((peer, other, kind), True))
        if told != waited:
            message = (
                f"signals {told.total()} times on {kind} channel {number}, "
                f"rank {peer}{'' if receiver is None else f', block {receiver}'} waits {waited.total()}"
                f"{'' if told.total() != waited.total() else ', in other pipelines'}"
            )
            yield ProgramViolation.at("signals", message, rank, sender)
        if (rank, number, kind) in heard and (peer, other, kind) not in signalled:
            message = f"waits on {kind} channel {number}, which rank {peer} never signals"
            yield ProgramViolation.at("signals", message, rank, users.get(((rank, number, kind), True)))


def _semaphores(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Each semaphore is released by one block and acquired by one, equally often: it keeps its value between calls."""
    for rank, body in enumerate(plan.ranks):
        counts: dict[tuple[int, Action], Counter[Round]] = defaultdict(Counter)
        users: dict[tuple[int, Action], int] = {}
        for index, block in enumerate(body.blocks):
            for often, operation in _rounds(block):
                for number in operation.semaphores if operation.action in (Action.ACQUIRE, Action.RELEASE) else ():
                    counts[number, operation.action][often] += 1
                    if users.setdefault((number, operation.action), index) != index:
                        message = f"uses {operation.action.value} of semaphore {number}, as another block does"
                        yield ProgramViolation.at("semaphore", message, rank, index)
        for number in range(len(body.semaphores)):
            acquired, released = counts[number, Action.ACQUIRE], counts[number, Action.RELEASE]
            if acquired != released:
                by_blocks = [
                    f"{done} {counted.total()} times{_by_block(users.get((number, action)))}"
                    for done, counted, action in (
                        ("released", released, Action.RELEASE),
                        ("acquired", acquired, Action.ACQUIRE),
                    )
                ]
                user = users.get((number, Action.ACQUIRE), users.get((number, Action.RELEASE)))
                message = f"semaphore {number} is {' and '.join(by_blocks)}"
                yield ProgramViolation.at("semaphore", message, rank, user)


def _by_block(block: int | None) -> str:
    return "" if block is None else f" by block {block}"


def _barriers(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Each barrier is met by as many blocks as it is for, by all equally often."""
    for rank, body in enumerate(plan.ranks):
        met: dict[int, dict[int, Counter[Round]]] = defaultdict(lambda: defaultdict(Counter))
        sizes: dict[int, set[int]] = defaultdict(set)
        for index, block in enumerate(body.blocks):
            for often, operation in _rounds(block):
                if operation.action is Action.BARRIER and operation.barrier is not None:
                    met[operation.barrier[0]][index][often] += 1
                    sizes[operation.barrier[0]].add(operation.barrier[1])
        for number, counts in sorted(met.items()):
            if sizes[number] != {len(counts)} or len({tuple(sorted(c.items(), key=str)) for c in counts.values()}) > 1:
                message = f"barrier {number} is for {sorted(sizes[number])} blocks, {len(counts)} come to it"
                yield ProgramViolation.at("barrier", message, rank)
            if number >= MAX_BARRIERS:
                message = f"barrier: {number} is above the limit {MAX_BARRIERS - 1}"
                yield ProgramViolation.at("limit", message, rank)
