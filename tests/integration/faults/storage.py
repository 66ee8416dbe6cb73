"""Faults of the disk or file server that has the files of a launch: full, gone, moved away. Needs root."""

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from chorale.tuner.files.home import Home
from tests.integration.faults.launched import Launched, Setting, lasting
from tests.integration.faults.rows import Fault

DISK_BYTES = 64 * 2**20
_SHUT_DOWN = 0x8004587D
"""FS_IOC_GOINGDOWN: from then on a file system answers everything with an error, as a lost file server does."""
_WITHOUT_LOG = 2


def _mount(folder: Path) -> None:
    _do("mount", "-o", "loop", str(folder / "disk"), str(folder / "home"))


def _unmount(folder: Path) -> None:
    _do("umount", "-l", str(folder / "home"))


def _do(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def disk(folder: Path) -> Iterator[Setting]:
    """Give the launch a disk of its own: ext4 in a file."""
    (folder / "home").mkdir()
    with (folder / "disk").open("wb") as image:
        image.truncate(DISK_BYTES)
    _do("mkfs.ext4", "-q", str(folder / "disk"))
    _mount(folder)
    try:
        yield Setting(folder, Home(folder / "home"))
    finally:
        _unmount(folder)


def _filler(launched: Launched) -> Path:
    return launched.home.root / "filler"


def fill(launched: Launched) -> None:
    """Take all room, to the last block, for root too."""
    with _filler(launched).open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))


def make_room(launched: Launched) -> None:
    _filler(launched).unlink()


def shut_down(launched: Launched) -> None:
    root = os.open(launched.home.root, os.O_RDONLY)
    fcntl.ioctl(root, _SHUT_DOWN, struct.pack("I", _WITHOUT_LOG))
    os.close(root)


def mount_again(launched: Launched) -> None:
    """What was on the disk is there again."""
    _unmount(launched.setting.folder)
    _mount(launched.setting.folder)


def move_away(launched: Launched) -> None:
    launched.home.root.rename(launched.home.root.with_name("moved"))


def move_back(launched: Launched) -> None:
    """Whatever was made at the old place makes way."""
    if launched.home.root.exists():
        launched.home.root.rename(launched.home.root.with_name("made-meanwhile"))
    launched.home.root.with_name("moved").rename(launched.home.root)


FAULTS = {
    "disk full for 5 s": Fault(lasting(5.0, fill, make_room), disk),
    "disk full for good": Fault(fill, disk, make_room),
    "file server gone for good": Fault(shut_down, disk, mount_again),
    "folder of the launch moved away": Fault(move_away, mend=move_back),
}
