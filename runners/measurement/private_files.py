"""Creates and checks files and folders that only this user may write: they contain code, locks or secrets."""

import grp
import logging
import os
import pwd
import secrets
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from chorale.synth.errors import InvalidInput, Unavailable

_log = logging.getLogger("chorale.private")

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
SYSTEM_RUNTIME = Path("/run/user")
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - owner and mode are checked
_OTHERS = 0o077
_HOME_FOLDER = ".chorale-run"
_MIN_CHARACTERS = 16
_ACCESS_LIST = "system.posix_acl_access"
_OVERFLOW_USER = 65534
"""User id that Linux shows in a user namespace for users without an id there."""


def runtime_folder() -> Path:
    """Create this user's folder for locks and sockets if necessary; return its path. Raises Unavailable on failure.

    The candidates are $XDG_RUNTIME_DIR/chorale, /run/user/UID/chorale, a folder in the temporary folder and one in the
    home folder. The first one that belongs to this user is taken; files and links of other users are skipped.
    """
    user = os.geteuid()
    temporary = Path(tempfile.gettempdir())
    parents = [os.environ.get("XDG_RUNTIME_DIR"), str(SYSTEM_RUNTIME / str(user))]
    folders = [Path(parent) / "chorale" for parent in parents if parent and Path(parent).is_dir()]
    return _first_private([*folders, temporary / f"chorale-{user}", Path(os.path.expanduser("~")) / _HOME_FOLDER])


def temporary_folder(max_path_bytes: int = 4096) -> Path:
    """Return this user's folder on a disk for short-lived files; create it if necessary.

    The folder is in the home folder if other users have taken its name in the folders for temporary files. Its path has
    at most `max_path_bytes` bytes, because the paths of sockets in the folder are limited to 107 bytes.
    """
    name = f"chorale-{os.geteuid()}"
    parents = dict.fromkeys((tempfile.gettempdir(), *TEMPORARY))
    folders = [*(Path(parent) / name for parent in parents), Path(os.path.expanduser("~")) / _HOME_FOLDER]
    return _first_private(folder for folder in folders if len(os.fsencode(folder)) <= max_path_bytes)


def make_private(folder: Path) -> bool:
    """Create `folder` with mode 0700, or check that nobody else can have written to it. Return whether it is safe.

    If other users may read the folder, their access is removed. If they may write to it, the folder is refused and not
    changed, because its content may come from them.
    """
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or why_foreign(folder) is not None:
            return False
        if stat.S_IMODE(status.st_mode) & _OTHERS:
            folder.chmod(PRIVATE_FOLDER)
    except OSError:  # for example, the path is not a folder
        return False
    return True


def _first_private(folders: Iterable[Path]) -> Path:
    refused = []
    for folder in folders:
        if make_private(folder):
            return folder
        refused.append(str(folder))
    rule, way_out = "no folder belongs to this user alone: {}", "set XDG_RUNTIME_DIR and TMPDIR to your own folders"
    raise Unavailable(rule, f"others have {', '.join(refused)}", way_out)


def why_foreign(path: Path) -> str | None:
    """Return a reason why somebody else may have written `path`, or may replace it; None if only this user or root can.

    The rules are the same as ssh's: every folder and link on the way to `path` belongs to this user or root, and nobody
    else may write to them; folders above `path` may have the sticky bit instead, as /tmp has. For root, folders above
    `path` may also belong to other users, for example a mounted folder of the user who started a container.
    """
    user, waiting, seen = os.geteuid(), [(path.absolute(), False)], set[tuple[Path, bool]]()
    while waiting:
        end, leads_on = waiting.pop()
        for place, is_above in ((place, leads_on or place != end) for place in (end, *end.parents)):
            if (place, is_above) in seen or not os.path.lexists(place):
                continue
            seen.add((place, is_above))
            status = place.lstat()
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link:
                waiting.append((place.parent / place.readlink(), is_above))
            is_trusted = is_above and not is_link and (user == 0 or _is_unmapped(status.st_uid))
            is_sticky = is_above and bool(status.st_mode & stat.S_ISVTX)
            if status.st_uid not in (user, 0) and not is_trusted:
                try:
                    reason = f"it belongs to the user {pwd.getpwuid(status.st_uid).pw_name}"
                except KeyError:
                    reason = f"it belongs to the user with the number {status.st_uid}"
            elif not is_link and not is_sticky and _others_write(place, status):
                reason = f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
            else:
                continue
            return reason if place == path.absolute() else f"{place}: {reason}"
    return None


def _others_write(place: Path, status: os.stat_result) -> bool:
    """Return whether users other than root and this one may write to a file or folder.

    Group write permission is harmless if this user is the group's only member, and many systems with such private
    groups grant it by default. If there is an access control list, group write permission counts as harmful, because
    the group's bits are then the mask of the list.
    """
    if status.st_mode & stat.S_IWOTH or not status.st_mode & stat.S_IWGRP:
        return bool(status.st_mode & stat.S_IWOTH)
    try:
        if status.st_gid != os.geteuid() or _ACCESS_LIST in os.listxattr(place):
            return True
    except OSError:  # a file system without such attributes
        _log.debug("no access control lists at %s", place)
    try:
        group, owner = grp.getgrgid(status.st_gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # the system knows no such group or user
        return False
    others = {entry.pw_name for entry in pwd.getpwall() if entry.pw_gid == group.gr_gid} | {*group.gr_mem}
    return bool(others - {owner})


def _is_unmapped(user: int) -> bool:
    """Return whether the user id `user` represents all users outside this namespace, such as the host's root."""
    namespace = Path("/proc/self/uid_map")
    is_whole = not namespace.exists() or namespace.read_text().split() == ["0", "0", str(2**32 - 1)]
    return user == _OVERFLOW_USER and not is_whole


def write_private(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write `content` to a new file of mode 0600 and move it to `path`, so that it is written completely or not at all.

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


def read_secret(path: Path, way_out: str = "remove it; a new one is created at the next start") -> str:
    """Return the secret in the file at `path`.

    Raises InvalidInput, with the hint `way_out`, if others may read or replace the file, or if its text is unusable.
    """
    status = path.lstat()
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and why_foreign(path) is None
    if not is_ours or status.st_mode & _OTHERS:
        raise InvalidInput("others may read the secret file {}", str(path), way_out)
    secret = path.read_text(errors="replace").strip()
    if not (secret.isascii() and secret.isprintable()):  # a power failure can leave zeros
        raise InvalidInput("a secret must be printable text, got other bytes in {}", str(path), way_out)
    if len(secret) < _MIN_CHARACTERS:
        rule = f"a secret must have at least {_MIN_CHARACTERS} characters"
        raise InvalidInput(rule, f"{len(secret)} in {path}", way_out)
    return secret
