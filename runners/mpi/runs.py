"""One run of a rank: its part of a program by the engine, or MPI's own collective on the same data and buffers."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from chorale.runners.api.elements import Vector
from chorale.runners.engine.library import Engine, EngineError, Execution, Status, Work
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.execution.rounds import StuckInstruction
from chorale.runners.mpi.algorithms import ForcedAlgorithm
from chorale.synth.collective import Collective, CollectiveName


def run_collective(communicator: MPI.Comm, collective: Collective, input_vector: Vector, output_vector: Vector) -> None:
    """Do what `collective` says out of place with MPI's call of that name; broadcasts are in place as MPI has them."""
    root = collective.root or 0
    match collective.name:
        case CollectiveName.ALLREDUCE:
            communicator.Allreduce(input_vector, output_vector, MPI.SUM)
        case CollectiveName.REDUCE:
            communicator.Reduce(input_vector, output_vector if communicator.rank == root else None, MPI.SUM, root)
        case CollectiveName.REDUCE_SCATTER:
            communicator.Reduce_scatter_block(input_vector, output_vector, MPI.SUM)
        case CollectiveName.ALLGATHER:
            communicator.Allgather(_bytes(input_vector), _bytes(output_vector))
        case CollectiveName.ALLTOALL:
            communicator.Alltoall(_bytes(input_vector), _bytes(output_vector))
        case CollectiveName.BROADCAST:
            if communicator.rank == root:
                output_vector[:] = input_vector
            communicator.Bcast(_bytes(output_vector), root)


def _bytes(vector: Vector) -> list[Any]:
    """Return `vector` for calls that do not look into elements: MPI has no name for every type."""
    return [vector.view(np.uint8), MPI.BYTE]


class RankRun(Protocol):
    """What a rank does between a start and its end."""

    blocked: list[StuckInstruction]
    """Where the blocks are stuck, after a run that was not finished."""

    execution: Execution | None
    """What the engine says of a run that was finished; None for MPI's own."""

    def run(self, start_s: float, limit_s: float) -> float | None:
        """Start at `start_s` and return the time at which this rank had its result, both on the monotonic clock.

        None if `limit_s` is over.
        """
        ...


class ProgramRun:
    """Implements `RankRun` with the engine, which is of no use any more after one that was not finished."""

    def __init__(self, engine: Engine, work: Work, memory: RankMemory) -> None:
        self.blocked: list[StuckInstruction] = []
        self.execution: Execution | None = None
        self._engine = engine
        self._memory = memory  # the engine knows it by addresses only
        self._work = work

    def run(self, start_s: float, limit_s: float) -> float | None:
        work = replace(self._work, limit_s=limit_s, not_before_ns=round(start_s * 1e9))
        try:
            self.execution = self._engine.execute(work)
            return self.execution.end_ns / 1e9
        except EngineError as error:
            if error.status not in (Status.TIMEOUT, Status.PEER_LOST):  # then another is to blame, who is noticed
                raise
            self.blocked = list(map(_stuck_instruction, error.blocked.splitlines()))
            return None


def _stuck_instruction(line: str) -> StuckInstruction:
    block, step, why = line.split(" ", 2)
    return int(block), int(step), why


class LibraryRun:
    """Implements `RankRun` with a call that returns when the rank has its result, however long that takes."""

    def __init__(
        self, collective: Collective, memory: RankMemory, communicator: MPI.Comm, algorithm: ForcedAlgorithm | None
    ) -> None:
        """algorithm: for the call; None where MPI chooses"""
        self.blocked: list[StuckInstruction] = []
        self.execution: Execution | None = None
        self._collective = collective
        self._memory = memory
        self._communicator = communicator if algorithm is None else algorithm.communicator
        self._algorithm = algorithm

    def run(self, start_s: float, limit_s: float) -> float | None:
        with nullcontext() if self._algorithm is None else self._algorithm.forced():
            time.sleep(max(0.0, start_s - time.monotonic()))
            run_collective(self._communicator, self._collective, self._memory.input, self._memory.output)
            return time.monotonic()
