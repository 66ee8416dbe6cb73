"""The clocks of the ranks: one and the same on a host, aligned by messages between hosts.

Commands and answers between the ranks, beside the data: small, pickled by mpi4py, never blocking.

Rank 0's other duty: it passes the runner's commands on to all ranks, and their answers back to the runner.
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
    answer = np.empty(2)
    for _ in range(ROUNDS):
        communicator.Recv(np.empty(0), asker, _TAG)
        answer[0] = time.monotonic()
        answer[1] = time.monotonic()
        communicator.Send(answer, asker, _TAG)


def measure_clock_offset(communicator: MPI.Comm, rank: int) -> ClockOffset:
    """Return how far the clock of `rank`, which is in `answer_clock`, is from the one here."""
    answer = np.empty(2)

    def ask() -> tuple[float, float]:
        communicator.Send(np.empty(0), rank, _TAG)
        communicator.Recv(answer, rank, _TAG)
        return float(answer[0]), float(answer[1])

    return clock_offset(clock_samples(ask, time.monotonic))


ControlMessage = dict[str, Any]


class ControlChannel:
    """Sends documents to ranks and takes those that have come."""

    def __init__(self, communicator: MPI.Comm) -> None:
        self._communicator = communicator
        self._leaving: list[MPI.Request] = []

    def send(self, rank: int, document: ControlMessage) -> None:
        """Hand `document` to MPI; it leaves whenever this or another method lets MPI work."""
        self._leaving = [request for request in self._leaving if not request.Test()]
        self._leaving.append(self._communicator.isend(document, rank))

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
        self._postbox = channel
        self._obey = execute
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
            letter = self._postbox.receive()
            if letter is None:
                return False
            self.forward_reply(*letter)
        return True

    def forward_reply(self, rank: int, document: Message) -> None:
        """Tell the runner what `rank` answers."""
        if document["answer"] == "done":
            offset = self._offsets[rank]
            error_s = offset.error_at(time.monotonic())
            document = {**document, "end": offset.to_local_s(document["end"]), "clock_error_s": error_s}
        self._say({**document, "rank": rank})

    def _command(self, command: Message) -> None:
        if command["do"] == "go":
            self._go(command["lead_s"])
            return
        each = command.pop("each", None)
        for rank in reversed(range(self._communicator.size)):  # the own part last: it may take time
            self._give(rank, command if each is None else {**command, "part": each[rank]})

    def _go(self, lead_s: float) -> None:
        self._offsets = same_clocks(self._clocks)
        for rank in set(range(len(self._clocks))) - self._offsets.keys():
            self._give(rank, {"do": "answer_clock"})
            self._offsets[rank] = measure_clock_offset(self._communicator, rank)
        start = time.monotonic() + lead_s
        for rank, offset in self._offsets.items():
            self._give(rank, {"do": "go", "at": offset.to_remote_s(start)})
        self._say({"answer": "started", "at": start})

    def _give(self, rank: int, command: Message) -> None:
        if rank == 0:
            self._obey(command)
        else:
            self._postbox.send(rank, command)

    def _read(self) -> None:
        assembly = MessageAssembler()
        for line in sys.stdin.buffer:
            document = assembly.add(line)
            if document is None:
                self._say(READY_FOR_MORE)
            else:
                self._commands.put(document)
        self._commands.put(END_COMMAND)

    def _say(self, document: Message) -> None:
        with self._writing:
            rest = memoryview(encode_line(document))
            while rest:
                rest = rest[os.write(self._output, rest) :]
