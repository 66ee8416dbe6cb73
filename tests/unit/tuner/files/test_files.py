"""Files are written whole or not at all."""

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from chorale.job.files import read_file
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.costs.pricing import load_profile
from chorale.tuner.files.home import write_file
from chorale.tuner.files.machine_files import MachineOptions, read_network
from chorale.tuner.replay.tasks import read_records

READERS: dict[str, Callable[[Path], object]] = {
    "a profile": lambda path: load_profile(str(path)),
    "a record": lambda path: read_records([path]),
    "a network": lambda path: read_network(str(path), MachineOptions()),
}


@pytest.mark.parametrize("reader", READERS)
def test_readers_take_small_regular_files_only(reader, tmp_path):
    """A file of 1 GiB that says nothing, and what is no file: nothing is read, and nobody waits."""
    large, pipe, zero, listening = (tmp_path / f"{name}.json" for name in ("large", "pipe", "zero", "socket"))
    large.touch()
    os.truncate(large, 2**30)
    os.mkfifo(pipe)
    zero.symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(listening))
    no_file = "is not a regular file"
    for path, words in ((large, "must be at most"), (pipe, no_file), (zero, no_file), (listening, "cannot read")):
        with pytest.raises(InvalidInput, match=words):
            READERS[reader](path)


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "file"
    write_file(path, b"first")
    write_file(path, b"second")
    assert read_file(str(path)) == b"second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_what_is_no_file_is_written_to_and_a_folder_is_refused(tmp_path):
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_file(pipe, b"content")
    reader.join(10)
    assert received == [b"content"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write_file("/dev/null", b"content")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(Unavailable, match="cannot write"):
        write_file(tmp_path, b"content")
    with pytest.raises(InvalidInput, match="does not exist"):
        write_file(tmp_path / "missing" / "file", b"")
    with pytest.raises(InvalidInput, match=r"/dev/zero \(a device\) is not a regular file"):
        read_file("/dev/zero", 2**20)
    with pytest.raises(InvalidInput, match="cannot read"):
        read_file(str(tmp_path / "missing"))
    huge = tmp_path / "huge"
    with huge.open("wb") as stream:
        stream.truncate(2**30 + 1)
    with pytest.raises(InvalidInput, match="at most 1 GiB"):
        read_file(str(huge))


def test_a_stream_of_the_process_is_written_to(tmp_path):
    command = "from chorale.tuner.files.home import write_file; write_file('/dev/stdout', b'content')"
    with (tmp_path / "file").open("wb") as output:
        subprocess.run([sys.executable, "-c", command], stdout=output, check=True)
    assert (tmp_path / "file").read_bytes() == b"content"
    assert os.path.islink("/dev/stdout")
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, check=True)
    assert done.stdout == b"content"


def test_a_disk_that_fails_meanwhile_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"old")
    faults = [OSError(errno.EIO, "Input/output error"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))]
    monkeypatch.setattr(os, "fsync", lambda _descriptor: (_ for _ in ()).throw(faults.pop()) if faults else None)
    with pytest.raises(Unavailable, match="No space left on device; free some space"):
        write_file(file, b"new")
    with pytest.raises(Unavailable, match="Input/output error"):
        write_file(file, b"new" * 50)
    assert file.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
