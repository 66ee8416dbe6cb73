"""Checks what can be checked without executing a plan: buffers, channels, operands, numbers of signals and waits."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.check_structure import above, collective_violations
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
    VECTOR_BYTES,
    Action,
    ExecutionPlan,
    Kind,
    Operand,
    Operation,
    PlanBlock,
    RankPlan,
    largest_bytes,
)
from chorale.synth.programs.program import ProgramViolation

Fault = tuple[str, str]
"""(short name of the broken rule, message)."""

MAX_GROUP = 1024
"""Maximum number of blocks that may share an operation."""
LARGEST_MIN_BYTES = 2**31 - 1
MAX_BLOCK_THREADS = 1024
"""Maximum number of threads per block that a GPU supports."""

# Letters of operands: L is input or output, S is scratch; R and T are these at another rank, X and Y at a group.
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
"""Maps each operation that moves data to regular expressions for its sources and targets (the letters are explained in
`_WORDS`), and to the kinds of channels that it supports."""
_WORDS = {
    "L": "own input or output",
    "S": "own scratch",
    "R": "remote",
    "T": "remote scratch",
    "X": "switch",
    "Y": "switch",
}
_PAIRED = frozenset({Action.PUT, Action.PUT_SIGNAL, Action.PUT_SIGNAL_FLUSH, Action.GET, Action.PUT_PACKETS})
_LOCAL = frozenset(
    {Action.COPY, Action.REDUCE, Action.REDUCE_SEND, Action.READ_REDUCE, Action.READ_REDUCE_SEND, Action.REDUCE_PACKETS}
    | {Action.REDUCE_SEND_PACKETS, Action.REDUCE_COPY_PACKETS, Action.REDUCE_COPY_SEND_PACKETS}
)
"""Operations that both read and write their own rank's memory."""
Round = tuple[int, int] | None
"""How often an operation runs. None: once per call; (part bytes, chunks): once for each part of such a pipeline."""
ChannelEnd = tuple[int, int, Kind]
"""(rank, channel number within the rank, kind of channel)."""


def plan_structure_violations(plan: ExecutionPlan) -> list[ProgramViolation]:
    """Return a violation for every rule that `plan` breaks. O(operations)."""
    found = list(_plan_faults(plan))
    exact = declared_chunks(plan.collective, plan.chunks, len(plan.ranks))
    # The loader assumes that a buffer has the same offset on both ranks. In place, these offsets differ between
    # ranks.
    shifted = {CollectiveName.ALLGATHER: "i", CollectiveName.REDUCE_SCATTER: "o"}.get(plan.collective.name)
    for rank, body in enumerate(plan.ranks):
        faults: list[Fault] = []
        if (body.input_chunks, body.output_chunks) != exact:
            declared = f"{body.input_chunks} and {body.output_chunks}"
            message = f"input and output have {declared} chunks, must have {exact[0]} and {exact[1]}"
            faults.append(("buffers", message))
        if not body.blocks:
            faults.append(("idle rank", "has no thread block; a rank without work needs one without operations"))
        for number, (peer, buffer) in enumerate(body.remotes):
            kinds = body.access[number] if number < len(body.access) else ("memory",)
            if not 0 <= peer < len(plan.ranks) or peer == rank:
                faults.append(("remote buffer", f"names a buffer of {peer}, which is not another rank"))
            if not all(peer in body.peers_of(kind) for kind in kinds):
                faults.append(("remote buffer", f"names a buffer of rank {peer}, with which it has no channel"))
            if plan.in_place and shifted == buffer:
                message = f"names {buffer} of rank {peer}, whose offset in place differs from its own"
                faults.append(("remote buffer", message))
        found += [ProgramViolation.at(rule, message, rank) for rule, message in faults]
        for index, block in enumerate(body.blocks):
            numbering = list(_numbering_faults(body, rank, index, block))
            found += numbering
            if all(violation.rule == "limit" for violation in numbering):
                for step, operation in enumerate(block.operations):
                    for rule, message in _operation_faults(plan, rank, block, operation):
                        found.append(ProgramViolation.at(rule, message, rank, index, step))
    # The other checks look up channels and semaphores by number, so they need valid numbers.
    return found or [*_signal_faults(plan), *_semaphore_faults(plan), *_barrier_faults(plan)]


