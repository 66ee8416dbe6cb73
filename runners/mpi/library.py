"""MPI's own collectives, on the same data and buffers as programs: the honest baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from chorale.runners.data import Vector
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
