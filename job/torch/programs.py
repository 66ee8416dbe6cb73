"""Runs a table's programs for a group's collectives. Counts calls without a program; strict mode may refuse them."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from chorale.job import current_report
from chorale.job.table.layout import Fallback, JobEntry
from chorale.job.torch.reload import TableReload
from chorale.job.torch.transport import (
    MOVED_DTYPES,
    LoadedTable,
    StreamOrder,
    Transport,
    is_captured,
    require_capturable,
)
from chorale.job.torch.work import ProgramWork, WorkQueue
from chorale.runners.device.memory import DTYPES
from chorale.runners.engine.library import ReduceOp
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput

_KINDS = c10d.ReduceOp.RedOpType
_OPERATIONS = {
    _KINDS.SUM: ReduceOp.SUM,
    _KINDS.AVG: ReduceOp.AVG,
    _KINDS.MIN: ReduceOp.MIN,
    _KINDS.MAX: ReduceOp.MAX,
    _KINDS.PRODUCT: ReduceOp.PROD,
}
"""Maps torch's reduce operations to the engine's operations. They are looked up for every call."""
Key = tuple[str, int | None, Any, int, ReduceOp | None, str]


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A torch collective call in the form that a program run needs.

    collective:     name of the collective, as in tables
    root:           root of a broadcast or reduce, else None
    source, target: tensors for `Transport.run`
    operation:      reduce operation; None if programs do not support it
    results:        the caller's output tensors, which become the value of the `Work`'s future
    finish:         function to call after the run, to copy the output to the caller's tensors; None if not needed
    """

    collective: str
    root: int | None
    source: Any
    target: Any
    operation: ReduceOp | None
    results: Any
    finish: Callable[[], None] | None = None

    @property
    def tensors(self) -> list[Any]:
        """Return all tensors of the caller that the run reads or writes."""
        lists = [result if isinstance(result, list) else [result] for result in self.results]
        return [self.source, self.target, *(tensor for tensors in lists for tensor in tensors)]

    @property
    def size_bytes(self) -> int:
        return int(max(self.source.nbytes, self.target.nbytes))


def reduce_operation(operation: Any) -> ReduceOp | None:
    """Return the engine's operation for torch's `operation`, or None if the engine lacks it."""
    return _OPERATIONS.get(operation.op)


def in_place(collective: str, tensor: Any, operation: ReduceOp | None, root: int | None = None) -> ProgramCall:
    """Return the `ProgramCall` for an in-place allreduce or broadcast of `tensor`."""
    whole = tensor.detach().contiguous()
    return ProgramCall(collective, root, whole, whole, operation, [tensor], _copy_back(tensor, whole))


def reduce_to(tensor: Any, operation: ReduceOp | None, root: int, is_root: bool) -> ProgramCall:
    """Return the `ProgramCall` for a reduce. `tensor` changes only on the root."""
    whole = tensor.detach().contiguous()
    target = whole if is_root else torch.empty_like(whole)
    return ProgramCall(
        "reduce", root, whole, target, operation, [tensor], _copy_back(tensor, whole) if is_root else None
    )


def into(collective: str, output: Any, source: Any, operation: ReduceOp | None = ReduceOp.SUM) -> ProgramCall:
    """Return the `ProgramCall` for a collective with separate input and output."""
    whole = output.detach()
    target = whole if whole.is_contiguous() else torch.empty_like(whole, memory_format=torch.contiguous_format)
    return ProgramCall(
        collective, None, source.detach().contiguous(), target, operation, [output], _copy_back(output, target)
    )


def gather_list(outputs: Sequence[Any], source: Any) -> ProgramCall:
    """Return the `ProgramCall` for an allgather into a list of tensors with equal sizes."""
    target = source.new_empty(len(outputs) * source.numel())

    def finish() -> None:
        for output, part in zip(outputs, target.chunk(len(outputs)), strict=True):
            output.copy_(part.view(output.shape))

    return ProgramCall("allgather", None, source.detach().contiguous(), target, ReduceOp.SUM, [list(outputs)], finish)


