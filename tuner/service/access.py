"""Controls access to the service: roles, quotas, callers and their tokens. Also reads the service's settings file."""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Literal

import yaml
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
from pydantic import Field, field_validator, model_validator

from chorale.job.files import read_file
from chorale.runners.measurement.private_files import why_foreign, write_private
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput, Unavailable
from chorale.tuner.config.values import AnyRunnerSection, Model, RunnerSection, Strict, is_loopback, validated
from chorale.tuner.files.home import Home
from chorale.tuner.files.yaml_text import load_yaml

MOST_FAILURES = 20
"""Maximum number of wrong tokens that a client may send per minute."""
IPV6_NETWORK = 64
"""Prefix length of the IPv6 networks that count as one client, because a customer usually owns all addresses in it."""
_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*)://[^\s'\"<>]+", re.IGNORECASE)
_PATH = re.compile(
    r"(?<![\w./])/(?!v1/)(?:[\w.@+~-]+/)+[\w.@+~-]*|(?<![\w./])/(?:etc|home|root|tmp|var|usr|opt|srv|mnt)\b"
)
ProfileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Link = Annotated[str, Field(pattern=r"^https?://[^\s@]+$", max_length=1000, description="Address without a password.")]


class TooManyRequests(ChoraleError):
    """Raised if the caller has reached the limit on requests, jobs, campaigns or event streams."""


class NotFound(ChoraleError):
    """Raised if something does not exist or belongs to another user."""


class NotAllowed(ChoraleError):
    """Raised if a request has no token, or one that is unknown or expired."""


class NotPermitted(ChoraleError):
    """Raised if the token is valid, but its role does not permit the request."""


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
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


class CallerRole(IntEnum):
    """A token's role. Each role also has the permissions of all roles listed before it."""

    READER = 1  # may see results whose keys it knows, and the registry
    PLANNER = 2  # may request synthesis, bounds, prices, programs, and campaigns on runners that start no processes
    OPERATOR = 3  # may also run campaigns on runners that an administrator has defined as profiles
    ADMINISTRATOR = 4  # may also see and stop all users' jobs and campaigns

    @property
    def text(self) -> str:
        """Return the role's name in token files and commands."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a token, with role and limits. `requests_per_minute` and `expires_unix_s` are None for no limit."""

    name: str
    max_jobs: int
    requests_per_minute: int | None = None
    role: CallerRole = CallerRole.PLANNER
    expires_unix_s: float | None = None

    @property
    def sees_all(self) -> bool:
        """Return whether the caller sees and controls the jobs and campaigns of all users."""
        return self.role is CallerRole.ADMINISTRATOR

    def require(self, role: CallerRole, what: str) -> None:
        """Raise NotPermitted, with `what` as the action, unless the caller's role is at least `role`."""
        if self.role < role:
            rule = f"{what} needs the role {role.text} or a higher one"
            raise NotPermitted(rule, f"the token {self.name} of a {self.role.text}", "use another token")


