"""Executes a program on sets of contributions, as machine code.

Blocks are strictly sequential. A message is the part of an instruction that travels at once; a connection holds
at most `depth` messages that have been sent and not yet received. A step starts when all its waits are met; a
receiving step needs an arrived message, a sending step a free slot, a fused step both.

A single loop iteration is enough. Real runtimes loop over parts of long chunks, every block for itself. Blocks have
no choices, so what a program can do does not depend on the order in which blocks go on: all of one iteration can be
done before the next begins, and then every queue is empty again. Iterations touch disjoint elements.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.flat_program import Integers
from chorale.synth.programs.postconditions import ChunkValues
from chorale.synth.programs.race_clocks import Accesses

FORWARD, REVERSE, RANDOM = 0, 1, 2
RANDOM_REACH = 64
"""In random order, the next block is one of so many."""

OTHER_CHUNK, TWICE, RACE = 1, 2, 3
FIRST_MARK = -2
"""What a chunk is that comes from one that was never written: this, less the number of the instruction that read it."""
PC, MOVED = 0, 1
QUEUE, SPAN, SENT, RECEIVED = 0, 1, 2, 3
SPARE_CELLS = 2


class RunConditions(NamedTuple):
    """How a run goes: messages a connection holds, chunks of a message, order of the blocks.

    FORWARD: every block as far as it gets, the one that could go on first before others; REVERSE: the one that
    could go on last before others; RANDOM: one message at a time, in an order drawn from `seed`.
    first_saved, first_message: where in the clocks the rows begin that belong to what is waited on, and to messages
    """

    depth: int
    message_chunks: int
    order: int
    seed: int
    first_saved: int
    first_message: int


class ExecutionState(NamedTuple):
    """Where an execution stands.

    values:   memory of all ranks, then what is on its way and what it was added to, then the slots of all queues
    progress: int64[blocks, 2]: the next instruction, and how many of its chunks are done
    queues:   int64[connections, 4]: first cell, cells of a slot, messages sent and received so far
    clocks:   of all blocks, then of what is waited on, then of messages, unless only order in a rank counts;
              without rows, races are not looked for
    accesses: of all cells of memory
    fault:    int64[3]: kind of the first fault (0: none), its block, and for a race the other block
    """

    values: ChunkValues
    progress: Matrix[np.int64]
    queues: Matrix[np.int64]
    clocks: Matrix[np.int32]
    accesses: Accesses
    fault: Integers
