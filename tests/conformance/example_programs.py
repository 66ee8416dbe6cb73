"""Programs written by hand, right ones and wrong ones, for tests of whatever executes programs."""

from collections.abc import Sequence
from dataclasses import replace

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.programs.program import Buffer, BufferRef, Instruction, Op, Program, RankProgram, ThreadBlock, Wait


def program_of(
    collective: Collective, chunks: int, ranks: Sequence[RankProgram], in_place: bool = True, channels: int = 1
) -> Program:
    shard = chunks // len(ranks)
    sizes: dict[Buffer, int] = {
        "i": shard if collective.name is CollectiveName.ALLGATHER else chunks,
        "o": shard if collective.name is CollectiveName.REDUCE_SCATTER else chunks,
    }
    declared = (
        replace(rank, **{name: sizes[buffer] for name, buffer in _NAMES.items() if buffer in _addressed(rank)})
        for rank in ranks
    )
    return Program("example", "oneccl-xml", collective, chunks, in_place, "Simple", channels, tuple(declared))


_NAMES: dict[str, Buffer] = {"input_chunks": "i", "output_chunks": "o"}


def _addressed(rank: RankProgram) -> set[Buffer]:
    steps = [step for block in rank.blocks for step in block.instructions]
    read: set[Buffer] = {step.src.buffer for step in steps if step.op.reads_src}
    return read | {step.dst.buffer for step in steps if step.op.writes_dst}


def rank_of(*blocks: ThreadBlock, scratch_chunks: int = 0) -> RankProgram:
    return RankProgram(0, 0, scratch_chunks, blocks)


def step(op: Op, buffer: Buffer, chunk: int, *waits: Wait, source: Buffer | None = None, count: int = 1) -> Instruction:
    return Instruction(op, BufferRef(source or buffer, chunk), BufferRef(buffer, chunk), count, waits)


def ring_allreduce(order: Sequence[int], in_place: bool = True) -> Program:
    """Reduce-scatter, then allgather along the ring `order`: one block per rank, one chunk per rank."""
    size = len(order)
    source: Buffer = "o" if in_place else "i"
    ranks: dict[int, RankProgram] = {}
    for position, rank in enumerate(order):
        steps = [step(Op.SEND, source, position)]
        chunks = [(position - turn) % size for turn in range(1, size)]
        steps += [step(Op.RECV_REDUCE_COPY_SEND, "o", chunk, source=source) for chunk in chunks]
        steps += [step(Op.RECV_COPY_SEND, "o", (position + 1 - turn) % size) for turn in range(1, size - 1)]
        steps += [step(Op.RECV, "o", (position + 2) % size)]
        block = ThreadBlock(order[(position + 1) % size], order[position - 1], 0, tuple(steps))
        ranks[rank] = rank_of(block)
    return program_of(ALLREDUCE, size, [ranks[rank] for rank in range(size)], in_place)


def ring_allgather(size: int, in_place: bool) -> Program:
    """Every shard goes around the ring 0, 1, …; out of place, the own shard is copied first."""
    ranks = []
    for rank in range(size):
        first = step(Op.SEND, "o", rank) if in_place else Instruction(Op.SEND, BufferRef("i", 0), BufferRef("i", 0), 1)
        steps = [first]
        steps += [step(Op.RECV_COPY_SEND, "o", (rank - turn) % size) for turn in range(1, size - 1)]
        steps += [step(Op.RECV, "o", (rank + 1) % size)]
        own = Instruction(Op.COPY, BufferRef("i", 0), BufferRef("o", rank), 1)
        local = () if in_place else (ThreadBlock(None, None, 0, (own,)),)
        ranks.append(rank_of(ThreadBlock((rank + 1) % size, (rank - 1) % size, 0, tuple(steps)), *local))
    return program_of(ALLGATHER, size, ranks, in_place)


