"""The clocks of the ranks: one and the same on a host, aligned by messages between hosts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mpi4py import MPI

from runners.measurement.clock_exchange import ROUNDS, clock_samples
from runners.measurement.clock_offset import SAME_CLOCK, ClockOffset, clock_offset

_TAG = 1  # documents have 0


def clock_identity() -> str:
    """Return what processes have in common that read the same monotonic clock: kernel since boot, time namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/time")
    since = boot.read_text().strip() if boot.exists() else f"process {os.getpid()}"
    return f"{since} {os.readlink(space) if space.exists() else ''}"


def answer_clock(communicator: MPI.Comm, asker: int) -> None:
    """Answer the questions of one alignment."""
    answer = np.empty(2)
    for _ in range(ROUNDS):
        communicator.Recv(np.empty(0), asker, _TAG)
        answer[0] = time.monotonic()
        answer[1] = time.monotonic()
        communicator.Send(answer, asker, _TAG)


def ask_clock(communicator: MPI.Comm, rank: int) -> ClockOffset:
    """Return how far the clock of `rank`, which is in `answer_clock`, is from the one here."""
    answer = np.empty(2)

    def ask() -> tuple[float, float]:
        communicator.Send(np.empty(0), rank, _TAG)
        communicator.Recv(answer, rank, _TAG)
        return float(answer[0]), float(answer[1])

    return clock_offset(clock_samples(ask, time.monotonic))


def same_clocks(identities: Sequence[str]) -> dict[int, ClockOffset]:
    """Return the offsets that need no messages: of ranks whose clock is that of rank 0."""
    return {rank: SAME_CLOCK for rank, identity in enumerate(identities) if identity == identities[0]}
