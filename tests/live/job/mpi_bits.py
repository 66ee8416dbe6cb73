"""An MPI program that adds numbers of many magnitudes at two sizes, and prints a digest of each result.

The bits tell which algorithm of the MPI added, as each has an order of additions of its own.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
from mpi4py import MPI

from tests.live.job.job_rank import contribution

SIZES = (1024, 16384)


def main() -> None:
    """Be a rank."""
    world = MPI.COMM_WORLD
    digests = []
    for size_bytes in SIZES:
        vector = contribution(world.rank, size_bytes // 4)
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
