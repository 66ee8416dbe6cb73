"""Who may call: roles, quotas, callers by their tokens, and the errors that have an HTTP status of their own."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter

from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable

MOST_FAILURES = 20
"""Wrong tokens that a client may send in a minute."""
IPV6_NETWORK = 64
"""Bits of an IPv6 address that name a customer, who has all addresses below them."""


class TooManyRequests(ChoraleError):
    """The caller's quota is used up for now."""


class NotFound(ChoraleError):
    """There is nothing of that name, or it is somebody else's."""


class NotAllowed(ChoraleError):
    """No token, or one that is not known."""


class NotPermitted(ChoraleError):
    """The token is known, its role is not enough."""


_STATUS: tuple[tuple[type[ChoraleError], int], ...] = (
    (TooManyRequests, 429),
    (NotFound, 404),
    (NotAllowed, 401),
    (NotPermitted, 403),
    (InvalidInput, 422),
    (CheckFailed, 409),
    (Unavailable, 503),
)


def status_of(error: ChoraleError) -> int:
    """Return the HTTP status that says what `error` is."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


class CallerRole(IntEnum):
    """What a token may do; each role may do what those before it may."""

    READER = 1  # results whose key it knows, and what is registered
    PLANNER = 2  # synthesis, bounds, prices, programs; campaigns that start no runner of a machine
    OPERATOR = 3  # campaigns on runners that an administrator has described as profiles
    ADMINISTRATOR = 4  # jobs and campaigns of everybody

    @property
    def text(self) -> str:
        """The role as token files and commands have it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a token. requests_per_minute None: unlimited; expires_unix_s None: never."""

    name: str
    max_jobs: int
    requests_per_minute: int | None = None
    role: CallerRole = CallerRole.PLANNER
    expires_unix_s: float | None = None

    @property
    def sees_all(self) -> bool:
        """Whether jobs and campaigns of others are shown and obeyed."""
        return self.role is CallerRole.ADMINISTRATOR

    def require(self, role: CallerRole, what: str) -> None:
        """Raise NotPermitted unless the role is at least `role`, which `what` takes."""
        if self.role < role:
            rule = f"{what} takes the role {role.text} or a higher one"
            raise NotPermitted(rule, f"the token {self.name} of a {self.role.text}", "use another token")


class ClientLimit:
    """How often something may happen for each client in a minute of the clock `unix_s`. Thread-safe."""

    def __init__(self, unix_s: Callable[[], float], most: int) -> None:
        self._unix_s = unix_s
        self._most = RateLimitItemPerMinute(most)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    def admits(self, client: str) -> bool:
        """Count an event of `client`; return False if it has had too many in this minute."""
        return self._limiter.hit(self._most, network_of_client(client), str(int(self._unix_s() // 60)))


def network_of_client(client: str) -> str:
    """Return what stands for a client: its IPv4 address, or the network of its IPv6 address."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client[:64]
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_NETWORK), strict=False))


class Access:
    """Knows callers by the SHA-256 of their tokens.

    callers:    returns them by digest, read anew where they may have changed
    local_only: whether only this machine reaches the service, so that requests must name it as their host
    """

    def __init__(
        self,
        callers: Callable[[], Mapping[str, Caller]],
        local_only: bool = False,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.local_only = local_only
        self._callers = callers
        self._unix_s = unix_s
        self._limiter = MovingWindowRateLimiter(MemoryStorage())
        self._failures = ClientLimit(unix_s, MOST_FAILURES)

    def caller(self, authorization: str | None, client: str = "") -> Caller:
        """Return who sent the header `Authorization: Bearer TOKEN`; count the request against the quota.

        Raises NotAllowed without a known token that is valid, TooManyRequests above the quota of requests, and to a
        `client` that has sent too many wrong tokens. A right token is accepted from it all the same: tokens cannot be
        guessed, and behind one address there may be many people.
        """
        scheme, _, token = (authorization or "").partition(" ")
        digest = digest_of(token.strip()) if scheme.lower() == "bearer" else ""
        current = None
        for stored_digest, caller in self._callers().items():  # all are compared, so that the time tells nothing
            if hmac.compare_digest(stored_digest, digest):
                current = caller
        if current is None or self._is_expired(current):
            raise self._refusal("none" if not digest else "another one" if current is None else "expired", client)
        self._count(current)
        return current

    def _is_expired(self, caller: Caller) -> bool:
        return caller.expires_unix_s is not None and caller.expires_unix_s <= self._unix_s()

    def _refusal(self, value: str, client: str) -> ChoraleError:
        if value != "none" and not self._failures.admits(client):
            rule = f"a client may send at most {MOST_FAILURES} wrong tokens a minute"
            return TooManyRequests(rule, "more", "wait a minute, then send a token that the service knows")
        rule = "a request must carry a token that the service knows and that is valid"
        return NotAllowed(rule, value, "send `Authorization: Bearer TOKEN`; `chorale token create` makes one")

    def _count(self, caller: Caller) -> None:
        if caller.requests_per_minute is None:
            return
        if not self._limiter.hit(RateLimitItemPerMinute(caller.requests_per_minute), caller.name):
            rule = f"a token may send at most {caller.requests_per_minute} requests a minute"
            raise TooManyRequests(rule, "more", "wait a minute, or poll less often")


def digest_of(token: str) -> str:
    """Return what is kept of a token: 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()
