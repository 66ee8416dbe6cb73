"""The process of one rank in an MPI job: runs programs and MPI's own calls, with real data, when it is told to."""

from __future__ import annotations

import gc
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from chorale.runners.api.elements import Vector
from chorale.runners.engine.library import (
    TOKEN_BYTES,
    Engine,
    EngineError,
    Execution,
    Status,
    Work,
    addresses_for,
    listen,
)
from chorale.runners.execution.rank_part import LoadedPart, RankMemory, load_parts, rank_trace
from chorale.runners.execution.rounds import StuckInstruction
from chorale.runners.measurement.clocks import (
    ROUNDS,
    ClockOffset,
    clock_identity,
    clock_offset,
    clock_samples,
    same_clocks,
)
from chorale.runners.mpi.algorithms import PREFIX, ForcedAlgorithm, MpiAlgorithms, ToolInterface
from chorale.runners.mpi.job import READY_FOR_MORE, Message, MessageAssembler, encode_line
from chorale.runners.mpi.messages import MpiMessages, NativeLibraries, native_libraries
from chorale.runners.process_launch.placement import this_host
from chorale.synth.collective import Collective, CollectiveName


def run_collective(communicator: MPI.Comm, collective: Collective, input_vector: Vector, output_vector: Vector) -> None:
    """Do what `collective` says out of place with MPI's call of that name; broadcasts are in place as MPI has them."""
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
    """Return `vector` for calls that do not look into elements: MPI has no name for every type."""
    return [vector.view(np.uint8), MPI.BYTE]


class RankRun(Protocol):
    """What a rank does between a start and its end."""

    blocked: list[StuckInstruction]
    """Where the blocks are stuck, after a run that was not finished."""

    execution: Execution | None
    """What the engine says of a run that was finished; None for MPI's own."""

    def run(self, start_s: float, limit_s: float) -> float | None:
        """Start at `start_s` and return the time at which this rank had its result, both on the monotonic clock.

        None if `limit_s` is over.
        """
        ...


class ProgramRun:
    """Implements `RankRun` with the engine, which is of no use any more after one that was not finished."""

    def __init__(self, engine: Engine, work: Work, memory: RankMemory) -> None:
        self.blocked: list[StuckInstruction] = []
        self.execution: Execution | None = None
        self._engine = engine
        self._memory = memory  # the engine knows it by addresses only
        self._work = work

    def run(self, start_s: float, limit_s: float) -> float | None:
        work = replace(self._work, limit_s=limit_s, not_before_ns=round(start_s * 1e9))
        try:
            self.execution = self._engine.execute(work)
            return self.execution.end_ns / 1e9
        except EngineError as error:
            if error.status not in (Status.TIMEOUT, Status.PEER_LOST):  # then another is to blame, who is noticed
                raise
            self.blocked = list(map(_stuck_instruction, error.blocked.splitlines()))
            return None


def _stuck_instruction(line: str) -> StuckInstruction:
    block, step, why = line.split(" ", 2)
    return int(block), int(step), why


class LibraryRun:
    """Implements `RankRun` with a call that returns when the rank has its result, however long that takes."""

    def __init__(
        self, collective: Collective, memory: RankMemory, communicator: MPI.Comm, algorithm: ForcedAlgorithm | None
    ) -> None:
        """algorithm: for the call; None where MPI chooses"""
        self.blocked: list[StuckInstruction] = []
        self.execution: Execution | None = None
        self._collective = collective
        self._memory = memory
        self._communicator = communicator if algorithm is None else algorithm.communicator
        self._algorithm = algorithm

    def run(self, start_s: float, limit_s: float) -> float | None:
        with nullcontext() if self._algorithm is None else self._algorithm.forced():
            time.sleep(max(0.0, start_s - time.monotonic()))
            run_collective(self._communicator, self._collective, self._memory.input, self._memory.output)
            return time.monotonic()


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


_TAG = 1  # documents have 0


def serve_clock(communicator: MPI.Comm, asker: int) -> None:
    """Answer the questions of one alignment."""
    reply = np.empty(2)
    for _ in range(ROUNDS):
        communicator.Recv(np.empty(0), asker, _TAG)
        reply[0] = time.monotonic()
        reply[1] = time.monotonic()
        communicator.Send(reply, asker, _TAG)


