"""One run of a rank: of its part of a program, or of MPI's own collective."""

from __future__ import annotations

from typing import Protocol

from mpi4py import MPI

from chorale.runners.execution.failure import StuckInstruction
from chorale.runners.execution.interpreter import Interpreter
from chorale.runners.execution.memory import RankMemory
from chorale.runners.execution.plan import NodePlan
from chorale.runners.mpi.library import run_collective
from chorale.runners.mpi.transport import MpiTransport


class RankRun(Protocol):
    """What a rank does between a start and its end."""

    @property
    def is_finished(self) -> bool:
        """Whether this rank has its result."""
        ...

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way, so that `turn` has nothing to do."""
        ...

    def start(self) -> None:
        """Begin."""
        ...

    def poll(self) -> bool:
        """Go on as far as possible without waiting; return whether anything moved."""
        ...

    def blocked(self) -> list[StuckInstruction]:
        """Return where the blocks are stuck that are not finished."""
        ...


class ProgramRun:
    """Implements `Run` with the interpreter."""

    def __init__(self, plan: NodePlan, memory: RankMemory, dtype: str, transport: MpiTransport) -> None:
        self._transport = transport
        self._interpreter = Interpreter(plan, memory, dtype, transport.post)

    @property
    def is_finished(self) -> bool:
        return self._interpreter.is_finished

    @property
    def is_quiet(self) -> bool:
        return self._transport.is_quiet

    def start(self) -> None:
        self._interpreter.start()
        self._transport.post_receives(self._interpreter.inboxes)

    def poll(self) -> bool:
        if not self._transport.poll(self._interpreter.inboxes):
            return False
        self._interpreter.run()
        self._transport.post_receives(self._interpreter.inboxes)
        return True

    def blocked(self) -> list[StuckInstruction]:
        return self._interpreter.blocked()


class LibraryRun:
    """Implements `Run` with a call that returns when the rank has its result; meanwhile the rank answers nobody."""

    is_quiet = True

    def __init__(self, plan: NodePlan, memory: RankMemory, communicator: MPI.Comm) -> None:
        self._collective = plan.collective
        self._memory = memory
        self._communicator = communicator
        self.is_finished = False

    def start(self) -> None:
        run_collective(self._communicator, self._collective, self._memory.input, self._memory.output)
        self.is_finished = True

    def poll(self) -> bool:
        return False

    def blocked(self) -> list[StuckInstruction]:
        return []
