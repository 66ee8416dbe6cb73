"""What keeps a local Ray cluster to its user: the token, the session folder, the addresses that it listens on."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chorale.runners.measurement.machine import PRIVATE_FILE, PRIVATE_FOLDER, temporary_folder
from chorale.runners.measurement.private_files import write_private
from chorale.synth.errors import Unavailable

TOKEN_BYTES = 32
_OTHERS = 0o077
_LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray keeps to loopback where this is off, as it does by default on systems whose firewall asks about open ports."""
MAX_PARENT_BYTES = 36
"""Ray puts sockets at up to 70 characters below it, and the system takes paths of 107 bytes."""

_log = logging.getLogger("chorale.cluster")


def secure_token() -> None:
    """Make Ray's token file for this user alone before Ray makes it for everybody, or take it from others again.

    Without a home folder that can be written the file lies in a temporary folder of this user. RAY_AUTH_TOKEN, and
    other modes than the token's, are left to who set them.
    """
    if os.environ.get("RAY_AUTH_TOKEN_PATH") == "":
        del os.environ["RAY_AUTH_TOKEN_PATH"]  # Ray would take it for the name of a file
    if "RAY_AUTH_TOKEN" in os.environ or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    path = _token_path()
    try:
        _create_token(path)
    except FileExistsError:
        _tighten(path)
    except OSError as error:
        way_out = "let RAY_AUTH_TOKEN_PATH name a file in a folder of yours"
        raise Unavailable("Ray's token must have a file", f"{path}: {error.strerror}", way_out) from error


def session_parent() -> Path:
    """Return the folder of sessions of Ray, which Ray opens to everybody, inside one that only this user enters."""
    return temporary_folder(MAX_PARENT_BYTES) / "ray"


@contextmanager
def on_loopback() -> Iterator[None]:
    """Let a cluster that starts in this block, and its processes, listen on loopback alone."""
    from ray._private import ray_constants  # noqa: PLC0415 - after the settings that Ray reads at its import

    before, variable = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(_LOOPBACK_VARIABLE)
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ[_LOOPBACK_VARIABLE] = "0"
    mask = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(mask)
        ray_constants.ENABLE_RAY_CLUSTER = before
        os.environ.pop(_LOOPBACK_VARIABLE)
        if variable is not None:
            os.environ[_LOOPBACK_VARIABLE] = variable


def _token_path() -> Path:
    if named := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return Path(named).expanduser()
    home = Path(os.path.expanduser("~"))
    if os.access(home, os.W_OK):
        return home / ".ray" / "auth_token"
    path = temporary_folder() / "auth_token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
    return path


def _create_token(path: Path) -> None:
    path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    write_private(path, secrets.token_hex(TOKEN_BYTES).encode(), replace=False)


def _tighten(path: Path) -> None:
    """Take the token from other users; who has it runs code in every cluster that knows it."""
    status = path.stat()
    if stat.S_IMODE(status.st_mode) & _OTHERS and status.st_uid == os.geteuid():
        with suppress(OSError):  # a read-only file, such as a secret that a container mounts
            path.chmod(PRIVATE_FILE)
            _log.warning("other users could read Ray's token %s until now: make a new one if any did", path)
