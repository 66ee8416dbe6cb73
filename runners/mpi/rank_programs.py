"""The programs of one rank: loaded into its engine, laid out on fresh data, run; MPI's own algorithms beside them."""

from __future__ import annotations

import secrets
from pathlib import Path

from mpi4py import MPI

from chorale.runners.engine.library import Engine
from chorale.runners.engine.meeting import TOKEN_BYTES, addresses_for, listen
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.execution.rank_part import LoadedPart, load_parts
from chorale.runners.mpi.algorithms import PREFIX, ForcedAlgorithm, MpiAlgorithms
from chorale.runners.mpi.framing import Message
from chorale.runners.mpi.messages import MpiMessages
from chorale.runners.mpi.native_libraries import NativeLibraries, native_libraries
from chorale.runners.mpi.runs import LibraryRun, ProgramRun, RankRun
from chorale.runners.mpi.variables import ToolInterface
from chorale.synth.collective import CollectiveName


class RankPrograms:
    """What a rank can run. The engine's messages and MPI's own calls have a communicator each."""

    def __init__(self, world: MPI.Comm) -> None:
        self._rank, self._ranks = world.rank, world.size
        self._for_messages, self._for_calls = world.Dup(), world.Dup()
        self._engine: Engine | None = None
        self._programs: list[LoadedPart] = []
        self._library: list[str] = []  # the last ones of these are MPI's
        self._forced: dict[tuple[CollectiveName, str], ForcedAlgorithm] = {}
        self._tools: ToolInterface | None = None  # only where an algorithm is chosen
        self._addresses: list[str] = []  # of other engines; none where MPI carries their messages
        self._token = b""

    def load(self, command: Message) -> None:
        """Replace the programs by those of `command`; the first time, the engine is loaded and finds the others."""
        if self._engine is None:
            self._engine = self._new_engine(NativeLibraries(*map(Path, command["libraries"])), *command["transport"])
        self._programs = load_parts(self._engine, self._programs, command["part"])
        self._library = command["library"]
        for name in self._library:
            self._force(name)
        if self._addresses:
            self._engine.connect(self._addresses, self._token, max(0.0, command["limit_s"]))

    def prepare(self, task: Message) -> tuple[RankMemory, RankRun]:
        """Return fresh data, and the run on them, for a task of `prepare_task`."""
        program = self._programs[task["program"]]
        memory = program.memory(self._rank, task)
        if program.number is None or self._engine is None:
            name = self._library[task["program"] - len(self._programs)]
            return memory, LibraryRun(program.collective, memory, self._for_calls, self._force(name))
        return memory, ProgramRun(self._engine, program.work(memory, task), memory)

    def _force(self, name: str) -> ForcedAlgorithm | None:
        """Return the algorithm of which `name` is that in a request, None where MPI chooses. The first time all ranks
        call this together."""
        if not name.startswith(PREFIX):
            return None
        key = self._programs[-1].collective.name, name
        if key not in self._forced:
            self._tools = self._tools or ToolInterface()
            algorithms = MpiAlgorithms(self._tools)
            self._forced[key] = algorithms.force(self._for_calls, key[0], name.removeprefix(PREFIX))
        return self._forced[key]

    def _new_engine(self, libraries: NativeLibraries, transport: str, interface: str | None) -> Engine:
        if not libraries.exist:
            libraries = native_libraries()
        engine = Engine(self._rank, self._ranks, libraries.engine)
        if transport == "mpi":
            self._messages = MpiMessages(self._for_messages, libraries.messages)
            engine.use_messages(self._messages.address)
        else:
            own = listen(engine, interface)
            self._addresses = addresses_for(own, self._for_messages.allgather(own))
            self._token = self._for_messages.bcast(secrets.token_bytes(TOKEN_BYTES))
        return engine
