"""The process of one rank in an MPI job: runs programs and MPI's own calls, with real data, when it is told to."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable

from mpi4py import MPI

from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.execution.rank_trace import rank_trace
from chorale.runners.measurement.clocks import clock_identity
from chorale.runners.mpi.control import ControlChannel, ControlRelay, serve_clock
from chorale.runners.mpi.framing import Message
from chorale.runners.mpi.rank_programs import RankPrograms
from chorale.runners.mpi.runs import RankRun
from chorale.runners.process_launch.placement import this_host

NEVER = float("inf")
_WAIT_S = 0.0005  # between looks for a command
_PRECISE_S = 0.002  # this long before a start a rank no longer looks for commands


class MpiRank:
    """One rank. Commands, each with its answer:

    load     the rank's part of every program                    -> loaded
    prepare  a program, a size and fresh data                    -> ready
    go       the time at which to start, and how long at most    -> done with the time of the end, if there was one
    check    whether every element is right                      -> checked
    status   what the blocks waited for when the time was over   -> blocked
    end      leave
    """

    def __init__(self, world: MPI.Comm, output: int) -> None:
        self._rank = world.rank
        self._control = world.Dup()
        self._programs = RankPrograms(world)
        self._channel = ControlChannel(self._control)
        clocks = world.allgather(clock_identity())
        self._relay = (
            ControlRelay(self._control, self._channel, self.execute, clocks, output) if world.rank == 0 else None
        )
        self._memory: RankMemory | None = None
        self._run: RankRun | None = None
        self._start_at = self._started_at = NEVER
        self._limit_s = 0.0
        self._has_left = False
        self._commands: dict[str, Callable[[Message], None]] = {
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
            "check": self._check,
            "trace": self._trace,
            "status": self._status,
            "answer_clock": lambda _: serve_clock(self._control, 0),
            "end": self._end,
        }

    def serve(self) -> None:
        """Work until the runner ends the job."""
        gc.disable()  # no pauses while messages are timed
        host = this_host()
        words = [host.name, *sorted(host.aliases - {host.name})]
        self._reply({"answer": "hello", "pid": os.getpid(), "mpi": mpi_version(), "host": words})
        while not self._has_left:
            received = self._receive_command() if self._relay is None else self._relay.poll()
            if not received:
                self._wait()

    def execute(self, command: Message) -> None:
        """Do what `command` says."""
        self._attempt(lambda: self._commands[command["do"]](command))

    def _attempt(self, work: Callable[[], None]) -> None:
        """Do `work`; what goes wrong is an answer too."""
        try:
            work()
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

    def _wait(self) -> None:
        """Leave the core to others for a while; where a start is near, run."""
        left_s = self._start_at - time.monotonic()
        if left_s > _PRECISE_S:
            time.sleep(_WAIT_S)
        else:
            self._attempt(self._execute_run)

    def _load(self, command: Message) -> None:
        self._programs.load(command)
        self._reply({"answer": "loaded"})

    def _prepare(self, command: Message) -> None:
        self._memory = self._run = None
        gc.collect()
        self._memory, self._run = self._programs.prepare(command)
        self._reply({"answer": "ready"})

    def _go(self, command: Message) -> None:
        self._start_at, self._limit_s = command["at"], command["limit_s"]

    def _execute_run(self) -> None:
        self._started_at, self._start_at = self._start_at, NEVER
        end = None if self._run is None else self._run.run(self._started_at, self._limit_s)
        if end is not None:
            self._reply({"answer": "done", "end": end})

    def _check(self, command: Message) -> None:
        self._reply({"answer": "checked", "complaint": None if self._memory is None else self._memory.mismatch()})

    def _trace(self, command: Message) -> None:
        execution = None if self._run is None else self._run.execution
        trace = None if execution is None else rank_trace(execution, round(self._started_at * 1e9)).to_json()
        self._reply({"answer": "traced", "trace": trace})

    def _status(self, command: Message) -> None:
        self._reply({"answer": "blocked", "blocks": [] if self._run is None else self._run.blocked})

    def _end(self, command: Message) -> None:
        self._has_left = True


def main() -> None:
    """Be a rank of so many. Rank 0 answers on standard output, so what libraries print goes to standard error."""
    ranks = int(sys.argv[1])
    if ranks != MPI.COMM_WORLD.size:
        sys.exit(f"MPI says {MPI.COMM_WORLD.size} ranks instead of {ranks}: mpiexec must be that of {mpi_version()}")
    output = os.dup(1)
    os.dup2(2, 1)
    MpiRank(MPI.COMM_WORLD, output).serve()


def mpi_version() -> str:
    """Return what the MPI that mpi4py has loaded says of itself, on one line."""
    return " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())


if __name__ == "__main__":
    main()
