"""For which others the instructions of one rank wait: exactly those that share a chunk with them, once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled

Numbers = NDArray[np.int64]


@compiled
def dependences(src: Numbers, dst: Numbers, count: Numbers, cells: int) -> tuple[Numbers, Numbers]:
    """Return on which earlier instructions each instruction of a rank depends, given in a valid sequential order.

    src, dst: the first of the rank's `cells` that each reads and writes, -1 for none; count: how many. An
    instruction depends on an earlier one where it reads what that wrote, writes what that read, or writes what that
    wrote. Returns (offsets, earlier): those of instruction i are earlier[offsets[i]:offsets[i + 1]], each once,
    latest first. O(cells touched * log(dependences of an instruction)).
    """
    length = len(src)
    writer = np.full(cells, -1, dtype=np.int64)
    newest = np.full(cells, -1, dtype=np.int64)  # heads of lists of readers
    reader = np.empty(np.sum(count[src >= 0]), dtype=np.int64)
    older = np.empty_like(reader)
    reads = 0
    seen = np.full(length, -1, dtype=np.int64)
    offsets = np.zeros(length + 1, dtype=np.int64)
    earlier = np.empty(2 * length + 16, dtype=np.int64)
    found = 0
    for index in range(length):
        if found + index > len(earlier):
            earlier = np.concatenate((earlier, np.empty(len(earlier) + index, dtype=np.int64)))
        for cell in range(src[index], src[index] + count[index] if src[index] >= 0 else -1):
            if writer[cell] >= 0 and seen[writer[cell]] != index:
                seen[writer[cell]] = index
                earlier[found] = writer[cell]
                found += 1
            reader[reads], older[reads] = index, newest[cell]
            newest[cell] = reads
            reads += 1
        for cell in range(dst[index], dst[index] + count[index] if dst[index] >= 0 else -1):
            entry = newest[cell]
            other = writer[cell]
            while other >= 0 or entry >= 0:
                if 0 <= other < index and seen[other] != index:
                    seen[other] = index
                    earlier[found] = other
                    found += 1
                other = -1
                if entry >= 0:
                    other, entry = reader[entry], older[entry]
            writer[cell], newest[cell] = index, -1
        earlier[offsets[index] : found] = np.sort(earlier[offsets[index] : found])[::-1]
        offsets[index + 1] = found
    return offsets, earlier[:found]


@compiled
def necessary_waits(block: Numbers, blocks: int, offsets: Numbers, earlier: Numbers) -> tuple[Numbers, Numbers]:
    """Return which of `dependences` (as `dependences` gives them) need a wait: (offsets, numbers of instructions).

    Order within one of the `blocks` needs none, nor does what other waits imply, which clocks over the blocks tell:
    one of each block as it stands, and one of each instruction that others depend on, as it was at its end.
    O(dependences + (instructions that others depend on) * blocks).
    """
    length = len(block)
    now = np.zeros((blocks, blocks), dtype=np.int32)  # now[a, b]: steps of b that are done when a is as far as it is
    step, done = np.zeros(length, dtype=np.int64), np.zeros(blocks, dtype=np.int64)
    clock = np.full(length, -1, dtype=np.int64)  # which of `clocks` is of each instruction
    noted = 0
    for other in earlier:
        if clock[other] < 0:
            clock[other], noted = noted, noted + 1
    clocks = np.empty((noted, blocks), dtype=np.int32)
    kept = np.empty(len(earlier), dtype=np.int64)
    kept_offsets = np.zeros(length + 1, dtype=np.int64)
    found = 0
    for index in range(length):
        own = block[index]
        step[index] = done[own]
        # A later instruction may imply an earlier one, never the other way round.
        for other in earlier[offsets[index] : offsets[index + 1]]:
            if block[other] != own and now[own, block[other]] <= step[other]:
                for each in range(blocks):
                    now[own, each] = max(now[own, each], clocks[clock[other], each])
                kept[found] = other
                found += 1
        done[own] += 1
        now[own, own] = done[own]
        if clock[index] >= 0:
            clocks[clock[index]] = now[own]
        kept_offsets[index + 1] = found
    return kept_offsets, kept[:found]
