"""The clocks of the ranks: one and the same on a host, aligned by messages between hosts."""

from __future__ import annotations

import time

import numpy as np
from mpi4py import MPI

from chorale.runners.measurement.clock_exchange import ROUNDS, clock_samples
from chorale.runners.measurement.clock_offset import ClockOffset, clock_offset

_TAG = 1  # documents have 0


def serve_clock(communicator: MPI.Comm, asker: int) -> None:
    """Answer the questions of one alignment."""
    answer = np.empty(2)
    for _ in range(ROUNDS):
        communicator.Recv(np.empty(0), asker, _TAG)
        answer[0] = time.monotonic()
        answer[1] = time.monotonic()
        communicator.Send(answer, asker, _TAG)


def measure_clock_offset(communicator: MPI.Comm, rank: int) -> ClockOffset:
    """Return how far the clock of `rank`, which is in `answer_clock`, is from the one here."""
    answer = np.empty(2)

    def ask() -> tuple[float, float]:
        communicator.Send(np.empty(0), rank, _TAG)
        communicator.Recv(answer, rank, _TAG)
        return float(answer[0]), float(answer[1])

    return clock_offset(clock_samples(ask, time.monotonic))
