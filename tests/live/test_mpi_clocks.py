"""Clocks of ranks aligned by MPI messages, on ranks that are told to have clocks of their own."""

import json
import os
import subprocess
import sys

import pytest

from chorale.runners.mpi.launch import find_mpiexec, mpi_version
from tests.live.mpi import needs_mpi

pytestmark = [needs_mpi, pytest.mark.alone]

RANKS = """
import json, time
from mpi4py import MPI
from chorale.runners.mpi import rank as control

skew_s = 1000.0 * MPI.COMM_WORLD.rank
steady = time.monotonic
control.time.monotonic = lambda: steady() + skew_s
if MPI.COMM_WORLD.rank == 0:
    found = control.measure_clock_offset(MPI.COMM_WORLD, 1)
    print(json.dumps([found.offset_s, found.error_s]))
else:
    control.serve_clock(MPI.COMM_WORLD, 0)
"""


def test_a_skew_is_found_within_the_error_that_is_claimed() -> None:
    mpiexec = find_mpiexec()
    options = mpi_version(mpiexec).launcher.on_hosts("localhost")
    command = [mpiexec, *options, "-n", "2", sys.executable, "-c", RANKS]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    offset_s, error_s = json.loads(done.stdout)
    assert abs(offset_s - 1000.0) <= error_s < 0.5
