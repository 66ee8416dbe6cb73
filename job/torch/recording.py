"""A process group that records its calls. A record has collective, element type, group, size, call count and time."""

from __future__ import annotations

import atexit
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch.distributed as dist

from chorale.job import current_report, report
from chorale.job.record import CallClock, JobRecorder, write_whole
from chorale.job.torch.process_group import ChoraleGroup
from chorale.job.torch.programs import size_of
from chorale.job.torch.reload import PeriodicThread


class RecordingGroup(ChoraleGroup):
    """A group that records all its calls, whether a program or the inner group handles them."""

    recorder: JobRecorder
    members: Sequence[int]
    calls: CallClock

    def record_in(self, recorder: JobRecorder, members: Sequence[int]) -> None:
        """Count calls in `recorder` from now on. `members`: ranks of the job in the group's order."""
        self.recorder, self.members, self.calls = recorder, members, CallClock()

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """See torch.distributed.all_reduce_coalesced. Each tensor counts as one call; these calls end together."""
        counts = [self._count("allreduce", None, tensor, 1) for tensor in tensors]
        return _counting(super().allreduce_coalesced(tensors, opts), lambda: [count() for count in counts])

    def _count(self, collective: str, root: int | None, tensor: Any, times: int) -> Callable[[], None]:
        """Start timing a call. The returned function counts it; call it when the collective has ended."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        size_bytes = size_of(tensor) * times
        end = self.calls.start()
        return lambda: self.recorder.add(collective, dtype, self.members, root, size_bytes, end())


def _recorded(name: str, collective: str, position: int, has_root: bool = False) -> None:
    """Make the method `name` of RecordingGroup record each call when it ends.

    position: index of the argument with the whole vector, which is a tensor or a list of one tensor. If the argument is
              a list of lists, the vector's size is the size of the shard in the other argument times the rank count.
    """
    call = getattr(ChoraleGroup, name)

    def recorded(self: RecordingGroup, *arguments: Any, **more: Any) -> Any:
        whole, times = arguments[position], 1
        if isinstance(whole, list | tuple):
            is_shard = isinstance(whole[0], list | tuple)
            whole, times = (arguments[1 - position][0], self._ranks) if is_shard else (whole[0], 1)
        options = arguments[1] if len(arguments) > 1 else more.get("opts")
        root = options if isinstance(options, int) else int(getattr(options, "rootRank", more.get("root", 0)))
        count = self._count(collective, root if has_root else None, whole, times)
        return _counting(call(self, *arguments, **more), count)

    setattr(RecordingGroup, name, recorded)


_recorded("allreduce", "allreduce", 0)
_recorded("broadcast", "broadcast", 0, has_root=True)
_recorded("reduce", "reduce", 0, has_root=True)
_recorded("allgather", "allgather", 0)
_recorded("all_gather_single", "allgather", 0)
_recorded("reduce_scatter", "reduce_scatter", 1)
_recorded("reduce_scatter_single", "reduce_scatter", 1)
_recorded("all_to_all_single", "alltoall", 1)


class WaitedWork(dist.Work):  # type: ignore[misc]
    """Wraps a `Work` that has no future, as in a Gloo reduce-scatter. The wrapper's `wait` also counts the call."""

    def __init__(self, work: Any, count: Callable[[], object]) -> None:
        super().__init__()
        self._work, self._count = work, count
        self._is_counted = False

    def wait(self, *limit: Any) -> Any:
        done = self._work.wait(*limit)
        if not self._is_counted:
            self._is_counted = True
            self._count()
        return done

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> Any:
        return self._work.is_completed()

    def result(self) -> Any:
        return self._work.result()


def _counting(work: Any, count: Callable[[], object]) -> Any:
    """Arrange for `count` to be called when `work` ends; return `work` or a wrapper around it."""
    if work is None:
        return None
    try:
        future = work.get_future()
    except (RuntimeError, NotImplementedError):
        return WaitedWork(work, count)
    future.add_done_callback(lambda _: count())
    return work


@cache
def report_at_end(where: str | None) -> Callable[[], None]:
    """Return a function that writes this process's report if the report has changed since the last time. The function
    is also called when the process ends.

    where: path of a file; `-` to print one line on stderr; None to write nothing
    """
    written = ""

    def write() -> None:
        nonlocal written
        text = json.dumps(report(), indent=1) + "\n"
        if where is None or text == written:
            return
        written = text
        try:
            if where == "-":
                record = report()
                ran = sum(entry["calls"] for entry in record["programs"])
                fell = ", ".join(
                    f"{each['calls']} {each['collective']}: {each['reason']}" for each in record["fallbacks"]
                )
                line = f"chorale: {ran} collectives ran tuned programs; the library's own: {fell or 'none'}"
                sys.stderr.write(f"{line}\n")
            else:
                Path(where).write_text(text, encoding="utf-8")
        except OSError as error:  # a missing report must not make the job fail
            sys.stderr.write(f"chorale: the report could not be written: {error}\n")

    if where is not None:
        atexit.register(write)
    return write


class StatusFile:
    """Keeps a file with this process's report up to date until `close`. The report includes calls and seconds by size.

    Other programs watch the job through this file. Each update replaces the file atomically.
    """

    def __init__(self, path: Path, period_s: float = 1.0) -> None:
        self._path = path
        self._thread = PeriodicThread("chorale-status", period_s, self._write)

    def close(self) -> None:
        """Write the file once more and stop updating it. Safe to call twice."""
        self._thread.close()
        self._write()

    def _write(self) -> bool:
        record = {**report(), "sizes": current_report().sizes()}
        try:
            write_whole(self._path, json.dumps(record).encode())
        except OSError as error:  # a missing status file must not make the job fail
            sys.stderr.write(f"chorale: the status could not be written: {error}\n")
        return True
