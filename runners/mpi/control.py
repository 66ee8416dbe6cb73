"""Control messages between the ranks of an MPI job, and the alignment of their clocks.

Rank 0 relays the commands of the runner to all ranks, and their replies back.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from chorale.runners.measurement.clocks import ROUNDS, ClockOffset, clock_offset, clock_samples, same_clocks
from chorale.runners.mpi.framing import READY_FOR_MORE, Message, MessageAssembler, encode_line

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
