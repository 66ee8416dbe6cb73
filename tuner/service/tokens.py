"""The file of tokens: who may call, in which role, until when. Of tokens themselves only hashes are in it."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import read_file
from chorale.tuner.service.access import Access, Caller, CallerRole, digest_of
from chorale.tuner.service.loopback import is_loopback

TOKEN_PREFIX = "chorale-"  # noqa: S105  # not a secret: it makes leaked tokens easy to find
TOKEN_BYTES = 32
LOCAL_JOBS = 1000
MAX_TOKENS = 10_000
NAME_PATTERN = r"^[A-Za-z0-9_.-]{1,64}$"

RoleName = Literal["reader", "planner", "operator", "administrator"]


class TokenEntry(BaseModel):
    """What is known of a token.

    Files of earlier versions have `admin` in place of `role`: true is read as administrator, false or neither as
    planner, who can start no runner of a machine.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    role: RoleName = "planner"
    expires: datetime | None = None
    jobs: Annotated[int, Field(ge=1, le=100_000)] = 20
    requests_per_minute: Annotated[int, Field(ge=1, le=10**6)] = 600

    @model_validator(mode="before")
    @classmethod
    def _migrated(cls, entry: Any) -> Any:
        if not isinstance(entry, dict) or "admin" not in entry:
            return entry
        rest = {key: value for key, value in entry.items() if key != "admin"}
        if "role" in rest or not isinstance(entry["admin"], bool):
            raise ValueError("write `role: administrator` in place of `admin: true`")
        return rest | {"role": "administrator" if entry["admin"] else "planner"}

    @field_validator("expires")
    @classmethod
    def _with_zone(cls, expires: datetime | None) -> datetime | None:
        """Read times without a zone as UTC."""
        return expires if expires is None or expires.tzinfo else expires.replace(tzinfo=UTC)

    def caller(self) -> Caller:
        """Return the caller that the entry describes."""
        expires_unix_s = None if self.expires is None else self.expires.timestamp()
        return Caller(self.name, self.jobs, self.requests_per_minute, CallerRole[self.role.upper()], expires_unix_s)

    def document(self) -> dict[str, Any]:
        """Return the entry as the file has it."""
        return self.model_dump(mode="json", exclude_none=True)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: Annotated[list[TokenEntry], Field(max_length=MAX_TOKENS)]

    @model_validator(mode="after")
    def _tells_tokens_apart(self) -> _File:
        names, hashes = ([getattr(entry, key) for entry in self.tokens] for key in ("name", "sha256"))
        if len(set(hashes)) < len(hashes) or len(set(names)) < len(names):
            raise ValueError("two tokens have the same name or the same sha256")
        return self


def read_tokens(path: Path) -> list[TokenEntry]:
    """Return the entries of the file at `path`. InvalidInput for a broken file, or one that others may write."""
    require_private(path)
    try:
        return _File.model_validate(yaml.safe_load(read_file(str(path)))).tokens
    except yaml.YAMLError as error:
        raise InvalidInput("a token file must be YAML", f"{path}: {error}", "write `tokens:` and a list") from error
    except ValidationError as error:
        first = error.errors()[0]
        value = f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        way_out = "repair it, or make a new one by `chorale token create`"
        raise InvalidInput("a token file must have entries of name, sha256 and role", value, way_out) from error


def write_tokens(path: Path, entries: list[TokenEntry]) -> None:
    """Write the file at `path`, for its owner alone; any failure leaves the old one."""
    text = yaml.safe_dump({"tokens": [entry.document() for entry in entries]}, sort_keys=False)
    write_private(path, text.encode())


