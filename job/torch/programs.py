"""Which calls of a group programs serve, and their runs: lookups, counts, refusals, errors."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from chorale.job import current_report
from chorale.job.table.lookup import Fallback
from chorale.job.table.model import JobEntry
from chorale.job.torch.inner import ProgramCall, as_bytes
from chorale.job.torch.loaded_table import LoadedTable
from chorale.job.torch.reload import TableReload
from chorale.job.torch.transport import (
    DTYPES,
    MOVED_DTYPES,
    GroupStreams,
    StreamOrder,
    Transport,
    is_captured,
    require_capturable,
)
from chorale.job.torch.work import ProgramWork, WorkQueue
from chorale.runners.engine.library import ReduceOp
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput

_MOST_KEPT = 4096

Key = tuple[str, int | None, Any, int, ReduceOp | None, str]


@dataclass(slots=True)
class GroupPrograms:
    """The programs of one group.

    loaded:  the table that runs
    strict:  whether calls are refused that no entry covers
    limit_s: how long a run may take
    reload:  what takes new tables while the job runs; None where nothing does
    """

    loaded: LoadedTable
    strict: bool
    limit_s: float
    queue: WorkQueue
    reload: TableReload | None = None
    streams: GroupStreams = field(default_factory=GroupStreams)
    _looked_up: dict[Key, JobEntry | Fallback] = field(default_factory=dict)
    _failure: Exception | None = None

    def entry(
        self, collective: str, root: int | None, tensor: Any, size_bytes: int, operation: ReduceOp | None
    ) -> JobEntry | None:
        """Return the entry whose program serves a call; None, counted, where the library is to do so.

        InvalidInput where the table does not cover the call and strict mode refuses that. Every call of a collective
        comes here, in the same order on all ranks.
        """
        if self.reload is not None and (loaded := self.reload.next_call()) is not None:
            self._switch(loaded)
        key = collective, root, tensor.dtype, size_bytes, operation, tensor.device.type
        answer = self._looked_up.get(key)
        if answer is None:
            answer = self._look_up(*key) if tensor.layout is torch.strided else Fallback.LAYOUT
            if len(self._looked_up) < _MOST_KEPT and tensor.layout is torch.strided:
                self._looked_up[key] = answer
        if isinstance(answer, JobEntry):
            return answer
        self.fall_back(answer, collective, tensor.dtype, size_bytes)
        return None

    def fall_back(self, reason: Fallback, collective: str, dtype: Any, size_bytes: int) -> None:
        """Count a call that the library serves; InvalidInput where strict mode refuses it."""
        if self.strict and reason is not Fallback.LIBRARY:
            call = f"{collective} of {size_bytes} bytes of {_name(dtype)}: {reason}"
            way_out = "add an entry for it to the table, `library` if need be, or unset CHORALE_STRICT"
            raise InvalidInput("CHORALE_STRICT=1 runs what the tuning table covers, and nothing else", call, way_out)
        current_report().count_fallback(reason.value, collective, size_bytes)

    def start(self, entry: JobEntry, call: ProgramCall, wait: bool, limit_s: float | None = None) -> ProgramWork:
        """Have the program of `entry` run after those before it; `wait`: the caller waits for it at once.

        InvalidInput where it cannot go into the CUDA graph that is being captured.
        """
        if call.source.dtype in MOVED_DTYPES:
            call = as_bytes(call)
        device = call.source.device
        transport = self.loaded.transports[device.type]
        if is_captured(device):
            require_capturable(transport.is_connected, self.queue.is_idle, call.collective, call.size_bytes)
        order = StreamOrder(device, wait)
        work = ProgramWork(call.results, order)
        run = lambda: self._work_off(work, order, transport, entry, call, limit_s or self.limit_s)  # noqa: E731
        self.queue.do(run, wait or device.type != "cpu")
        return work

    def stop(self, reason: str) -> None:
        """Have runs fail that did not begin yet."""
        self._failure = self._failure or dist.DistBackendError(f"chorale: {reason}")

    def end(self) -> None:
        """Finish what was begun, and end threads and connections. Safe to call twice."""
        if self.reload is not None:
            self.reload.close()
        self.queue.end()
        for transport in self.loaded.transports.values():
            transport.close()

    def _switch(self, loaded: LoadedTable) -> None:
        """Run `loaded` from now on; what was begun ends with the former table."""
        former, self.loaded = self.loaded, loaded
        self._looked_up = {}
        current_report().table = loaded.digest
        self.queue.do(former.close, wait=False)

    def _look_up(
        self, collective: str, root: int | None, dtype: Any, size_bytes: int, operation: ReduceOp | None, device: str
    ) -> JobEntry | Fallback:
        if self.loaded.entries is None:
            return Fallback.NO_TABLE
        moves = dtype in MOVED_DTYPES and not CollectiveName(collective).reduces
        if dtype not in DTYPES and not moves:
            return Fallback.DTYPE
        answer = self.loaded.entries.find(collective, root, _name(dtype), size_bytes)
        if not isinstance(answer, JobEntry):
            return answer
        if size_bytes == 0:
            return Fallback.SIZE
        if operation is None:
            return Fallback.OPERATION
        return answer if device in self.loaded.transports else Fallback.DEVICE

    def _work_off(
        self,
        work: ProgramWork,
        order: StreamOrder,
        transport: Transport,
        entry: JobEntry,
        call: ProgramCall,
        limit_s: float,
    ) -> None:
        with ExitStack() as stack:  # the future of the work remembers the stream on which it is finished
            try:
                stack.enter_context(order.on_stream(self.streams, call.tensors))
                self._run(transport, entry, call, limit_s)
                order.end()
            except Exception as error:  # goes to who waits for the work
                self._failure = self._failure or _failure(error, entry, call)
                work.finish(self._failure)
            else:
                work.finish()

    def _run(self, transport: Transport, entry: JobEntry, call: ProgramCall, limit_s: float) -> None:
        if self._failure is not None:
            raise self._failure
        assert entry.program is not None
        assert call.operation is not None
        start = perf_counter()
        transport.run(entry, call.collective, call.source, call.target, call.operation, limit_s)
        if call.finish is not None:
            with torch.no_grad():
                call.finish()
        current_report().count_program(entry.program, call.collective, call.size_bytes, perf_counter() - start)


def _failure(error: Exception, entry: JobEntry, call: ProgramCall) -> Exception:
    name = f"{call.collective} of {call.size_bytes} bytes by program {(entry.program or '')[:12]}"
    failure: Exception = dist.DistBackendError(f"chorale: {name}: {error}; this group can run no more programs")
    return failure


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
