"""The program of a rank process in an MPI job: it runs programs and MPI's own collectives with real data."""

import secrets
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from chorale.runners.api.elements import Vector
from chorale.runners.engine.library import MPI_VARIABLES, TOKEN_BYTES, Devices, Engine, addresses_for, listen
from chorale.runners.execution.rank_part import FramedSocket, Message, RankMemory, RankParts, SocketRank, be_rank
from chorale.runners.execution.started_ranks import greet_runner, meet_runner
from chorale.runners.mpi.messages import MpiMessages, NativeLibraries, native_libraries
from chorale.synth.collective import Collective, CollectiveName


def run_collective(communicator: MPI.Comm, collective: Collective, input_vector: Vector, output_vector: Vector) -> None:
    """Run `collective` out of place with the MPI call of that name. Broadcasts are in place, as MPI requires."""
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
    """Return `vector` as a buffer of bytes, for calls that only move data, because MPI lacks some element types."""
    return [vector.view(np.uint8), MPI.BYTE]


class MpiRank(SocketRank[RankParts]):
    """Executes the mpi runner's commands in one rank. The command `load` contains the rank's part of every program."""

    def __init__(
        self, control: FramedSocket, world: MPI.Comm, libraries: NativeLibraries, transport: str, interface: str | None
    ) -> None:
        self._engine = Engine(world.rank, world.size, libraries.engine)
        self._for_calls, for_messages = world.Dup(), world.Dup()
        self._addresses: list[str] = []  # addresses of other engines; empty if MPI carries messages
        if transport == "mpi":
            self._messages = MpiMessages(for_messages, libraries.messages)
            self._engine.use_messages(self._messages.address)
        else:
            own = listen(self._engine, Devices(interface, MPI_VARIABLES))
            self._addresses = addresses_for(own, for_messages.allgather(own))
            self._token = for_messages.bcast(secrets.token_bytes(TOKEN_BYTES))
        super().__init__(control, RankParts(self._engine, world.rank, self._call), load=self._load)

    def _load(self, command: Message) -> Message:
        self._parts.load(command["part"])
        if self._addresses:
            self._engine.connect(self._addresses, self._token, max(0.0, command["limit_s"]))
        return {"answer": "loaded"}

    def _call(self, _number: int, collective: Collective, memory: RankMemory, start_s: float, _limit_s: float) -> None:
        """Run MPI's own collective at `start_s`. Return when this rank has its result, however long that takes."""
        time.sleep(max(0.0, start_s - time.monotonic()))
        run_collective(self._for_calls, collective, memory.input, memory.output)


def main() -> None:
    """Run one rank. Command-line arguments: number of ranks, transport, network device (empty for any), paths of the
    two native libraries on the runner's machine, and the runner's address.
    """
    world, ranks = MPI.COMM_WORLD, int(sys.argv[1])
    version = " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())
    if ranks != world.size:
        sys.exit(f"MPI reports {world.size} ranks instead of {ranks}: use the mpiexec of {version}")
    transport, interface, engine, messages, meeting = sys.argv[2:7]
    control = meet_runner(meeting)

    def work() -> None:
        libraries = NativeLibraries(Path(engine), Path(messages))
        if not all(path.exists() for path in libraries):  # on another host, paths may differ
            libraries = native_libraries()
        greet_runner(control, world.rank, mpi=version)
        MpiRank(control, world, libraries, transport, interface or None).serve()

    be_rank(control, work)


if __name__ == "__main__":
    main()