def measure_clock_offset(communicator: MPI.Comm, rank: int) -> ClockOffset:
    """Return how far the clock of `rank`, which serves its clock meanwhile, is from the one here."""
    reply = np.empty(2)

    def exchange() -> tuple[float, float]:
        communicator.Send(np.empty(0), rank, _TAG)
        communicator.Recv(reply, rank, _TAG)
        return float(reply[0]), float(reply[1])

    return clock_offset(clock_samples(exchange, time.monotonic))


ControlMessage = dict[str, Any]


class ControlChannel:
    """Sends documents to ranks and takes those that have come."""

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._pending_sends: list[MPI.Request] = []

    def send(self, rank: int, document: ControlMessage) -> None:
        """Hand `document` to MPI; it leaves whenever this or another method lets MPI work."""
        self._pending_sends = [request for request in self._pending_sends if not request.Test()]
        self._pending_sends.append(self._communicator.isend(document, rank))

    def receive(self) -> tuple[int, ControlMessage] | None:
        """Return a document and who sent it, None if none has come."""
        status = MPI.Status()
        message = self._communicator.improbe(status=status)
        if message is None:
            return None
        return status.Get_source(), message.recv()


END_COMMAND: Message = {"do": "end"}


class ControlRelay:
    """Reads commands on standard input, writes answers to `output`, a descriptor. `clocks`: identity per rank.

    A command with `each` goes to every rank with its own part; `go` becomes a time on every rank's own clock, and the
    ends that ranks report become times on this one's. End of file ends the job.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        channel: ControlChannel,
        execute: Callable[[Message], None],
        clocks: Sequence[str],
        output: int,
    ) -> None:
        self._communicator = communicator
        self._clocks = clocks
        self._channel = channel
        self._execute = execute
        self._output = output
        self._commands: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._offsets: dict[int, ClockOffset] = {}
        self._writing = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def poll(self) -> bool:
        """Pass on what has come; return whether anything has."""
        try:
            self._command(self._commands.get_nowait())
        except queue.Empty:
            message = self._channel.receive()
            if message is None:
                return False
            self.forward_reply(*message)
        return True

    def forward_reply(self, rank: int, document: Message) -> None:
        """Tell the runner what `rank` answers."""
        if document["answer"] == "done":
            offset = self._offsets[rank]
            error_s = offset.error_at(time.monotonic())
            document = {**document, "end": offset.to_local_s(document["end"]), "clock_error_s": error_s}
        self._write({**document, "rank": rank})

    def _command(self, command: Message) -> None:
        if command["do"] == "go":
            self._go(command["lead_s"], command["limit_s"])
            return
        each = command.pop("each", None)
        for rank in reversed(range(self._communicator.size)):  # the own part last: it may take time
            self._send(rank, command if each is None else {**command, "part": each[rank]})

    def _go(self, lead_s: float, limit_s: float) -> None:
        self._offsets = same_clocks(self._clocks)
        for rank in set(range(len(self._clocks))) - self._offsets.keys():
            self._send(rank, {"do": "answer_clock"})
            self._offsets[rank] = measure_clock_offset(self._communicator, rank)
        start = time.monotonic() + lead_s
        for rank, offset in self._offsets.items():
            self._send(rank, {"do": "go", "at": offset.to_remote_s(start), "limit_s": limit_s})
        self._write({"answer": "started", "at": start})

    def _send(self, rank: int, command: Message) -> None:
        if rank == 0:
            self._execute(command)
        else:
            self._channel.send(rank, command)

    def _read(self) -> None:
        assembly = MessageAssembler()
        for line in sys.stdin.buffer:
            document = assembly.add(line)
            if document is None:
                self._write(READY_FOR_MORE)
            else:
                self._commands.put(document)
        self._commands.put(END_COMMAND)

    def _write(self, document: Message) -> None:
        with self._writing:
            rest = memoryview(encode_line(document))
            while rest:
                rest = rest[os.write(self._output, rest) :]


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