def numbering_violations(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Yield a violation for each limit that a block exceeds, and for each channel or buffer that its rank lacks."""
    for rank, body in enumerate(plan.ranks):
        for index, block in enumerate(body.blocks):
            yield from _numbering_faults(body, rank, index, block)


def _plan_faults(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    ranks = len(plan.ranks)
    yield from collective_violations(plan)
    if plan.min_bytes > plan.max_bytes or plan.max_bytes == 0:
        yield ProgramViolation.at("never used", f"no size is from {plan.min_bytes} to {plan.max_bytes} bytes")
    yield from above("num_threads_per_block", plan.settings.threads, MAX_BLOCK_THREADS)
    yield from above("min_message_size", plan.min_bytes, LARGEST_MIN_BYTES)
    if plan.settings.vector_bytes not in VECTOR_BYTES:
        yield ProgramViolation.at("limit", f"vector_bytes must be 8 or 16, not {plan.settings.vector_bytes}")
    if plan.origin and plan.max_bytes > largest_bytes(plan.chunks, max(body.scratch_chunks for body in plan.ranks)):
        message = f"a vector of {plan.max_bytes} bytes has offsets of {OFFSET_BYTES} and more, which wrap"
        yield ProgramViolation.at("limit", message)
    for rank, body in enumerate(plan.ranks):
        for kind, peers in (("memory", body.peers), ("port", body.port_peers)):
            for peer in sorted(set(peers)):
                if not 0 <= peer < ranks or peer == rank:
                    message = f"has a {kind} channel with {peer}, which is not another rank"
                    yield ProgramViolation.at("peer", message, rank)
        for _, group in body.switches:
            if len(set(group)) < len(group) or not all(0 <= each < ranks for each in group):
                message = f"has a switch channel of {group}, which are not different ranks"
                yield ProgramViolation.at("switch", message, rank)


def _numbering_faults(body: RankPlan, rank: int, index: int, block: PlanBlock) -> Iterator[ProgramViolation]:
    """Yield a violation for each limit that `block` exceeds, and for each channel or buffer that its rank lacks."""
    limits = (
        ("operations of a thread block", sum(1 for _ in block.every_operation()), MAX_BLOCK_OPERATIONS),
        ("channels of a thread block", max(len(block.channels), len(block.port_channels)), MAX_BLOCK_CHANNELS),
        ("switch channels of a thread block", len(block.switches), MAX_BLOCK_CHANNELS),
        ("remote buffers of a thread block", max(len(block.remotes), len(block.port_remotes)), MAX_BLOCK_REMOTES),
    )
    for what, value, largest in limits:
        yield from above(what, value, largest, rank, index)
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


def _operation_faults(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield a fault for each rule that `operation` or, if it is a pipeline, an operation in it breaks. O(operands)."""
    action, kind = operation.action, operation.kind
    if action is Action.PIPELINE:
        unit_bytes, chunks = operation.pipeline or (0, 0)
        if unit_bytes < 1 or chunks < 1 or not operation.body:
            count = len(operation.body)
            yield "pipeline", f"repeats {count} operations for {chunks} chunks in parts of {unit_bytes} bytes"
        for inner in operation.body:
            if inner.action is Action.PIPELINE or inner.action.packets:
                yield "pipeline", f"{inner.action.value} cannot be in a pipeline"
                continue
            for operand in (*inner.sources, *inner.targets):
                if operand.count != chunks:
                    what = f"{inner.action.value} moves {operand.count} chunks, its pipeline {chunks}"
                    yield "pipeline", f"{what}: both must be equal"
            yield from _operation_faults(plan, rank, block, inner)
        return
    is_push = kind == "port" and action.moves
    needs_channel = action.signals or action.waits or is_push
    needs_semaphore = action in (Action.ACQUIRE, Action.RELEASE)
    if needs_channel and kind == "switch":
        yield "channel", f"{action.value} needs memory or port channels"
    there = len(block.channels_of(kind))
    numbered = (
        ("channel", operation.channels, there, MAX_OPERATION_CHANNELS, needs_channel),
        (
            "semaphore",
            operation.semaphores,
            len(plan.ranks[rank].semaphores),
            MAX_OPERATION_SEMAPHORES,
            needs_semaphore,
        ),
    )
    for what, named, available, largest, is_needed in numbered:
        if named and max(named) >= available:
            yield what, f"{action.value} names {what} {max(named)}, there are {available}"
        if len(named) > largest or (is_needed and not named):
            yield what, f"{action.value} names {len(named)} {what}s, must name 1 to {largest}"
        if is_needed and len(set(named)) < len(named):
            yield what, f"{action.value} names a {what} twice: threads would change one counter at once"
    if is_push and len(operation.channels) != len(operation.targets):
        yield "channel", f"{action.value} has {len(operation.channels)} ports for {len(operation.targets)} targets"
    index, size = operation.part
    if not (0 <= index < size <= MAX_GROUP):
        yield "group", f"{action.value} is part {index} of {size}, must be one of 1 to {MAX_GROUP}"
    elif action.moves:
        yield from _operand_faults(plan, rank, block, operation)


def _operand_faults(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    action, sources, targets = operation.action, operation.sources, operation.targets
    body, remotes = plan.ranks[rank], block.remotes_of(operation.kind)
    if not 0 < len(sources) <= MAX_OPERANDS or not 0 < len(targets) <= MAX_OPERANDS:
        yield "operand", f"{action.value} must have 1 to {MAX_OPERANDS} sources and targets"
        return
    unknown: list[Fault] = []
    for operand in (*sources, *targets):
        if operand.remote is not None and operand.remote >= len(remotes):
            unknown.append(("remote buffer", f"names remote buffer {operand.remote}, the block has {len(remotes)}"))
        elif operand.remote is not None and not 0 <= body.remotes[remotes[operand.remote]][0] < len(plan.ranks):
            unknown.append(("remote buffer", "names a buffer of a rank that does not exist"))
        elif operand.switch is not None and operand.switch >= len(block.switches):
            unknown.append(("switch", f"names switch channel {operand.switch}, the block has {len(block.switches)}"))
        elif operand.switch is not None and rank not in body.switches[block.switches[operand.switch]][1]:
            unknown.append(("switch", "names a switch channel of a group without its rank"))
    if unknown:
        yield from unknown
        return

    def letter(operand: Operand) -> str:
        kinds = "RT" if operand.remote is not None else "XY" if operand.switch is not None else "LS"
        return kinds[plan.memory_of(rank, block, operation, operand)[0][1] == "s"]

    yield from _shape_faults(plan, operation, ["".join(map(letter, side)) for side in (sources, targets)])
    if (action in _PAIRED or action is Action.READ_PUT_PACKETS) and len(sources) != len(targets):
        yield "operand", f"{action.value} has {len(sources)} sources and {len(targets)} targets"
    elif action in _PAIRED:
        if any(source.count != target.count for source, target in zip(sources, targets, strict=True)):
            yield "count", "a source and its target differ in their number of chunks"
    elif len({operand.count for operand in (*sources, *targets)}) > 1:
        yield "count", "sources and targets differ in their number of chunks"
    yield from _memory_faults(plan, rank, block, operation)


def _memory_faults(plan: ExecutionPlan, rank: int, block: PlanBlock, operation: Operation) -> Iterator[Fault]:
    """Yield a fault for each operand that is empty or outside its buffer, and for sources that overlap the target."""
    sources, targets = operation.sources, operation.targets
    for operand in (*sources, *targets):
        if operand.count < 1:
            yield "count", "moves no chunks, must move at least 1"
            continue
        last = operand.first + operand.count - 1
        for owner, buffer in plan.memory_of(rank, block, operation, operand):
            if 0 <= owner < len(plan.ranks):
                other = plan.ranks[owner]
                chunks = {"i": other.input_chunks, "o": other.output_chunks, "s": other.scratch_chunks}[buffer]
                if last >= chunks:
                    range_ = f"{buffer}[{operand.first}..{last}] of rank {owner}"
                    yield "operand", f"{range_} is outside its {chunks} chunks"
    # Threads process the chunks of an operand in any order, so a source must not overlap the target.
    target, layout = targets[0], plan.layout(rank)
    for source in sources if operation.action in _LOCAL else ():
        if source.buffer and target.buffer and (source.buffer == "s") == (target.buffer == "s"):
            distance = abs(layout.base(source.buffer) + source.first - layout.base(target.buffer) - target.first)
            if 0 < distance < target.count:
                yield "overlap", f"reads chunks that it writes, {distance} further on"


def _shape_faults(plan: ExecutionPlan, operation: Operation, sides: Sequence[str]) -> Iterator[Fault]:
    """Yield a fault if the kind of channel or the combination of operands breaks a rule.

    sides: letters of the sources, and letters of the targets (see `_OPERANDS`)
    """
    action, packets = operation.action, plan.settings.packets
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
        yield "operand", "a get must have the same chunk on both sides: the executor swaps the two offsets"


def _rounds(block: PlanBlock) -> Iterator[tuple[Round, Operation]]:
    for operation in block.operations:
        if operation.action is Action.PIPELINE:
            yield from ((operation.pipeline, each) for each in operation.body)
        else:
            yield None, operation


def _signal_faults(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Yield violations unless, in each direction of a channel, one block signals and one waits equally often."""
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


def _semaphore_faults(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Yield violations unless each semaphore is released by one block and acquired by one block, equally often.

    Otherwise the value of the semaphore would change from call to call.
    """
    uses = ((Action.RELEASE, "released"), (Action.ACQUIRE, "acquired"))
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
            if counts[number, Action.ACQUIRE] != counts[number, Action.RELEASE]:
                by_blocks = []
                for action, done in uses:
                    user = users.get((number, action))
                    by = "" if user is None else f" by block {user}"
                    by_blocks.append(f"{done} {counts[number, action].total()} times{by}")
                user = users.get((number, Action.ACQUIRE), users.get((number, Action.RELEASE)))
                message = f"semaphore {number} is {' and '.join(by_blocks)}"
                yield ProgramViolation.at("semaphore", message, rank, user)


def _barrier_faults(plan: ExecutionPlan) -> Iterator[ProgramViolation]:
    """Yield violations unless the stated number of blocks arrives at each barrier, all of them equally often."""
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
            yield from above("barrier", number, MAX_BARRIERS - 1, rank)
