"""Commands and answers between the ranks, beside the data: small, pickled by mpi4py, never blocking."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

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
