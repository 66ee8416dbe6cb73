"""The programs of one rank: loaded into its engine, laid out on fresh data, run; MPI's own algorithms beside them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpi4py import MPI

from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.engine.library import DataType, Engine, Work
from chorale.runners.execution.node_plan import NodePlan, decode_plan
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.mpi.framing import Message
from chorale.runners.mpi.messages import MpiMessages
from chorale.runners.mpi.native_libraries import NativeLibraries, native_libraries
from chorale.runners.mpi.runs import LibraryRun, ProgramRun, RankRun


@dataclass(frozen=True, slots=True)
class MpiProgram:
    """plan: what the data are; number: that of the engine, None for a library algorithm; most_steps: not below its."""

    plan: NodePlan
    number: int | None
    most_steps: int


class RankPrograms:
    """What a rank can run. The engine's messages and MPI's own calls have a communicator each."""

    def __init__(self, world: MPI.Comm) -> None:
        self._rank, self._ranks = world.rank, world.size
        self._for_messages, self._for_calls = world.Dup(), world.Dup()
        self._engine: Engine | None = None
        self._programs: list[MpiProgram] = []

    def load(self, documents: Sequence[Message], libraries: Sequence[str]) -> None:
        """Replace the programs by those of `documents`; the first time, the engine is loaded from `libraries`."""
        engine = self._engine = self._engine or self._new_engine(NativeLibraries(*map(Path, libraries)))
        for program in self._programs:
            if program.number is not None:
                engine.unload(program.number)
        self._programs = []
        for document in documents:
            words = document["words"]
            number = None if words is None else engine.load(array("q", words))
            self._programs.append(MpiProgram(decode_plan(document["plan"]), number, len(words or ())))

    def prepare(self, task: Message) -> tuple[RankMemory, RankRun]:
        """Return fresh data, and the run on them, for a task of `prepare_task`."""
        program, elements, dtype = self._programs[task["program"]], task["elements"], task["dtype"]
        pattern = DataPattern(self._ranks, task["run"], task["seed"], ELEMENT_TYPES[dtype].exact_limit)
        memory = RankMemory(program.plan, self._rank, elements, dtype, pattern)
        if program.number is None or self._engine is None:
            return memory, LibraryRun(program.plan.collective, memory, self._for_calls)
        room = program.most_steps if task["trace"] else 0
        buffers = memory.input.ctypes.data, memory.output.ctypes.data
        work = Work(program.number, *buffers, elements, DataType[dtype.upper()], step_room=room)
        return memory, ProgramRun(self._engine, work, memory)

    def _new_engine(self, libraries: NativeLibraries) -> Engine:
        if not libraries.exist:
            libraries = native_libraries()
        self._messages = MpiMessages(self._for_messages, libraries.messages)
        engine = Engine(self._rank, self._ranks, libraries.engine)
        engine.use_messages(self._messages.address)
        return engine