def scatter_list(output: Any, sources: Sequence[Any], operation: ReduceOp | None) -> ProgramCall:
    """Return the `ProgramCall` for a reduce_scatter from a list of tensors with equal sizes."""
    source = torch.cat([each.detach().reshape(-1) for each in sources])
    return into("reduce_scatter", output, source, operation)


def size_of(tensor: Any) -> int:
    """Return the total size of the elements of `tensor` in bytes; for a sparse tensor, only of the stored values."""
    if tensor.layout is torch.strided:
        return int(tensor.nbytes)
    return int(tensor._values().nbytes if tensor.is_sparse else tensor.numel() * tensor.element_size())


def padded(
    collective: str, source: Any, sizes: Sequence[int], outputs: Sequence[Any], results: Any, largest: int
) -> ProgramCall:
    """Return the `ProgramCall` for shards that are padded to `largest` elements each.

    sizes:   number of elements of each shard; shards are consecutive in `source`
    outputs: tensors for the received shards, indexed by rank
    """
    given = source.new_zeros(len(sizes), largest)
    for row, part in zip(given, source.detach().reshape(-1).split(list(sizes)), strict=True):
        row[: part.numel()] = part
    target = source.new_empty(len(outputs), largest)

    def finish() -> None:
        for output, row in zip(outputs, target, strict=True):
            output.detach().copy_(row[: output.numel()].view(output.shape))

    return ProgramCall(collective, None, given.view(-1), target.view(-1), ReduceOp.SUM, results, finish)


def same_sizes(tensors: Sequence[Any], like: Any) -> bool:
    """Return whether each of `tensors` has the same number of elements and the same element type as `like`."""
    return all(tensor.numel() == like.numel() and tensor.dtype == like.dtype for tensor in tensors)


def _copy_back(tensor: Any, whole: Any) -> Callable[[], None] | None:
    if whole.data_ptr() == tensor.data_ptr():
        return None
    return lambda: tensor.detach().copy_(whole.view(tensor.shape))


