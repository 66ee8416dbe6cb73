"""What one rank counts, and for how long; its file is there whole or not at all."""

import os
import stat
from pathlib import Path

from chorale.job.record import CallClock, CallCount, CallKey, JobRecorder, read_record, write_whole


def test_calls_under_way_at_once_do_not_count_their_waiting_twice() -> None:
    times = iter([0.0, 1.0, 5.0, 7.0, 10.0, 11.5])
    clock = CallClock(lambda: next(times))
    first, second = clock.start(), clock.start()
    assert (first(), second()) == (5.0, 2.0)
    assert clock.start()() == 1.5


def test_the_file_says_what_was_counted(tmp_path: Path) -> None:
    recorder = JobRecorder(2)
    recorder.add("allgather", "float32", range(2), None, 64, 0.5)
    recorder.add("allgather", "float32", (0, 1), None, 64, 0.25)
    recorder.add("broadcast", "int8", (1, 0), 1, 64, 0.25)
    recorder.write(tmp_path / "job.json")
    assert read_record(tmp_path / "job.json") == recorder.record()
    assert recorder.record().calls == {
        CallKey("allgather", "float32", None, None, 64): CallCount(2, 0.75),
        CallKey("broadcast", "int8", (1, 0), 1, 64): CallCount(1, 0.25),
    }
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for content in (b"first, and longer", b"second"):
        write_whole(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["record.json"]


def test_a_device_stays() -> None:
    write_whole(Path("/dev/null"), b"content")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