def change_tokens(path: Path, change: Callable[[list[TokenEntry]], list[TokenEntry]]) -> None:
    """Replace the entries of the file at `path`, which may be missing, by what `change` makes of them.

    Two that change it at once wait for each other. The folder is made where it is missing, for its owner alone.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        rule = "the folder of tokens must be writable"
        raise Unavailable(rule, f"{path.parent}: {error.strerror}", "choose another file") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        write_tokens(path, change(read_tokens(path) if path.exists() else []))
    finally:
        os.close(lock)


def write_private(path: Path, content: bytes) -> None:
    """Write `content` to a new file of mode 0600 and put it at `path`. Unavailable if that cannot be done."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        rule = "the folder of secrets must be writable"
        raise Unavailable(rule, f"{path}: {error.strerror}", "choose another file") from error


def require_private(path: Path) -> None:
    """Refuse a file that other users may change: who writes it decides who may call."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidInput(
            "a file of the service must be there", f"{path}: {error.strerror}", "check the path"
        ) from error
    if stat.S_ISREG(mode) and mode & 0o022:
        rule = "a file that says who may do what must be writable by its owner only"
        raise InvalidInput(rule, f"{path}: mode {stat.S_IMODE(mode):04o}", f"chmod go-w {path}")


def make_token() -> tuple[str, str]:
    """Return a new token and its SHA-256, which is all that is kept of it."""
    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    return token, digest_of(token)


def token_file(home: Home) -> Path:
    """Return where `chorale token` keeps tokens, and `chorale serve` looks for them."""
    return home.service / "tokens.yaml"


def local_token(home: Home) -> str:
    """Return the token of whoever may read the data folder: an administrator on loopback. Made at the first start."""
    path = home.service / "local-token"
    if not path.exists():
        write_private(path, f"{make_token()[0]}\n".encode())
    facts = path.lstat()
    if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o077 or facts.st_uid != os.geteuid():
        rule = "the token of this machine must be readable by its owner only"
        raise InvalidInput(rule, str(path), "remove it; the next start makes a new one")
    return read_file(str(path)).decode().strip()


class TokenCallers:
    """The callers of a token file and of the local token, read again when the file changes.

    A file that can no longer be read stops everybody whom it named: InvalidInput becomes Unavailable.
    """

    def __init__(self, path: Path | None, local: str | None) -> None:
        self._path = path
        self._local = (
            {} if local is None else {digest_of(local): Caller("local", LOCAL_JOBS, None, CallerRole.ADMINISTRATOR)}
        )
        self._version: tuple[int, ...] | None = None
        self._callers: Mapping[str, Caller] = self._local

    def __call__(self) -> Mapping[str, Caller]:
        """Return all callers by the digests of their tokens."""
        version = self._current_version()
        if version != self._version:
            self._callers = self._local | self._of_file(version)
            self._version = version
        return self._callers

    def _current_version(self) -> tuple[int, ...] | None:
        try:
            facts = None if self._path is None else self._path.stat()
        except FileNotFoundError:
            return None
        return None if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size, facts.st_mode)

    def _of_file(self, version: tuple[int, ...] | None) -> dict[str, Caller]:
        if version is None or self._path is None:
            return {}
        try:
            return {entry.sha256: entry.caller() for entry in read_tokens(self._path)}
        except InvalidInput as error:
            raise Unavailable(
                "the token file must be readable", error.rule, "look at the log of the service"
            ) from error


def load_access(path: str | None, host: str, home: Home, unix_s: Callable[[], float]) -> Access:
    """Return the access rules of a service on `host`: the tokens of the file at `path`, by default that of `home`.

    On loopback the local token is valid too, and made where it is missing. InvalidInput for a broken file, or for a
    host that others can reach without any token.
    """
    local_only = is_loopback(host)
    file = token_file(home) if path is None else Path(path)
    entries = read_tokens(file) if path is not None or file.exists() else []
    if not (entries or local_only):
        rule = "a service that others can reach must have a token file"
        raise InvalidInput(rule, f"--host {host} without --tokens", "see `chorale token create NAME`")
    return Access(TokenCallers(file, local_token(home) if local_only else None), local_only, unix_s)
