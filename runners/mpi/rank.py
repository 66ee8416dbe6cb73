"""The process of one rank in an MPI job. On command it runs programs and MPI's own calls with real data.

Rank 0 relays the runner's commands to all ranks and their replies back; clocks of other hosts are aligned.
"""

import gc
import os
import queue
import secrets
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from chorale.runners.api.elements import Vector
from chorale.runners.engine.library import MPI_VARIABLES, TOKEN_BYTES, Devices, Engine, addresses_for, listen
from chorale.runners.execution.rank_part import RankMemory, RankParts
from chorale.runners.measurement.clocks import (
    ROUNDS,
    ClockOffset,
    clock_identity,
    clock_offset,
    clock_samples,
    same_clocks,
)
from chorale.runners.mpi.algorithms import PREFIX, ForcedAlgorithm, MpiAlgorithms, ToolInterface
from chorale.runners.mpi.messages import (
    READY_FOR_MORE,
    Message,
    MessageAssembler,
    MpiMessages,
    NativeLibraries,
    encode_line,
    native_libraries,
)
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


class MpiCalls:
    """MPI's own collectives, chosen by MPI or of one algorithm, on a communicator that nobody else uses.

    names: of the algorithms of the requests, the first of which has the number `first`
    """

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._names: Sequence[str] = ()
        self._first = 0
        self._forced: dict[tuple[CollectiveName, str], ForcedAlgorithm] = {}
        self._tools: ToolInterface | None = None  # only where an algorithm is chosen

    def prepare(self, names: Sequence[str], first: int, collective: CollectiveName) -> None:
        """Take in the algorithms of a request; all ranks call this together."""
        self._names, self._first = names, first
        for name in names:
            if name.startswith(PREFIX) and (collective, name) not in self._forced:
                self._tools = self._tools or ToolInterface()
                algorithms = MpiAlgorithms(self._tools)
                forced = algorithms.force(self._communicator, collective, name.removeprefix(PREFIX))
                self._forced[collective, name] = forced

    def run(self, number: int, collective: Collective, memory: RankMemory, start_s: float, _: float) -> None:
        """Start at `start_s` and return when the rank has its result, however long that takes."""
        algorithm = self._forced.get((collective.name, self._names[number - self._first]))
        communicator = self._communicator if algorithm is None else algorithm.communicator
        with nullcontext() if algorithm is None else algorithm.forced():
            time.sleep(max(0.0, start_s - time.monotonic()))
            run_collective(communicator, collective, memory.input, memory.output)


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


class ControlChannel:
    """Sends documents to ranks and takes those that have come."""

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._pending_sends: list[MPI.Request] = []

    def send(self, rank: int, document: Message) -> None:
        """Hand `document` to MPI; it leaves whenever this or another method lets MPI work."""
        self._pending_sends = [request for request in self._pending_sends if not request.Test()]
        self._pending_sends.append(self._communicator.isend(document, rank))

    def receive(self) -> tuple[int, Message] | None:
        """Return a document and who sent it, None if none has come."""
        status = MPI.Status()
        message = self._communicator.improbe(status=status)
        return None if message is None else (status.Get_source(), message.recv())


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
        self._communicator, self._channel, self._execute = communicator, channel, execute
        self._clocks, self._output = clocks, output
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
        self._commands.put({"do": "end"})

    def _write(self, document: Message) -> None:
        with self._writing:
            rest = memoryview(encode_line(document))
            while rest:
                rest = rest[os.write(self._output, rest) :]


NEVER = float("inf")
_WAIT_S = 0.0005  # between looks for a command
_PRECISE_S = 0.002  # this long before a start a rank no longer looks for commands


