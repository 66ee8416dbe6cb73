"""An MPI program that adds numbers of many magnitudes at two sizes, and prints a digest of each result.

The bits tell which algorithm of the MPI added, as each has an order of additions of its own. The sums are made by each
algorithm that an argument names, chosen while MPI runs, and then by MPI's own choice.
"""

import hashlib
import sys

import numpy as np
from mpi4py import MPI

from chorale.runners.mpi.algorithms import MpiAlgorithms
from chorale.synth.collective import CollectiveName
from tests.live.engine.reference import many_magnitudes

SIZES = (1024, 16384)


def main() -> None:
    """Be a rank."""
    world = MPI.COMM_WORLD
    algorithms = MpiAlgorithms()
    for name in sys.argv[1:]:
        algorithm = algorithms.force(world, CollectiveName.ALLREDUCE, name)
        with algorithm.forced():
            say_digests(algorithm.communicator)
    say_digests(world)


def say_digests(world: MPI.Comm) -> None:
    """Write the digests of sums on `world`."""
    digests = []
    for size_bytes in SIZES:
        vector = many_magnitudes(world.rank, size_bytes // 4)
        result = np.empty_like(vector)
        world.Allreduce(vector, result)
        digests.append(hashlib.sha256(result.tobytes()).hexdigest()[:16])
        every = np.empty((world.size, len(vector)), np.float32)
        world.Allgather(vector, every)
        assert (every[world.rank] == vector).all()
    if world.rank == 0:
        sys.stdout.write(f"bits {' '.join(digests)}\n")


if __name__ == "__main__":
    main()
