"""One run of a rank: its part of a program over MPI messages, or MPI's own collective on the same data and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from chorale.runners.api.connections import Connection
from chorale.runners.api.elements import Vector
from chorale.runners.execution.interpreter import Inbox, Interpreter
from chorale.runners.execution.node_plan import NodePlan
from chorale.runners.execution.rank_memory import RankMemory
from chorale.runners.execution.rounds import StuckInstruction
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


class MpiTransport:
    """Sends and receives what the blocks of one rank exchange; every connection keeps its order.

    The channel of a connection is the tag of its messages: MPI delivers those of one sender and tag in order. Of each
    connection one receive is posted at a time, before its block asks for it, so that no sender waits for a receiver.
    """

    def __init__(self, communicator: MPI.Comm, connections: Mapping[int, Connection]) -> None:
        self._communicator = communicator
        self._connections = connections
        self._requests: list[MPI.Request] = []
        self._receivers: list[int | None] = []  # the connection of each request that receives

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is on its way to or from this rank."""
        return not self._requests

    def post(self, connection: int, message: memoryview) -> None:
        """Send `message`; nobody changes its bytes."""
        end = self._connections[connection]
        self._requests.append(self._communicator.Isend([message, MPI.BYTE], end.dst, end.channel))
        self._receivers.append(None)

    def post_receives(self, inboxes: Mapping[int, Inbox]) -> None:
        """Post a receive for every connection that has none and more to come."""
        for connection in inboxes.keys() - set(self._receivers):
            if (length := inboxes[connection].next_bytes) is not None:
                end, buffer = self._connections[connection], inboxes[connection].buffer(length)
                self._requests.append(self._communicator.Irecv([buffer, MPI.BYTE], end.src, end.channel))
                self._receivers.append(connection)

    def poll(self, inboxes: Mapping[int, Inbox]) -> bool:
        """Hand over what has arrived and let go of what has left; return whether there was anything."""
        done = set(MPI.Request.Testsome(self._requests) or ()) if self._requests else set()
        for number in sorted(done):
            if (connection := self._receivers[number]) is not None:
                inboxes[connection].filled()
        if done:
            self._requests = [request for number, request in enumerate(self._requests) if number not in done]
            self._receivers = [receiver for number, receiver in enumerate(self._receivers) if number not in done]
        return bool(done)


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
    """Implements `RankRun` with the interpreter."""

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
    """Implements `RankRun` with a call that returns when the rank has its result; meanwhile the rank answers nobody."""

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
