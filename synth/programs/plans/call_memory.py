"""Cells and packets in the kernel that runs the calls of a plan, as `PlanMemory` and `PacketSlots` have them."""

from __future__ import annotations

import numpy as np

from chorale.synth.kernels.compiled import inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.plans.call_state import (
    BY_ITSELF,
    CALL,
    NEXT,
    OWNER,
    READ,
    READER,
    ROW,
    TAKEN,
    TIME,
    WHEN,
    WRITER,
    WRITTEN,
    CallState,
    Touched,
)
from chorale.synth.programs.plans.clocks import ORDERED


@inlined
def note_reader(reads: Matrix[np.int32], first: int, reader: int, time: int) -> int:
    """Note a read in the list that begins at `first`; return where it begins now."""
    entry = first
    while entry > 0 and reads[entry, READER] != reader:
        entry = reads[entry, NEXT]
    if entry == 0:
        entry = reads[0, NEXT]
        if entry > 0:
            reads[0, NEXT] = reads[entry, NEXT]
        else:
            reads[0, WHEN] += 1
            entry = reads[0, WHEN]
        reads[entry, NEXT] = first
        reads[entry, READER] = reader
        first = entry
    reads[entry, WHEN] = time
    return int(first)


@inlined
def forget_readers(reads: Matrix[np.int32], first: int) -> None:
    """Let the rows of a list be free."""
    entry = first
    while entry > 0:
        following = reads[entry, NEXT]
        reads[entry, NEXT] = reads[0, NEXT]
        reads[0, NEXT] = entry
        entry = following


@inlined
def has_unknown_reader(state: CallState, first: int, owner: int) -> bool:
    """Return whether the list that begins at `first` has a read that `owner` does not know to be over."""
    reads, clocks = state.touched.reads, state.knowledge.clocks
    happened, entry = clocks.shape[1] - 1, first
    while entry > 0:
        if reads[entry, WHEN] > clocks[owner, happened, reads[entry, READER]]:
            return True
        entry = reads[entry, NEXT]
    return False


@inlined
def is_written_later(state: CallState, cell: int, owner: int) -> bool:
    """Return whether the last write of `cell` is not before what `owner` does now."""
    cells = state.touched.cells
    which = state.knowledge.clocks.shape[1] - 1 if cells[cell, BY_ITSELF] else ORDERED
    return bool(state.knowledge.clocks[owner, which, cells[cell, WRITER]] < cells[cell, WRITTEN])


@inlined
def note_read(state: CallState, cell: int, owner: int) -> None:
    """Note that `owner` reads `cell` now."""
    cells = state.touched.cells
    cells[cell, READ] = note_reader(state.touched.reads, cells[cell, READ], owner, state.knowledge.times[owner])


@inlined
def note_write(state: CallState, cell: int, owner: int, time: int, by_itself: bool) -> None:
    """Note that `owner` writes `cell` at `time` of its clock."""
    cells = state.touched.cells
    forget_readers(state.touched.reads, cells[cell, READ])
    cells[cell, WRITER], cells[cell, WRITTEN] = owner, time
    cells[cell, BY_ITSELF], cells[cell, READ] = 1 if by_itself else 0, 0


@inlined
def may_put(state: CallState, slot: int, owner: int, call: int) -> bool:
    """Return whether nobody can still need the packet in `slot`."""
    slots, clocks = state.touched.slots, state.knowledge.clocks
    if slots[slot, CALL] == 0:
        return True
    if slots[slot, CALL] == call or clocks[owner, clocks.shape[1] - 1, slots[slot, OWNER]] < slots[slot, TIME]:
        return False
    return not has_unknown_reader(state, slots[slot, TAKEN], owner)


@inlined
def note_packet(state: CallState, slot: int, owner: int, call: int, row: int) -> None:
    """Note a packet of `call` by `owner`, which tells `row`."""
    slots = state.touched.slots
    forget_readers(state.touched.reads, slots[slot, TAKEN])
    slots[slot, CALL], slots[slot, OWNER], slots[slot, TIME] = call, owner, state.knowledge.times[owner]
    slots[slot, ROW], slots[slot, TAKEN] = row, 0


@inlined
def note_taken(state: CallState, slot: int, owner: int) -> None:
    """Note that `owner` takes the packet in `slot`."""
    slots = state.touched.slots
    slots[slot, TAKEN] = note_reader(state.touched.reads, slots[slot, TAKEN], owner, state.knowledge.times[owner])


@inlined
def write_told(touched: Touched, state: CallState, owner: int, row: int) -> None:
    """Write into `row` what a packet of `owner` tells now: what it has done so far, this included."""
    clocks = state.knowledge.clocks
    for component in range(clocks.shape[2]):
        touched.told[row, component] = clocks[owner, clocks.shape[1] - 1, component]
    touched.told[row, owner] = state.knowledge.times[owner]


@inlined
def learn_told(touched: Touched, state: CallState, owner: int, row: int) -> None:
    """Let `owner` know what the writer of a packet had done."""
    clocks = state.knowledge.clocks
    happened = clocks.shape[1] - 1
    for component in range(clocks.shape[2]):
        clocks[owner, happened, component] = max(clocks[owner, happened, component], touched.told[row, component])