class ClientLimit:
    """Limits how many events each client may cause in a minute of the clock `unix_s`. Thread-safe."""

    def __init__(self, unix_s: Callable[[], float], most: int) -> None:
        self._unix_s = unix_s
        self._most = RateLimitItemPerMinute(most)
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    def admits(self, client: str) -> bool:
        """Count an event of `client`. Return whether the client is within the limit for this minute."""
        return self._limiter.hit(self._most, network_of_client(client), str(int(self._unix_s() // 60)))


def network_of_client(client: str) -> str:
    """Return what rate limits count as one client: an IPv4 address itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return client[:64]
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, IPV6_NETWORK), strict=False))


class Access:
    """Identifies callers by the SHA-256 of their tokens.

    callers:    function that returns the current callers: SHA-256 of the token -> caller
    local_only: whether the service is reachable only from this machine; then requests must name this machine as host
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
        """Return the caller who sent the header `Authorization: Bearer TOKEN`, and count the request for the quota.

        Raises NotAllowed if the token is missing, unknown or expired. Raises TooManyRequests if the quota of requests
        is exceeded, or if the token is wrong and `client` has sent too many wrong tokens. Wrong tokens do not block
        valid ones from the same client, because tokens cannot be guessed and many people may share an address.
        """
        scheme, _, token = (authorization or "").partition(" ")
        digest = digest_of(token.strip()) if scheme.lower() == "bearer" else ""
        current = None
        for stored_digest, caller in self._callers().items():  # compare with all, so that the time reveals nothing
            if hmac.compare_digest(stored_digest, digest):
                current = caller
        if current is None or (current.expires_unix_s is not None and current.expires_unix_s <= self._unix_s()):
            if digest and not self._failures.admits(client):
                rule = f"a client may send at most {MOST_FAILURES} wrong tokens a minute"
                raise TooManyRequests(rule, "more", "wait a minute, then send a valid token")
            value = "none" if not digest else "another one" if current is None else "expired"
            way_out = "send `Authorization: Bearer TOKEN`; `chorale token create` makes one"
            raise NotAllowed("a request must have a valid token", value, way_out)
        quota = current.requests_per_minute
        if quota is not None and not self._limiter.hit(RateLimitItemPerMinute(quota), current.name):
            rule = f"a token may send at most {quota} requests a minute"
            raise TooManyRequests(rule, "more", "wait a minute, or poll less often")
        return current


def digest_of(token: str) -> str:
    """Return a token's SHA-256; the token itself is not stored. Random 256-bit tokens need no salt or slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


TOKEN_PREFIX = "chorale-"  # noqa: S105  # not a secret: it makes leaked tokens easy to find
TOKEN_BYTES = 32
LOCAL_JOBS = 1000
MAX_TOKENS = 10_000
MAX_PRIVATE_BYTES = 2**23
NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"

RoleName = Literal["reader", "planner", "operator", "administrator"]


class TokenEntry(Strict):
    """A stored token. The default role is planner, which cannot use runners that start processes."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    role: RoleName = "planner"
    expires: datetime | None = None
    jobs: Annotated[int, Field(ge=1, le=100_000)] = 20
    requests_per_minute: Annotated[int, Field(ge=1, le=10**6)] = 600

    @field_validator("expires")
    @classmethod
    def _with_zone(cls, expires: datetime | None) -> datetime | None:
        """Treat times without a time zone as UTC."""
        return expires if expires is None or expires.tzinfo else expires.replace(tzinfo=UTC)

    def caller(self) -> Caller:
        expires_unix_s = None if self.expires is None else self.expires.timestamp()
        return Caller(self.name, self.jobs, self.requests_per_minute, CallerRole[self.role.upper()], expires_unix_s)


class _File(Strict):
    tokens: Annotated[list[TokenEntry], Field(max_length=MAX_TOKENS)]

    @model_validator(mode="after")
    def _tells_tokens_apart(self) -> _File:
        names, hashes = ([getattr(entry, key) for entry in self.tokens] for key in ("name", "sha256"))
        if len(set(hashes)) < len(hashes) or len(set(names)) < len(names):
            raise ValueError("two tokens have the same name or the same sha256")
        return self


def read_tokens(path: Path) -> list[TokenEntry]:
    """Return the entries in the token file `path`. Raises InvalidInput if the file is invalid or writable by others."""
    rule, way_out = (
        "a token file must be a list of entries with name, sha256 and role",
        "repair it, or `chorale token create`",
    )
    return read_private(path, _File, rule, way_out).tokens


def read_private(path: Path, model: type[Model], rule: str, way_out: str) -> Model:
    """Return the content of a permissions file (YAML) as a `model`. Raises InvalidInput if others may write to it."""
    try:
        reason = why_foreign(path)
    except OSError as error:
        value = f"{path}: {error.strerror}"
        raise InvalidInput("cannot read {}", value, "check the path") from error
    if reason is not None:
        private = "other users may write to the permissions file {}"
        raise InvalidInput(private, f"{path}: {reason}", f"chmod go-w {path}, or create your own file")
    text = read_file(path, MAX_PRIVATE_BYTES).decode(errors="replace")
    document = load_yaml(text, "a file of the service must be YAML", f"repair {path}")
    return validated(model, document if isinstance(document, Mapping) else {"": document}, rule, way_out, f"{path}: ")


def write_tokens(path: Path, entries: list[TokenEntry]) -> None:
    """Write `entries` to a token file that only its owner can access. If writing fails, the old file is unchanged."""
    text = yaml.safe_dump(
        {"tokens": [entry.model_dump(mode="json", exclude_none=True) for entry in entries]}, sort_keys=False
    )
    try:
        write_private(path, text.encode())
    except OSError as error:
        rule = "the token file cannot be written: {}"
        raise Unavailable(rule, f"{path}: {error.strerror}", "choose another file") from error


def change_tokens(path: Path, change: Callable[[list[TokenEntry]], list[TokenEntry]]) -> None:
    """Apply `change` to the entries in the token file `path`. A missing file counts as empty.

    Concurrent changes wait for each other. A missing folder is created, accessible only to its owner.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        rule = "the folder of the token file cannot be written: {}"
        raise Unavailable(rule, f"{path.parent}: {error.strerror}", "choose another file") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_tokens(path, change(read_tokens(path) if path.exists() else []))
    finally:
        os.close(lock)


def make_token() -> tuple[str, str]:
    """Return a new token and its SHA-256. Only the SHA-256 is stored."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, digest_of(token)


def token_file(home: Home) -> Path:
    return home.service / "tokens.yaml"


def local_token(home: Home) -> str:
    """Return the local token; create it if missing. Users who can read it are administrators on loopback."""
    return home.secret(home.service / "local-token", lambda: make_token()[0])


class TokenCallers:
    """Returns, when called, the local token's owner and the callers in a token file. A changed file is read again.

    While the file is invalid, each call raises Unavailable, so that nobody has access.
    """

    def __init__(self, path: Path | None, local: str | None) -> None:
        self._path = path
        self._local = (
            {} if local is None else {digest_of(local): Caller("local", LOCAL_JOBS, None, CallerRole.ADMINISTRATOR)}
        )
        self._version: tuple[int, ...] | None = None
        self._callers: Mapping[str, Caller] = self._local

    def __call__(self) -> Mapping[str, Caller]:
        try:
            facts = None if self._path is None else self._path.stat()
        except FileNotFoundError:
            facts = None
        version = None if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size, facts.st_mode)
        if version != self._version:
            of_file = {}
            if self._path is not None and version is not None:
                try:
                    of_file = {entry.sha256: entry.caller() for entry in read_tokens(self._path)}
                except InvalidInput as error:
                    rule = "the token file cannot be read: {}"
                    raise Unavailable(rule, error.problem, "see the log of the service") from error
            self._callers, self._version = self._local | of_file, version
        return self._callers


def load_access(path: str | None, host: str, home: Home, unix_s: Callable[[], float]) -> Access:
    """Return the access rules for a service on `host`, with the tokens in the file `path` (default: that of `home`).

    On loopback, the local token is also valid; it is created if missing. Raises InvalidInput if the file is invalid, or
    if it has no token and other machines can reach `host`.
    """
    local_only = is_loopback(host)
    file = token_file(home) if path is None else Path(path)
    entries = read_tokens(file) if path is not None or file.exists() else []
    if not (entries or local_only):
        rule = "a service that others can reach needs a token file"
        raise InvalidInput(rule, f"--host {host} without --tokens", "create a token with `chorale token create NAME`")
    return Access(TokenCallers(file, local_token(home) if local_only else None), local_only, unix_s)


def redacted(text: str) -> str:
    """Return `text` with placeholders instead of URLs and absolute paths."""
    return _PATH.sub("(path)", _ADDRESS.sub(r"\1://(address)", text))


class Dashboards(Strict):
    """The addresses of other programs' pages to which the service's page links."""

    mlflow: Link | None = None
    ray: Link | None = None
    optuna: Link | None = None


class ServerSettings(Strict):
    """The settings file. Each profile is written like the section `runner` in a campaign file."""

    runners: dict[ProfileName, AnyRunnerSection] = Field(
        default={}, description="Runners by the name of their profile."
    )
    dashboards: Dashboards = Field(default=Dashboards(), description="Pages to which the service's page links.")

    def profile(self, name: object) -> RunnerSection:
        """Return the runner of the profile `name`. Raises InvalidInput if the administrator has not defined it."""
        section = self.runners.get(name) if isinstance(name, str) else None
        if section is None:
            known = ", ".join(self.runners) or "none yet"
            rule = "`runner.profile` is not in the settings of the service"
            raise InvalidInput(rule, str(name)[:80], f"choose from {known}; the service's administrator can add one")
        return section


def load_settings(path: str | None, home: Home) -> ServerSettings:
    """Return the settings in the file at `path`, by default in the settings file of `home`, which may be missing.

    Raises InvalidInput if the file is invalid, or if other users may write to it, because it says what may be run.
    """
    file = (home.service / "settings.yaml") if path is None else Path(path)
    if path is None and not file.exists():
        return ServerSettings()
    rule = "the settings of the service must be runners by name, each as in a campaign file"
    return read_private(file, ServerSettings, rule, "repair this key")