@dataclass(slots=True)
class GroupPrograms:
    """Runs a table's programs for the collective calls of one group.

    loaded:  the current table
    strict:  whether to refuse calls that no entry covers
    limit_s: time limit of a run, in seconds
    queue:   runs the programs in the order of the calls
    reload:  object that loads new tables while the job runs; None in jobs that never reload tables
    streams: maps each accelerator device to the group's stream
    """

    loaded: LoadedTable
    strict: bool
    limit_s: float
    queue: WorkQueue
    reload: TableReload | None = None
    streams: dict[Any, Any] = field(default_factory=dict)
    _looked_up: dict[Key, JobEntry | Fallback] = field(default_factory=dict)
    _failure: Exception | None = None

    def serve(
        self,
        collective: str,
        root: int | None,
        tensor: Any,
        size_bytes: int | None,
        operation: ReduceOp | None,
        make: Callable[[], ProgramCall],
        options: Any,
    ) -> ProgramWork | None:
        """Start the program for a collective call and return its `Work`. If the library must handle the call, count the
        reason and return None.

        All ranks must call this for every collective, in the same order.

        size_bytes: size of the whole vector; None if `tensor` is the whole vector
        make:       function that creates the call; called only if a program runs
        options:    torch's options, which may contain a time limit and whether the caller waits

        Raises InvalidInput if the table does not cover the call in strict mode, or if a CUDA graph is being captured
        and the program cannot be part of it.
        """
        if self.reload is not None:
            self.reload.calls += 1
            if self.reload.calls >= self.reload.hold and (loaded := self.reload.settle()) is not None:
                self._switch(loaded)
        size_bytes = size_of(tensor) if size_bytes is None else size_bytes
        key = collective, root, tensor.dtype, size_bytes, operation, tensor.device.type
        answer = self._looked_up.get(key) if tensor.layout is torch.strided else Fallback.LAYOUT
        if answer is None:
            answer = self._look_up(*key)
            if len(self._looked_up) < 4096:
                self._looked_up[key] = answer
        if not isinstance(answer, JobEntry):
            self.fall_back(answer, collective, tensor.dtype, size_bytes)
            return None
        call = make()
        if call.source.dtype in MOVED_DTYPES:  # programs cannot add these types, so move their bytes
            source, target = (each.view(-1).view(torch.uint8) for each in (call.source, call.target))
            call = replace(call, source=source, target=target)
        transport = self.loaded.transport(answer, call.source.device.type, call.size_bytes)
        assert not isinstance(transport, Fallback)
        return self._start(transport, answer, call, options)

    def _start(self, transport: Transport, entry: JobEntry, call: ProgramCall, options: Any) -> ProgramWork:
        """Queue a program run. If the caller waits and the queue is empty, run it immediately."""
        device, wait = call.source.device, not getattr(options, "asyncOp", True)
        timeout = getattr(options, "timeout", None)
        limit_s = timeout.total_seconds() if timeout else 0.0  # negative if the caller set no timeout
        limit_s = limit_s if limit_s > 0 else self.limit_s
        if is_captured(device):
            require_capturable(transport.is_connected, self.queue.is_idle, call.collective, call.size_bytes)
        order = StreamOrder(device, wait)
        work = ProgramWork(call.results, order)

        def run() -> None:
            with ExitStack() as stack:  # the future records the stream that is current when it is completed
                try:
                    stack.enter_context(order.on_stream(self.streams, call.tensors))
                    self._run(transport, entry, call, limit_s)
                    order.end()
                except Exception as error:  # raised to callers that wait for the work
                    work.finish(error)
                else:
                    work.finish()

        self.queue.do(run, wait or device.type != "cpu")
        return work

    def has(self, collective: str) -> bool:
        """Return whether the table has a program for `collective` on this group. All ranks get the same result."""
        entries = self.loaded.entries.entries if self.loaded.entries is not None else ()
        return any(entry.collective == collective and entry.program is not None for entry in entries)

    def fall_back(self, reason: Fallback, collective: str, dtype: Any, size_bytes: int) -> None:
        """Count a call that the library handles. In strict mode, raise InvalidInput unless an entry names `library`."""
        if self.strict and reason is not Fallback.LIBRARY:
            call = f"{collective} of {size_bytes} bytes of {_name(dtype)}: {reason}"
            way_out = "add an entry for it to the table, `library` if need be, or unset CHORALE_STRICT"
            raise InvalidInput("CHORALE_STRICT=1, and the tuning table does not cover {}", call, way_out)
        current_report().count_fallback(reason.value, collective, size_bytes)

    def stop(self, reason: str) -> None:
        """Let every queued run that has not started fail, with `reason` as its message."""
        self._failure = self._failure or dist.DistBackendError(f"chorale: {reason}")

    def end(self) -> None:
        """Finish all started runs, stop the threads and close the connections. Safe to call twice."""
        if self.reload is not None:
            self.reload.close()
        self.queue.end()
        for transport in (*self.loaded.transports.values(), *self.loaded.owned):
            transport.close()

    def _switch(self, loaded: LoadedTable) -> None:
        """Use the table `loaded` from now on. Runs that have started still use the previous table."""
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
        found = self.loaded.transport(answer, device, size_bytes)
        return found if isinstance(found, Fallback) else answer

    def _run(self, transport: Transport, entry: JobEntry, call: ProgramCall, limit_s: float) -> None:
        if self._failure is not None:
            raise self._failure
        assert entry.program is not None
        assert call.operation is not None
        start = perf_counter()
        try:
            transport.run(entry, call.collective, call.source, call.target, call.operation, limit_s)
        except Exception as error:
            name = f"{call.collective} of {call.size_bytes} bytes by program {entry.program[:12]}"
            failure = dist.DistBackendError(f"chorale: {name}: {error}; this group can run no more programs")
            self._failure = self._failure or failure
            raise self._failure from error
        if call.finish is not None:  # if the output cannot be written, only this call fails
            with torch.no_grad():
                call.finish()
        current_report().count_program(
            entry.program, call.collective, call.size_bytes, perf_counter() - start, transport.by
        )


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
