"""Rules of a plan that are checked without executing it: buffers, channels and their ends, operands, signal counts."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.check_structure import collective_violations
from chorale.synth.programs.memory import declared_chunks
from chorale.synth.programs.plans.plan import (
    MAX_BARRIERS,
    MAX_BLOCK_CHANNELS,
    MAX_BLOCK_OPERATIONS,
    MAX_BLOCK_REMOTES,
    MAX_OPERANDS,
    MAX_OPERATION_CHANNELS,
    MAX_OPERATION_SEMAPHORES,
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

Fault = tuple[str, str]
"""The rule that is broken, and how."""

MAX_GROUP = 1024
"""Blocks that share an operation."""

# Letters of operands: L input or output, S scratch, R and T those of another rank, X and Y those of a group.
_OPERANDS: dict[Action, tuple[str, str, str]] = {
    Action.PUT: ("[LS]+", "[RT]+", "memory port"),
    Action.PUT_SIGNAL: ("[LS]+", "[RT]+", "port"),
    Action.PUT_SIGNAL_FLUSH: ("[LS]+", "[RT]+", "port"),
    Action.GET: ("[RT]+", "[LS]+", "memory"),
    Action.COPY: ("[LS]", "[LS]", "memory"),
    Action.REDUCE: ("[LS]+", "[LS]", "memory"),
    Action.REDUCE_SEND: ("[LS]+", "[LS][RT]*", "memory"),
    Action.READ_REDUCE: ("[LS][RT]+", "[LS]", "memory"),
    Action.READ_REDUCE_SEND: ("[LS][RT]+", "[LS][RT]+", "memory"),
    Action.PUT_PACKETS: ("L+", "T+", "memory"),
    Action.READ_PUT_PACKETS: ("S+", "T+", "memory port"),
    Action.COPY_PACKETS: ("L", "S", "memory"),
    Action.UNPACK_PACKETS: ("S", "L", "memory"),
    Action.REDUCE_PACKETS: ("LS*", "L", "memory"),
    Action.REDUCE_SEND_PACKETS: ("LS*", "LT*", "memory"),
    Action.REDUCE_COPY_PACKETS: ("LS*", "LS", "memory"),
    Action.REDUCE_COPY_SEND_PACKETS: ("LS*", "LST*", "memory"),
    Action.GROUP_LOAD_REDUCE: ("[XY]", "[LS]", "switch"),
    Action.GROUP_LOAD_REDUCE_STORE: ("[XY]", "[XY]", "switch"),
    Action.GROUP_STORE: ("[LS]", "[XY]", "switch"),
    Action.GROUP_STORE_PACKETS: ("L", "Y", "switch"),
}
"""Sources and targets of each operation that moves data, and the kinds of channels that it works with."""
_PAIRED = frozenset({Action.PUT, Action.PUT_SIGNAL, Action.PUT_SIGNAL_FLUSH, Action.GET, Action.PUT_PACKETS})
_LOCKS = frozenset({Action.ACQUIRE, Action.RELEASE})
_WORDS = {
    "L": "own input or output",
    "S": "own scratch",
    "R": "remote",
    "T": "remote scratch",
    "X": "switch",
    "Y": "switch",
}


def operation_faults(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield the rules that `operation` of `block` of `rank` breaks, those in a pipeline included. O(operands)."""
    if operation.action is Action.PIPELINE:
        yield from _pipeline(plan, rank, block, operation)
        return
    yield from _numbers(plan, rank, block, operation)
    index, size = operation.part
    if not (0 <= index < size <= MAX_GROUP):
        yield "group", f"{operation.action.value} is part {index} of {size}, must be one of 1 to {MAX_GROUP}"
    elif operation.action.moves:
        yield from _operands(plan, rank, block, operation)


