"""Private files and folders: only this user may write them, since they decide which code runs or who may call."""

import os
import pwd
import secrets
import stat
from pathlib import Path

from chorale.runners.measurement.machine import PRIVATE_FILE
from chorale.synth.errors import InvalidInput

_MIN_CHARACTERS = 16


def why_foreign(path: Path) -> str | None:
    """Return why somebody else may have written `path`; None if only this user or root can change it.

    The rules are those of ssh: it checks the owner, then the write permission of others. Write permission of the group
    is allowed if the group's id is this user's id, because systems with such private groups grant it by default.
    """
    status = path.stat()
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        return f"it belongs to {_user_name(status.st_uid)}"
    shared = stat.S_IWOTH if status.st_gid == user else stat.S_IWOTH | stat.S_IWGRP
    if status.st_mode & shared:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def _user_name(user: int) -> str:
    try:
        return f"the user {pwd.getpwuid(user).pw_name}"
    except KeyError:
        return f"the user with the number {user}"


def write_private(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write `content` to a new file of mode 0600 and move it to `path`: completely or not at all.

    replace: whether an existing file may be replaced; if not, FileExistsError is raised
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_secret(path: Path, way_out: str = "remove it: the next start makes a new one") -> str:
    """Return the secret in the file at `path`. Raises InvalidInput if others can read the file or it is unusable."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid != os.geteuid():
        raise InvalidInput("others may read the secret file {}", str(path), way_out)
    secret = path.read_text(errors="replace").strip()
    if len(secret) < _MIN_CHARACTERS:
        rule = f"a secret must have at least {_MIN_CHARACTERS} characters"
        raise InvalidInput(rule, f"{len(secret)} in {path}", way_out)
    return secret
