"""Who may call: tokens from a file, their quotas, and the errors that have an HTTP status of their own."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from dataclasses import dataclass
from typing import Annotated

import yaml
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable
from chorale.tuner.files.read_write import read_file


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


TOKEN_PREFIX = "chorale-"  # noqa: S105  # not a secret: it makes leaked tokens easy to find
TOKEN_BYTES = 32
LOCAL_JOBS = 1000


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a token, with quotas. requests_per_minute None: unlimited."""

    name: str
    max_jobs: int
    requests_per_minute: int | None = None
    sees_all: bool = False


LOCAL = Caller("local", LOCAL_JOBS, sees_all=True)
"""The caller without a token, where the service listens on loopback only."""


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    jobs: Annotated[int, Field(ge=1, le=100_000)] = 20
    requests_per_minute: Annotated[int, Field(ge=1, le=10**6)] = 600
    admin: bool = False

    def caller(self) -> Caller:
        return Caller(self.name, self.jobs, self.requests_per_minute, self.admin)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: Annotated[list[_Entry], Field(min_length=1)]


class Access:
    """Knows callers by the SHA-256 of their tokens. Without tokens everybody is `LOCAL`."""

    def __init__(self, callers: dict[str, Caller] | None) -> None:
        self._callers = callers
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    @property
    def needs_token(self) -> bool:
        return self._callers is not None

    def caller(self, authorization: str | None) -> Caller:
        """Return who sent the header `Authorization: Bearer TOKEN`; count the request against the quota.

        Raises NotAllowed without a known token and TooManyRequests above the quota of requests.
        """
        if self._callers is None:
            return LOCAL
        scheme, _, token = (authorization or "").partition(" ")
        digest = _digest(token.strip()) if scheme.lower() == "bearer" else ""
        current = None
        for stored_digest, caller in self._callers.items():  # all are compared, so that the time tells nothing
            if hmac.compare_digest(stored_digest, digest):
                current = caller
        if current is None:
            rule = "a request must carry a token that the service knows"
            raise NotAllowed(rule, "another one" if digest else "none", "send `Authorization: Bearer TOKEN`")
        self._count(current)
        return current

    def _count(self, caller: Caller) -> None:
        if caller.requests_per_minute is None:
            return
        if not self._limiter.hit(RateLimitItemPerMinute(caller.requests_per_minute), caller.name):
            rule = f"a token may send at most {caller.requests_per_minute} requests a minute"
            raise TooManyRequests(rule, "more", "wait a minute, or poll less often")


def load_access(path: str | None, host: str) -> Access:
    """Return the access rules of the token file at `path`; without one, of a service on loopback only.

    InvalidInput for a broken file, or for a host that others can reach without a token file.
    """
    if path is None:
        if not is_loopback(host):
            rule = "a service that others can reach must have a token file"
            raise InvalidInput(rule, f"--host {host} without --tokens", "see `chorale serve --make-token NAME`")
        return Access(None)
    try:
        file = _File.model_validate(yaml.safe_load(read_file(path)))
    except yaml.YAMLError as error:
        raise InvalidInput("a token file must be YAML", f"{path}: {error}", "write `tokens:` and a list") from error
    except ValidationError as error:
        first = error.errors()[0]
        value = f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InvalidInput("a token file must have entries of name and sha256", value, "repair it") from error
    return Access({entry.sha256: entry.caller() for entry in file.tokens})


def make_token() -> tuple[str, str]:
    """Return a new token and its SHA-256, which is all that the token file needs."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, _digest(token)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a service on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