def ring_reduce_scatter(size: int) -> Program:
    """In place: partial sums go around the ring and end at their owner; nothing is stored on the way."""
    ranks = []
    for rank in range(size):
        steps = [step(Op.SEND, "i", (rank - 1) % size)]
        steps += [step(Op.RECV_REDUCE_SEND, "i", (rank - 1 - turn) % size) for turn in range(1, size - 1)]
        steps += [step(Op.RECV_REDUCE_COPY, "i", rank)]
        ranks.append(rank_of(ThreadBlock((rank + 1) % size, (rank - 1) % size, 0, tuple(steps))))
    return program_of(REDUCE_SCATTER, size, ranks)


def scratch_allreduce_of_pair() -> Program:
    """Two ranks swap their whole vectors through scratch, wait for the data and add them locally."""
    ranks = []
    for rank in range(2):
        sender = ThreadBlock(1 - rank, None, 0, (step(Op.SEND, "i", 0, count=2),))
        receiver = ThreadBlock(None, 1 - rank, 0, (step(Op.RECV, "s", 0, count=2),))
        steps = step(Op.COPY, "o", 0, source="i", count=2), step(Op.REDUCE, "o", 0, Wait(1, 0), source="s", count=2)
        adder = ThreadBlock(None, None, 0, steps)
        ranks.append(rank_of(sender, receiver, adder, scratch_chunks=2))
    return program_of(ALLREDUCE, 2, ranks, in_place=False)


def star_broadcast(size: int, root: int) -> Program:
    """The root sends everything to everybody, each on a connection of its own."""
    ranks = []
    for rank in range(size):
        if rank == root:
            send = (step(Op.SEND, "o", 0),)
            ranks.append(rank_of(*(ThreadBlock(peer, None, 0, send) for peer in range(size) if peer != root)))
        else:
            ranks.append(rank_of(ThreadBlock(None, root, 0, (step(Op.RECV, "o", 0),))))
    return program_of(Collective(CollectiveName.BROADCAST, root), 1, ranks)


def with_swapped_offset(program: Program, rank: int) -> Program:
    """Return `program` with the last instruction of block 0 of `rank` writing to the neighbouring chunk."""
    block = program.ranks[rank].blocks[0]
    last = block.instructions[-1]
    moved = replace(last, dst=BufferRef(last.dst.buffer, (last.dst.offset + 1) % program.chunks))
    return _with_block(program, rank, replace(block, instructions=(*block.instructions[:-1], moved)))


def with_deadlock(program: Program, rank: int) -> Program:
    """Return `program` with two new blocks on `rank` that wait for each other."""
    blocks = program.ranks[rank].blocks
    others = len(blocks) + 1, len(blocks)
    waiting = [ThreadBlock(None, None, 0, (step(Op.COPY, "o", 0, Wait(other, 0)),)) for other in others]
    return _with_rank(program, rank, replace(program.ranks[rank], blocks=(*blocks, *waiting)))


def with_work(program: Program, rank: int, copies: int, chunks: int) -> Program:
    """Return `program` with block 0 of `rank` beginning after `copies` copies of `chunks` chunks inside its scratch."""
    block = program.ranks[rank].blocks[0]
    first = replace(block.instructions[0], waits=(Wait(len(program.ranks[rank].blocks), copies - 1),))
    changed = _with_block(program, rank, replace(block, instructions=(first, *block.instructions[1:])))
    copy = Instruction(Op.COPY, BufferRef("s", 0), BufferRef("s", chunks), chunks)
    busy = changed.ranks[rank]
    work = (*busy.blocks, ThreadBlock(None, None, 0, (copy,) * copies))
    return _with_rank(changed, rank, replace(busy, blocks=work, scratch_chunks=2 * chunks))


def _with_block(program: Program, rank: int, block: ThreadBlock) -> Program:
    return _with_rank(program, rank, replace(program.ranks[rank], blocks=(block, *program.ranks[rank].blocks[1:])))


def _with_rank(program: Program, rank: int, changed: RankProgram) -> Program:
    ranks = list(program.ranks)
    ranks[rank] = changed
    return replace(program, ranks=tuple(ranks))
