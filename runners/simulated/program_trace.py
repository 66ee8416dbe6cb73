"""What a simulated program sent, message by message, for timelines and loads, and where it never ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.schedule import Routes

TraceIndices = NDArray[np.integer[Any]]
Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTrace:
    """Columns with one entry per message, ordered by when a message started, then by sender and block.

    src, dst, channel: of the connection
    block, step:       of the sender's instruction; step counts from 0 within the block
    adds:              whether the receiver adds it to what it holds
    route:             index into `routes`, the links that it takes
    chunks:            of the program
    start_s:           when its instruction started (a message leaves alpha later)
    left_s, arrived_s: when its last byte left the sender, and arrived
    end_s:             when all was done
    """

    src: TraceIndices
    dst: TraceIndices
    channel: TraceIndices
    block: TraceIndices
    step: TraceIndices
    adds: NDArray[np.bool_]
    route: TraceIndices
    chunks: NDArray[np.float64]
    start_s: Seconds
    left_s: Seconds
    arrived_s: Seconds
    routes: Routes
    end_s: float

    def __len__(self) -> int:
        return len(self.src)


class Stuck(NamedTuple):
    """Where a block waits for something that never happens."""

    rank: int
    block: int
    step: int
    reason: str
