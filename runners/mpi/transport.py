"""Messages of one program between the ranks of an MPI communicator."""

from __future__ import annotations

from collections.abc import Mapping

from mpi4py import MPI

from chorale.runners.connections import Connection
from chorale.runners.execution.inbox import Inbox


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
                end, place = self._connections[connection], inboxes[connection].buffer(length)
                self._requests.append(self._communicator.Irecv([place, MPI.BYTE], end.src, end.channel))
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
