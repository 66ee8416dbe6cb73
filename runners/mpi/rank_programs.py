"""The programs of one rank: loaded into its engine, laid out on fresh data, run; MPI's own algorithms beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

from chorale.runners.engine.library import Engine
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.execution.rank_part import LoadedPart, load_parts
from chorale.runners.mpi.framing import Message
from chorale.runners.mpi.messages import MpiMessages
from chorale.runners.mpi.native_libraries import NativeLibraries, native_libraries
from chorale.runners.mpi.runs import LibraryRun, ProgramRun, RankRun


class RankPrograms:
    """What a rank can run. The engine's messages and MPI's own calls have a communicator each."""

    def __init__(self, world: MPI.Comm) -> None:
        self._rank, self._ranks = world.rank, world.size
        self._for_messages, self._for_calls = world.Dup(), world.Dup()
        self._engine: Engine | None = None
        self._programs: list[LoadedPart] = []

    def load(self, documents: Sequence[Message], libraries: Sequence[str]) -> None:
        """Replace the programs by those of `documents`; the first time, the engine is loaded from `libraries`."""
        engine = self._engine = self._engine or self._new_engine(NativeLibraries(*map(Path, libraries)))
        self._programs = load_parts(engine, self._programs, documents)

    def prepare(self, task: Message) -> tuple[RankMemory, RankRun]:
        """Return fresh data, and the run on them, for a task of `prepare_task`."""
        program = self._programs[task["program"]]
        memory = program.memory(self._rank, task)
        if program.number is None or self._engine is None:
            return memory, LibraryRun(program.collective, memory, self._for_calls)
        return memory, ProgramRun(self._engine, program.work(memory, task), memory)

    def _new_engine(self, libraries: NativeLibraries) -> Engine:
        if not libraries.exist:
            libraries = native_libraries()
        self._messages = MpiMessages(self._for_messages, libraries.messages)
        engine = Engine(self._rank, self._ranks, libraries.engine)
        engine.use_messages(self._messages.address)
        return engine
