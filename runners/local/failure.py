"""How the parts of the local runner say that a run cannot go on."""

from __future__ import annotations

from runners.api import FailureKind


class RunStopped(Exception):  # noqa: N818 - control flow inside this package, never shown to people
    """Becomes the RunFailure of the request."""

    def __init__(self, kind: FailureKind, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.rank = rank


class DeadlinePassed(RunStopped):
    """The watchdog's time is over."""

    def __init__(self, what: str) -> None:
        super().__init__(FailureKind.TIMEOUT, f"the time limit passed while {what}")
