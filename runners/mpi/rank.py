"""The process of one rank in an MPI job. On command it runs programs and MPI's own calls with real data."""

import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from chorale.runners.api.elements import Vector
from chorale.runners.engine.library import MPI_VARIABLES, TOKEN_BYTES, Devices, Engine, addresses_for, listen
from chorale.runners.execution.rank_part import FramedSocket, Message, RankMemory, RankParts, SocketRank, be_rank
from chorale.runners.execution.started_ranks import greet_runner, meet_runner
from chorale.runners.mpi.algorithms import PREFIX, ForcedAlgorithm, MpiAlgorithms
from chorale.runners.mpi.messages import MpiMessages, NativeLibraries, native_libraries
from chorale.synth.collective import Collective, CollectiveName


def run_collective(communicator: MPI.Comm, collective: Collective, input_vector: Vector, output_vector: Vector) -> None:
    """Run `collective` out of place with the MPI call of that name. Broadcasts work in place, as MPI defines them."""
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
    """Return `vector` as a buffer of bytes for calls that only move data, because MPI lacks some element types."""
    return [vector.view(np.uint8), MPI.BYTE]


class MpiCalls:
    """MPI's own collectives, with MPI's choice of algorithm or a forced one, on a private communicator.

    names: names of the request's algorithms; the first one has the number `first`
    """

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._names: Sequence[str] = ()
        self._first = 0
        self._forced: dict[tuple[CollectiveName, str], ForcedAlgorithm] = {}
        self._algorithms: MpiAlgorithms | None = None  # only if an algorithm is chosen

    def prepare(self, names: Sequence[str], first: int, collective: CollectiveName) -> None:
        """Prepare the algorithms of a request; all ranks call this together."""
        self._names, self._first = names, first
        for name in names:
            if name.startswith(PREFIX) and (collective, name) not in self._forced:
                self._algorithms = self._algorithms or MpiAlgorithms()
                forced = self._algorithms.force(self._communicator, collective, name.removeprefix(PREFIX))
                self._forced[collective, name] = forced

    def run(self, number: int, collective: Collective, memory: RankMemory, start_s: float, _: float) -> None:
        """Start at `start_s` and return when the rank has its result, however long that takes."""
        algorithm = self._forced.get((collective.name, self._names[number - self._first]))
        communicator = self._communicator if algorithm is None else algorithm.communicator
        with nullcontext() if algorithm is None else algorithm.forced():
            time.sleep(max(0.0, start_s - time.monotonic()))
            run_collective(communicator, collective, memory.input, memory.output)


class MpiRank(SocketRank[RankParts]):
    """One rank of the mpi runner. The command `load` contains its part of every program, and MPI's algorithms."""

    def __init__(
        self, control: FramedSocket, world: MPI.Comm, libraries: NativeLibraries, transport: str, interface: str | None
    ) -> None:
        self._engine = Engine(world.rank, world.size, libraries.engine)
        self._calls, for_messages = MpiCalls(world.Dup()), world.Dup()
        self._addresses: list[str] = []  # addresses of other engines; empty if MPI carries messages
        if transport == "mpi":
            self._messages = MpiMessages(for_messages, libraries.messages)
            self._engine.use_messages(self._messages.address)
        else:
            own = listen(self._engine, Devices(interface, MPI_VARIABLES))
            self._addresses = addresses_for(own, for_messages.allgather(own))
            self._token = for_messages.bcast(secrets.token_bytes(TOKEN_BYTES))
        super().__init__(control, RankParts(self._engine, world.rank, self._calls.run), load=self._load)

    def _load(self, command: Message) -> Message:
        self._parts.load(command["part"])
        library = command["library"]
        self._calls.prepare(library, len(command["part"]) - len(library), self._parts.collective.name)
        if self._addresses:
            self._engine.connect(self._addresses, self._token, max(0.0, command["limit_s"]))
        return {"answer": "loaded"}


def main() -> None:
    """Run the rank that the arguments describe: number of ranks, transport and network device (empty for any), native
    libraries on the runner's machine, and the runner's address.
    """
    world, ranks = MPI.COMM_WORLD, int(sys.argv[1])
    version = " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())
    if ranks != world.size:
        sys.exit(f"MPI says {world.size} ranks instead of {ranks}: mpiexec must be that of {version}")
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
