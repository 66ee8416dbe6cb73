"""A second, naive execution of programs on real numbers, written apart from the interpreter under test."""

import random

import numpy as np

from chorale.runners.engine.library import DataType, ReduceOp
from chorale.synth.programs.program import Program
from tests.live.engine.reference import expected_output

Buffers = dict[str, list[int | None]]


def execute(program: Program, inputs: list[list[int]], depth: int, piece: int, seed: int) -> list[Buffers]:
    """Run `program` one piece of a step at a time, picking blocks at random; return the buffers of all ranks.

    Raises RuntimeError when nothing can go on.
    """
    chooser = random.Random(seed)
    memory = [_buffers(program, rank, data) for rank, data in enumerate(inputs)]
    wires: dict[tuple[int, int, int], list[list[int | None]]] = {}
    at = {(r, b): (0, 0) for r, rank in enumerate(program.ranks) for b in range(len(rank.blocks))}
    while True:
        waiting = [key for key in at if at[key][0] < len(program.ranks[key[0]].blocks[key[1]].instructions)]
        if not waiting:
            return memory
        chooser.shuffle(waiting)
        for key in waiting:
            if _one_piece(program, key, at, memory, wires, depth, piece):
                break
        else:
            raise RuntimeError(f"stuck: {waiting}")


def _buffers(program: Program, rank: int, data: list[int]) -> Buffers:
    name = program.collective.name
    share = program.chunks // len(program.ranks)
    scratch: list[int | None] = [None] * program.ranks[rank].scratch_chunks
    if not program.in_place:
        outputs = share if name == "reduce_scatter" else program.chunks
        return {"i": list(data), "o": [None] * outputs, "s": scratch}
    if name == "allgather":
        whole: list[int | None] = [None] * program.chunks
        whole[rank * share : (rank + 1) * share] = data
        return {"o": whole, "s": scratch}
    whole = list(data)
    return {"i": whole, "s": scratch} if name == "reduce_scatter" else {"i": whole, "o": whole, "s": scratch}


def _sums(ours: list[int | None], theirs: list[int | None]) -> list[int | None]:
    """Add element by element; what nobody wrote makes a sum that nobody may use."""
    return [None if a is None or b is None else a + b for a, b in zip(ours, theirs, strict=True)]


def _one_piece(program, key, at, memory, wires, depth, piece) -> bool:
    rank, index = key
    block = program.ranks[rank].blocks[index]
    number, moved = at[key]
    item = block.instructions[number]
    if any(at[rank, wait.block][0] <= wait.step for wait in item.waits):
        return False
    name = item.op.value
    inbox = wires.setdefault((block.recv_peer, rank, block.channel), [])
    outbox = wires.setdefault((rank, block.send_peer, block.channel), [])
    if (name[0] == "r" and name != "re" and not inbox) or (name.endswith("s") and len(outbox) >= depth):
        return False
    size = min(piece, item.count - moved)
    buffers = memory[rank]
    src = slice(item.src.offset + moved, item.src.offset + moved + size)
    dst = slice(item.dst.offset + moved, item.dst.offset + moved + size)
    arrived = inbox.pop(0) if name[0] == "r" and name != "re" else None
    if name in ("s", "cpy"):
        value = buffers[item.src.buffer][src]
    elif name in ("r", "rcs"):
        value = arrived
    elif name == "re":
        value = _sums(buffers[item.src.buffer][src], buffers[item.dst.buffer][dst])
    else:
        value = _sums(arrived, buffers[item.src.buffer][src])
    if name not in ("s", "rrs"):
        buffers[item.dst.buffer][dst] = value
    if name.endswith("s"):
        outbox.append(list(value))
    at[key] = (number, moved + size) if moved + size < item.count else (number + 1, 0)
    return True


def result_of(program: Program, seed: int, piece: int, depth: int = 2) -> tuple[list, list]:
    """Return (outputs as executed, outputs as the collective defines them) on random integers.

    None stands for an output that is not defined; inputs that must not change are compared here.
    """
    chooser = random.Random(seed)
    ranks, chunks, name = len(program.ranks), program.chunks, program.collective.name
    share = chunks // ranks
    length = share if name == "allgather" else chunks
    inputs = [[chooser.randrange(10**9) for _ in range(length)] for _ in range(ranks)]
    memory = execute(program, inputs, depth, piece, seed)
    if not program.in_place:
        assert [buffers["i"] for buffers in memory] == inputs
    elif name == "reduce":
        others = [rank for rank in range(ranks) if rank != program.collective.root]
        assert [memory[rank]["o"] for rank in others] == [inputs[rank] for rank in others]
    arrays = [np.array(values) for values in inputs]
    results = [expected_output(program.collective, arrays, rank, DataType.INT64, ReduceOp.SUM) for rank in range(ranks)]
    wanted = [None if values is None else values.tolist() for values in results]
    if name == "reduce_scatter" and program.in_place:
        return [buffers["i"][rank * share : (rank + 1) * share] for rank, buffers in enumerate(memory)], wanted
    outputs = [buffers["o"] for buffers in memory]
    return [out if known is not None else None for out, known in zip(outputs, wanted, strict=True)], wanted
