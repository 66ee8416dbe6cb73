"""Errors of the service that have an HTTP status of their own."""

from __future__ import annotations

from synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable


class TooManyRequests(ChoraleError):
    """The caller's quota is used up for now."""


class NotFound(ChoraleError):
    """There is nothing of that name, or it is somebody else's."""


class NotAllowed(ChoraleError):
    """No token, or one that is not known."""


_STATUS: tuple[tuple[type[ChoraleError], int], ...] = (
    (TooManyRequests, 429),
    (NotFound, 404),
    (NotAllowed, 401),
    (InvalidInput, 422),
    (CheckFailed, 409),
    (Unavailable, 503),
)


def status_of(error: ChoraleError) -> int:
    """Return the HTTP status that says what `error` is."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