class MpiRank:
    """One rank. Commands and their answers:

    load     the rank's part of every program                    -> loaded
    prepare  a program, a size and fresh data                    -> ready
    go       start time and time limit                           -> done, with the end time if it ended
    check    whether every element is right                      -> checked
    trace    times of the steps of the last run, if traced       -> traced
    status   what blocks waited for when the limit was exceeded  -> blocked
    end      leave
    """

    def __init__(self, world: MPI.Comm, output: int) -> None:
        self._rank, self._ranks = world.rank, world.size
        self._control, self._for_messages = world.Dup(), world.Dup()
        self._calls = MpiCalls(world.Dup())
        self._channel = ControlChannel(self._control)
        clocks = world.allgather(clock_identity())
        self._relay = (
            ControlRelay(self._control, self._channel, self.execute, clocks, output) if world.rank == 0 else None
        )
        self._engine: Engine | None = None
        self._messages: MpiMessages | None = None
        self._addresses: list[str] = []  # of other engines; none where MPI carries their messages
        self._token = b""
        self._parts: RankParts | None = None
        self._start_at, self._limit_s = NEVER, 0.0
        self._has_left = False

    def serve(self) -> None:
        """Work until the runner ends the job."""
        gc.disable()  # no pauses while messages are timed
        host = this_host()
        words = [host.name, *sorted(host.aliases - {host.name})]
        self._reply({"answer": "hello", "pid": os.getpid(), "mpi": mpi_version(), "host": words})
        while not self._has_left:
            if self._relay is not None:
                received = self._relay.poll()
            elif received := (message := self._channel.receive()) is not None:
                assert message is not None
                self.execute(message[1])
            if received:
                continue
            # Leave the core to others for a while; where a start is near, run.
            if self._start_at - time.monotonic() > _PRECISE_S:
                time.sleep(_WAIT_S)
            else:
                self._attempt(self._run)

    def execute(self, command: Message) -> None:
        """Do what `command` says."""
        commands: dict[str, Callable[[Message], Message | None]] = {
            "load": self._load,
            "prepare": self._prepare,
            "go": self._go,
            "check": lambda _: {"answer": "checked", "complaint": self._loaded.complaint()},
            "trace": lambda _: {"answer": "traced", "trace": self._loaded.trace()},
            "status": lambda _: {"answer": "blocked", "blocks": self._parts.blocked if self._parts else []},
            "answer_clock": lambda _: serve_clock(self._control, 0),
            "end": self._end,
        }
        self._attempt(lambda: commands[command["do"]](command))

    def _attempt(self, work: Callable[[], Message | None]) -> None:
        """Do `work` and reply with its answer; what goes wrong is an answer too."""
        try:
            answer = work()
        except Exception as error:  # whatever it was, the runner hears of it
            answer = {"answer": "error", "message": f"{type(error).__name__}: {error}"}
        if answer is not None:
            self._reply(answer)

    def _reply(self, document: Message) -> None:
        if self._relay is None:
            self._channel.send(0, document)
        else:
            self._relay.forward_reply(0, document)

    @property
    def _loaded(self) -> RankParts:
        assert self._parts is not None
        return self._parts

    def _load(self, command: Message) -> Message:
        """Replace the programs; the first time, the engine is loaded and finds the others."""
        if self._engine is None:
            self._engine = self._new_engine(NativeLibraries(*map(Path, command["libraries"])), *command["transport"])
            self._parts = RankParts(self._engine, self._rank, self._calls.run)
        self._loaded.load(command["part"])
        library = command["library"]
        self._calls.prepare(library, len(command["part"]) - len(library), self._loaded.collective.name)
        if self._addresses:
            self._engine.connect(self._addresses, self._token, max(0.0, command["limit_s"]))
        return {"answer": "loaded"}

    def _new_engine(self, libraries: NativeLibraries, transport: str, interface: str | None) -> Engine:
        if not libraries.exist:
            libraries = native_libraries()
        engine = Engine(self._rank, self._ranks, libraries.engine)
        if transport == "mpi":
            self._messages = MpiMessages(self._for_messages, libraries.messages)
            engine.use_messages(self._messages.address)
        else:
            own = listen(engine, Devices(interface, MPI_VARIABLES))
            self._addresses = addresses_for(own, self._for_messages.allgather(own))
            self._token = self._for_messages.bcast(secrets.token_bytes(TOKEN_BYTES))
        return engine

    def _prepare(self, command: Message) -> Message:
        self._loaded.prepare(command)
        return {"answer": "ready"}

    def _go(self, command: Message) -> None:
        self._start_at, self._limit_s = command["at"], command["limit_s"]

    def _run(self) -> Message | None:
        start_s, self._start_at = self._start_at, NEVER
        end = None if self._parts is None else self._parts.run(start_s, self._limit_s)
        return None if end is None else {"answer": "done", "end": end}

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
