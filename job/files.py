"""Reads files named by a user: only regular files of limited size, so that reading never hangs or fills memory."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

from chorale.synth.errors import InvalidInput

MAX_INPUT_BYTES = 2**30

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def open_regular(path: str | Path) -> BinaryIO:
    """Open the regular file at `path` for reading; never blocks. Raises InvalidInput or OSError for other files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # the path contains a zero byte
        raise InvalidInput("cannot read {}", f"{path!r}: {error}", "check the path") from None
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        value = f"{path} ({_KINDS.get(kind, 'something else')})"
        raise InvalidInput("{} is not a regular file", value, "copy its content into a file")
    return open(descriptor, "rb")


def read_file(path: str | Path, max_bytes: int = MAX_INPUT_BYTES) -> bytes:
    """Return the content of the file at `path`. Raises InvalidInput if it has more than `max_bytes` (default: 1 GiB).

    If a path such as examples/quickstart.yaml does not exist, the example of this name in the package is read.
    """
    try:
        with open_regular(_shipped_example(path) or path) as stream:
            too_large = os.fstat(stream.fileno()).st_size > max_bytes
            content = b"" if too_large else stream.read(max_bytes + 1)  # files in /proc report a size of 0
    except OSError as error:
        raise InvalidInput("cannot read {}", f"{path}: {error.strerror}", "check the path") from error
    if too_large or len(content) > max_bytes:
        limit = f"{max_bytes // 2**20} MiB" if max_bytes % 2**30 else f"{max_bytes // 2**30} GiB"
        raise InvalidInput(f"an input file must be at most {limit}", path, "use a smaller file")
    return content


def is_file(path: str | Path) -> bool:
    """Return whether `read_file` finds a file at `path`."""
    return (_shipped_example(path) or Path(path)).is_file()


def _shipped_example(name: str | Path) -> Path | None:
    """Return the path of the package's example if `name` is examples/NAME and this example exists, else None."""
    path = Path(name)
    if path.parts[:1] != ("examples",) or ".." in path.parts or path.exists():
        return None
    folders = Path(__file__).parents[1:3]  # the package's folder and, in a checkout, its parent folder
    return next((folder / path for folder in folders if (folder / path).is_file()), None)
