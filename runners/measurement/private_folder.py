"""Folders that only this user enters: nobody else can plant files in them, or rename what they hold."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from chorale.synth.errors import Unavailable

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
SYSTEM_RUNTIME = Path("/run/user")
_OTHERS = 0o077


def runtime_folder() -> Path:
    """Return this user's folder for locks and sockets, made if it is missing; Unavailable if there can be none.

    It is the first of $XDG_RUNTIME_DIR/chorale, /run/user/UID/chorale, one in the temporary folder and one in the home
    folder that is a folder of this user: names that others took before, also by links, are passed over.
    """
    user = os.geteuid()
    temporary = Path(tempfile.gettempdir())
    parents = [os.environ.get("XDG_RUNTIME_DIR"), str(SYSTEM_RUNTIME / str(user))]
    folders = [Path(parent) / "chorale" for parent in parents if parent and Path(parent).is_dir()]
    return _first_private([*folders, temporary / f"chorale-{user}", Path(os.path.expanduser("~")) / ".chorale-run"])


def temporary_folder(max_path_bytes: int = 4096) -> Path:
    """Return this user's folder for short-lived files on a disk, made if it is missing.

    Its path has at most `max_path_bytes`, as sockets may lie below it: the system takes 107 bytes for them.
    """
    name = f"chorale-{os.geteuid()}"
    parents = dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))  # noqa: S108 - owner and mode are checked
    folders = [Path(parent) / name for parent in parents]
    return _first_private(folder for folder in folders if len(os.fsencode(folder)) <= max_path_bytes)


def make_private(folder: Path) -> bool:
    """Make `folder` with mode 0700 or check that it is one of this user; return whether it is safe to use."""
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    except OSError:  # also where something else than a folder has the name
        return False
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if stat.S_IMODE(status.st_mode) & _OTHERS:
        folder.chmod(PRIVATE_FOLDER)
    return True


def _first_private(folders: Iterable[Path]) -> Path:
    refused = []
    for folder in folders:
        if make_private(folder):
            return folder
        refused.append(str(folder))
    rule, way_out = "a folder of this user alone must be possible", "let XDG_RUNTIME_DIR name a folder of yours"
    raise Unavailable(rule, f"others have {', '.join(refused)}", way_out)
