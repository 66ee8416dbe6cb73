"""What tests of the MPI runner need."""

from importlib.util import find_spec

import pytest

needs_mpi = pytest.mark.skipif(
    find_spec("mpi4py") is None,
    reason="THE MPI RUNNER IS NOT TESTED ON THIS MACHINE: pip install 'chorale-collectives[mpi]'",
)
