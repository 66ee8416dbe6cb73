"""The process of one rank in an MPI job: runs programs and MPI's own calls, with real data, when it is told to."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mpi4py import MPI

from chorale.runners.api.connections import Connection
from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.execution.node_plan import NodePlan, decode_plan
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.measurement.clocks import clock_identity
from chorale.runners.mpi.control import ControlChannel, ControlRelay, serve_clock
from chorale.runners.mpi.framing import Message
from chorale.runners.mpi.runs import LibraryRun, MpiTransport, ProgramRun, RankRun

NEVER = float("inf")
_WAIT_S = 0.0005  # between looks for a command
_PRECISE_S = 0.002  # this long before a start a rank no longer sleeps
_BUSY_WAIT_S = 0.00005  # between looks for messages, where ranks share cores


@dataclass(frozen=True, slots=True)
class ProgramPart:
    """What a rank knows of a program, or of a library algorithm."""

    plan: NodePlan
    connections: Mapping[int, Connection]
    is_library: bool

    @staticmethod
    def of(document: Message) -> ProgramPart:
        connections = {number: Connection(*ends) for number, *ends in document["connections"]}
        return ProgramPart(decode_plan(document["plan"]), connections, document["library"])


class RankProcess:
    """One rank. Commands, each with its answer:

    load     the rank's part of every program                    -> loaded
    prepare  a program, a size and fresh data                    -> ready
    go       the time at which to start                          -> done with the time of the end
    check    whether every element is right                      -> checked
    status   what the blocks wait for, answered at any time      -> blocked
    end      leave
    """

    def __init__(self, world: MPI.Comm, output: int) -> None:
        self._rank = world.rank
        self._control, self._data = world.Dup(), world.Dup()
        self._channel = ControlChannel(self._control)
        clocks = world.allgather(clock_identity())
        self._has_own_core = clocks.count(clocks[world.rank]) <= len(os.sched_getaffinity(0))
        self._relay = (
            ControlRelay(self._control, self._channel, self.execute, clocks, output) if world.rank == 0 else None
        )
        self._parts: list[ProgramPart] = []
        self._memory: RankMemory | None = None
        self._run: RankRun | None = None
        self._start_at = NEVER
        self._is_running = False
        self._has_left = False
        self._commands: dict[str, Callable[[Message], None]] = {
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
            "check": self._check,
            "status": self._status,
            "answer_clock": lambda _: serve_clock(self._control, 0),
            "end": self._end,
        }

    def serve(self) -> None:
        """Work until the runner ends the job."""
        gc.disable()  # no pauses while messages are timed
        version = MPI.Get_library_version().splitlines()[0].strip()
        self._reply({"answer": "hello", "pid": os.getpid(), "mpi": " ".join(version.split())})
        while not self._has_left:
            received = self._receive_command() if self._relay is None else self._relay.poll()
            if not (self._go_on() or received):
                self._rest()

    def execute(self, command: Message) -> None:
        """Do what `command` says; what goes wrong is an answer too."""
        try:
            self._commands[command["do"]](command)
        except Exception as error:  # whatever it was, the runner hears of it
            self._reply({"answer": "error", "message": f"{type(error).__name__}: {error}"})

    def _receive_command(self) -> bool:
        message = self._channel.receive()
        if message is not None:
            self.execute(message[1])
        return message is not None

    def _reply(self, document: Message) -> None:
        if self._relay is None:
            self._channel.send(0, document)
        else:
            self._relay.forward_reply(0, document)

    def _go_on(self) -> bool:
        """Start when it is time, and move messages; return whether anything happened."""
        if self._run is None:
            return False
        if self._start_at <= time.monotonic():
            self._start_at, self._is_running = NEVER, True
            self._run.start()
        elif not self._run.poll():
            return False
        if self._is_running and self._run.is_finished:
            self._is_running = False
            self._reply({"answer": "done", "end": time.monotonic()})
        return True

    def _rest(self) -> None:
        """Leave the core to others where there is nothing to do."""
        if self._is_running or (self._run is not None and not self._run.is_quiet):
            if not self._has_own_core:
                time.sleep(_BUSY_WAIT_S)
        elif self._start_at - time.monotonic() > _PRECISE_S:
            time.sleep(_WAIT_S)

    def _load(self, command: Message) -> None:
        self._parts = [ProgramPart.of(document) for document in command["part"]]
        self._reply({"answer": "loaded"})

    def _prepare(self, command: Message) -> None:
        part, dtype = self._parts[command["program"]], command["dtype"]
        self._memory = self._run = None
        gc.collect()
        pattern = DataPattern(part.plan.ranks, command["run"], command["seed"], ELEMENT_TYPES[dtype].exact_limit)
        self._memory = RankMemory(part.plan, self._rank, command["elements"], dtype, pattern)
        if part.is_library:
            self._run = LibraryRun(part.plan, self._memory, self._data)
        else:
            self._run = ProgramRun(part.plan, self._memory, dtype, MpiTransport(self._data, part.connections))
        self._reply({"answer": "ready"})

    def _go(self, command: Message) -> None:
        self._start_at = command["at"]

    def _check(self, command: Message) -> None:
        self._reply({"answer": "checked", "complaint": None if self._memory is None else self._memory.mismatch()})

    def _status(self, command: Message) -> None:
        blocked = self._run.blocked() if self._run is not None and self._is_running else []
        self._reply({"answer": "blocked", "blocks": blocked})

    def _end(self, command: Message) -> None:
        self._has_left = True


def main() -> None:
    """Be a rank. Rank 0 answers on standard output, so what libraries print goes to standard error."""
    output = os.dup(1)
    os.dup2(2, 1)
    RankProcess(MPI.COMM_WORLD, output).serve()


if __name__ == "__main__":
    main()
