"""Which thread does what: a thread of the group for the processor's memory, the caller's for an accelerator."""

import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="RUNS BY THE BACKEND FOR TORCH ARE NOT TESTED: torch is not installed")

from chorale.job.table.model import ANY_DTYPE, JobEntry
from chorale.job.torch import programs
from chorale.job.torch import transport as streams
from chorale.job.torch.programs import GroupPrograms
from chorale.job.torch.transport import LoadedTable
from chorale.job.torch.work import WorkQueue
from chorale.runners.engine.library import ReduceOp

ENTRY = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, "program")


@dataclass(frozen=True)
class Device:
    type: str


@pytest.mark.parametrize(("device", "is_caller"), [("cpu", False), ("cuda", True)])
def test_a_call_that_does_not_wait(device: str, is_caller: bool, monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []
    is_over = threading.Event()
    transport: Any = SimpleNamespace(is_connected=True, run=lambda *call: threads.append(threading.get_ident()))
    stream = SimpleNamespace(record_event=lambda: None, wait_event=lambda event: None)
    module = SimpleNamespace(
        current_stream=lambda device: stream, Stream=lambda device: stream, stream=lambda stream: monkeypatch.context()
    )
    monkeypatch.setattr(streams.torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(streams.torch.cuda, "is_current_stream_capturing", lambda: False)
    finished = SimpleNamespace(finish=lambda *error: is_over.set())
    monkeypatch.setattr(programs, "ProgramWork", lambda results, order: finished)
    queue = WorkQueue("test")
    group = GroupPrograms(LoadedTable("", None, {device: transport}), False, 1.0, queue)
    source = SimpleNamespace(device=Device(device), dtype=streams.torch.float32)
    call: Any = SimpleNamespace(
        source=source, target=source, tensors=[], results=[], collective="allreduce", size_bytes=4, finish=None
    )
    call.operation = ReduceOp.SUM
    group._start(transport, ENTRY, call, None)
    assert is_over.wait(10)
    queue.end()
    assert (threads == [threading.get_ident()]) == is_caller
    assert len(threads) == 1
