"""The engine over MPI's messages, without the runner: messages that are cut, and what MPI cannot count."""

import json
import os
import subprocess
import sys

from chorale.runners.mpi.launch import find_mpiexec, mpi_launcher
from chorale.runners.mpi.messages import native_libraries
from tests.live.support import needs_mpi

pytestmark = needs_mpi

RANKS = """
import json, sys
import numpy as np
from mpi4py import MPI
from chorale.runners.engine.library import encode_rank
from chorale.runners.engine.library import DataType, Engine, EngineError, ReduceOp, Work
from chorale.runners.mpi.messages import MpiMessages
from chorale.runners.mpi.messages import native_libraries
from tests.conformance.example_programs import ring_allreduce

MOST_BYTES = int(sys.argv[1])
world, libraries = MPI.COMM_WORLD, native_libraries()
messages = MpiMessages(world.Dup(), libraries.messages, MOST_BYTES)
engine = Engine(world.rank, world.size, libraries.engine)
engine.use_messages(messages.address)
program = ring_allreduce(range(world.size), in_place=False)
shape = program.collective, world.size, program.chunks, program.in_place
number = engine.load(encode_rank(*shape, 2, program.ranks[world.rank]))
wrong = []
for kind in DataType.INT8, DataType.FLOAT64, DataType.FLOAT128:
    for elements in (1, 3, 4, 1003, 40_001):
        data = [(np.arange(elements) * (rank + 3) % 13).astype(kind.name.lower()) for rank in range(world.size)]
        result = np.full(elements, 99, data[0].dtype)
        addresses = data[world.rank].ctypes.data, result.ctypes.data
        engine.execute(Work(number, *addresses, elements, kind, ReduceOp.SUM, limit_s=30.0))
        if not (result == sum(data)).all():
            wrong.append(f"rank {world.rank}: {kind.name} {elements}")
everything = world.gather(wrong)
engine.close()
messages.close()
if world.rank == 0:
    print(json.dumps([line for part in everything for line in part]))
"""


LIMITS = """
from mpi4py import MPI
from chorale.runners.mpi.messages import MpiMessages
from chorale.runners.mpi.messages import native_libraries
from chorale.synth.errors import InvalidInput

for most_bytes in (0, 1, 2**31 - 1, 2**31):
    try:
        MpiMessages(MPI.COMM_WORLD, native_libraries().messages, most_bytes).close()
        print("fits")
    except InvalidInput as error:
        print(error)
"""


def _output_of(script: str, ranks: int, *arguments: str) -> str:
    """Run `script` on so many ranks and return what they print. MPI stays out of the process of the tests."""
    native_libraries()  # else each rank would build them
    mpiexec = find_mpiexec()
    options = mpi_launcher(mpiexec).on_hosts("localhost")
    command = [mpiexec, *options, "-n", str(ranks), sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_odd_sizes_are_exact_where_messages_are_cut() -> None:
    assert json.loads(_output_of(RANKS, 4, "1000")) == []


def test_a_message_longer_than_mpi_can_count_is_refused() -> None:
    refusal = "a message of MPI must have 1 to 2147483647 bytes"
    lines = _output_of(LIMITS, 1).splitlines()
    assert [line if line == "fits" else line.split(", got")[0] for line in lines] == [refusal, "fits", "fits", refusal]