def _pipeline(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    unit_bytes, chunks = operation.pipeline or (0, 0)
    if unit_bytes < 1 or chunks < 1 or not operation.body:
        yield "pipeline", f"repeats {len(operation.body)} operations for {chunks} chunks in parts of {unit_bytes} bytes"
    for inner in operation.body:
        if inner.action is Action.PIPELINE or inner.action.packets:
            yield "pipeline", f"{inner.action.value} is not done part by part"
            continue
        for operand in (*inner.sources, *inner.targets):
            if operand.count != chunks:
                message = f"{inner.action.value} moves {operand.count} chunks, its pipeline {chunks}: parts lie outside"
                yield "pipeline", message
        yield from operation_faults(plan, rank, block, inner)


def _numbers(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield faults of the channels and semaphores that an operation names."""
    action, kind = operation.action, operation.kind
    through_port = kind == "port" and action.moves
    tells = action.signals or action.waits or through_port
    if tells and kind == "switch":
        yield "channel", f"{action.value} needs memory or port channels"
    if operation.channels or tells:
        there = len(block.channels_of(kind))
        yield from _named("channel", operation, operation.channels, there, MAX_OPERATION_CHANNELS, tells)
    if operation.semaphores or action in _LOCKS:
        there = len(plan.ranks[rank].semaphores)
        yield from _named(
            "semaphore", operation, operation.semaphores, there, MAX_OPERATION_SEMAPHORES, action in _LOCKS
        )
    if through_port and len(operation.channels) != len(operation.targets):
        yield "channel", f"{action.value} has {len(operation.channels)} ports for {len(operation.targets)} targets"


def _named(
    what: str, operation: Operation, named: tuple[int, ...], available: int, largest: int, needed: bool
) -> Iterator[Fault]:
    action = operation.action
    if named and max(named) >= available:
        yield what, f"{action.value} names {what} {max(named)}, there are {available}"
    if len(named) > largest or (needed and not named):
        yield what, f"{action.value} names {len(named)} {what}s, must name 1 to {largest}"
    if needed and len(set(named)) < len(named):
        yield what, f"{action.value} names a {what} twice: threads would change one counter at once"


def _operands(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    action, sources, targets = operation.action, operation.sources, operation.targets
    if not 0 < len(sources) <= MAX_OPERANDS or not 0 < len(targets) <= MAX_OPERANDS:
        yield "operand", f"{action.value} must have 1 to {MAX_OPERANDS} sources and targets"
        return
    unknown = list(_unknown(plan, rank, block, operation))
    if unknown:
        yield from unknown
        return
    yield from _shape(plan, rank, block, operation)
    pairs = action in _PAIRED or action is Action.READ_PUT_PACKETS
    if pairs and len(sources) != len(targets):
        yield "operand", f"{action.value} has {len(sources)} sources and {len(targets)} targets"
    elif action in _PAIRED:
        if any(source.count != target.count for source, target in zip(sources, targets, strict=True)):
            yield "count", "a source and its target differ in their number of chunks"
    elif len({operand.count for operand in (*sources, *targets)}) > 1:
        yield "count", "sources and targets differ in their number of chunks"
    for operand in (*sources, *targets):
        yield from _range(plan, rank, block, operation, operand)


def _unknown(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield faults of operands whose place does not exist."""
    remotes = block.remotes_of(operation.kind)
    for operand in (*operation.sources, *operation.targets):
        if operand.remote is not None and operand.remote >= len(remotes):
            yield "remote buffer", f"names remote buffer {operand.remote}, the block has {len(remotes)}"
        elif operand.remote is not None and not 0 <= plan.ranks[rank].remotes[remotes[operand.remote]][0] < len(
            plan.ranks
        ):
            yield "remote buffer", "names a buffer of a rank that does not exist"
        elif operand.switch is not None and operand.switch >= len(block.switches):
            yield "switch", f"names switch channel {operand.switch}, the block has {len(block.switches)}"
        elif operand.switch is not None and rank not in plan.ranks[rank].switches[block.switches[operand.switch]][1]:
            yield "switch", "names a switch channel of a group without its rank"


def _shape(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield whether the operands are not those that the operation takes."""
    action, packets = operation.action, plan.settings.packets
    sides = [
        "".join(_letter(plan, rank, block, operation, operand) for operand in side)
        for side in (operation.sources, operation.targets)
    ]
    sources, targets, kinds = _OPERANDS[action]
    if action is Action.PUT_PACKETS and operation.kind == "port":
        sources, kinds = "S+", "port"
    if operation.kind not in kinds.split():
        yield "channel", f"{action.value} works with channels of {' or '.join(kinds.split())}, not of {operation.kind}"
    elif not (re.fullmatch(sources, sides[0]) and re.fullmatch(targets, sides[1])):
        named = [", ".join(_WORDS[letter] for letter in side) for side in sides]
        yield "operand", f"{action.value} cannot go from {named[0]} to {named[1]}"
    elif action.packets and not packets:
        yield "packets", f"{action.value} needs protocol LL, which makes room for flags in scratch"
    elif packets and not action.packets and re.search("[STY]", sides[0] + sides[1]):
        yield "packets", f"{action.value} touches scratch, which holds packets with protocol LL"
    elif action in (Action.PUT, Action.PUT_PACKETS) and len({operand.buffer for operand in operation.sources}) > 1:
        yield "operand", "a put reads one buffer: the executor takes that of the first source for all"
    elif action is Action.GET and any(
        source.first != target.first for source, target in zip(operation.sources, operation.targets, strict=False)
    ):
        yield "operand", "a get must have the same chunk on either side: the executor takes them the other way round"


def _letter(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation, operand: Operand) -> str:
    body = plan.ranks[rank]
    if operand.remote is not None:
        return "T" if body.remotes[block.remotes_of(operation.kind)[operand.remote]][1] == "s" else "R"
    if operand.switch is not None:
        return "Y" if body.switches[block.switches[operand.switch]][0] == "s" else "X"
    return "S" if operand.buffer == "s" else "L"


def _range(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation, operand: Operand) -> Iterator[Fault]:
    if operand.count < 1:
        yield "count", "moves no chunks, must move at least 1"
        return
    body = plan.ranks[rank]
    places: list[tuple[int, Buffer]] = [(rank, operand.buffer or "s")]
    if operand.remote is not None:
        places = [body.remotes[block.remotes_of(operation.kind)[operand.remote]]]
    elif operand.switch is not None:
        buffer, group = body.switches[block.switches[operand.switch]]
        places = [(each, buffer) for each in group if 0 <= each < len(plan.ranks)]
    for owner, buffer in places:
        other = plan.ranks[owner]
        chunks = {"i": other.input_chunks, "o": other.output_chunks, "s": other.scratch_chunks}[buffer]
        if operand.first + operand.count > chunks:
            last = operand.first + operand.count - 1
            yield "operand", f"{buffer}[{operand.first}..{last}] of rank {owner} is outside its {chunks} chunks"


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
