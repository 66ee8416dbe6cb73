"""Moves the data of programs: with the engine if tensors are in CPU memory, else with batched messages or kernels."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from time import monotonic
from typing import Any, Protocol

import torch

from chorale.job.group import GroupEngine
from chorale.job.table.layout import Fallback, GroupEntries, JobEntry, TableProgram
from chorale.runners.device.memory import DTYPES, copy_shards
from chorale.runners.device.plans import GroupPlans
from chorale.runners.engine.library import ReduceOp, Work
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.fabric import RailFabric
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from chorale.synth.programs.rounds import LocalStep, RankRounds, Round, rounds_of
from chorale.synth.targets.lift import lift

_MOVED = "bool int16 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e8m0fnu float8_e4m3fnuz float8_e5m2fnuz"
MOVED_DTYPES = frozenset(getattr(torch, name) for name in _MOVED.split() if hasattr(torch, name))
"""Element types that programs can move (as bytes) but not add."""
_COMBINE: Mapping[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PROD: torch.mul,
}


class Transport(Protocol):
    """Runs programs for one group on one type of device. Only one thread may call it at a time, and all ranks must make
    the same calls in the same order.

    by:           name of the transport in reports
    is_connected: whether all ranks are connected, so that a run can be captured in a CUDA graph
    """

    by: str

    @property
    def is_connected(self) -> bool: ...

    def run(
        self, entry: JobEntry, collective: str, source: Any, target: Any, operation: ReduceOp, limit_s: float
    ) -> None:
        """Run the program of `entry`. Return when `target` is complete; raise an error if that takes longer than about
        `limit_s`. On an accelerator, return when the run is enqueued on the current stream; if the run hangs, the inner
        group ends it.

        source, target: contiguous input and output tensors on the device, the same tensor for an in-place call. Both
                        have the size of the whole vector, except an allgather's input and a reduce_scatter's output.
        """

    def close(self) -> None:
        """End connections. Safe to call twice."""


class EngineTransport(GroupEngine):
    """Runs programs with the group's engine, on tensors in CPU memory."""

    by, is_connected = "engine", True

    def run(
        self, entry: JobEntry, collective: str, source: Any, target: Any, operation: ReduceOp, limit_s: float
    ) -> None:
        """Run the program of `entry`, see `Transport.run`. Raises EngineError if the run fails."""
        assert entry.program is not None
        memory = source.data_ptr(), target.data_ptr(), max(source.numel(), target.numel())
        program = self.programs[entry.program]
        self.execute(Work(program, *memory, DTYPES[source.dtype], operation, limit_s=limit_s))


class DeviceTransport:
    """Runs a group's plans as GPU kernels. `name` is the device type; `by` is explained in `Transport`."""

    is_connected = True

    def __init__(self, name: str, by: str, plans: GroupPlans) -> None:
        self.name, self.by, self._plans = name, by, plans
        self._is_told = False

    def empty(self, elements: int, dtype: Any) -> Any:
        """Return a tensor of zeros that plans access directly, without copies; all ranks call this together."""
        return self._plans.empty(elements, dtype)

    def fits(self, digest: str, size_bytes: int) -> bool:
        """Return whether the plan's memory is large enough for `size_bytes`. All ranks get the same result."""
        return self._plans.fits(digest, size_bytes, torch.uint8)

    def run(
        self, entry: JobEntry, collective: str, source: Any, target: Any, operation: ReduceOp, limit_s: float
    ) -> None:
        """Enqueue the plan of `entry`, see `Transport.run`. Raises RuntimeError, which lists the blocked steps, if an
        earlier kernel timed out, and InvalidInput if a CUDA graph captures a call without an identical earlier call."""
        digest = str(entry.program)
        self._require_whole()
        ready = not is_captured(source.device) or self._plans.is_ready(digest, source, target, operation)
        require_capturable(ready, True, collective, max(source.nbytes, target.nbytes))
        with torch.no_grad():
            self._plans.run(digest, source.detach().view(-1), target.detach().view(-1), operation)
        if source.device.type == "cpu":
            self._require_whole()

    def close(self) -> None:
        """Print an error to stderr if a kernel timed out and no `run` reported it. Memory is freed with the tensors."""
        failure, is_told, self._is_told = self._plans.failure(), self._is_told, True
        if failure is not None and not is_told:
            sys.stderr.write(f"chorale: {failure}\n")

    def _require_whole(self) -> None:
        if (failure := self._plans.failure()) is not None:
            self._is_told = True
            raise RuntimeError(failure)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A tuning table that a group has loaded: its entries for this group, and the transports that run its programs.

    digest:     digest of the table, empty without a table
    entries:    the table's entries for this group; None without a table
    transports: transport for each device type
    owned:      transports that only this table uses and that are closed with it; other transports are shared by tables
    plans:      transport that runs plans, or the reason why plans cannot run
    digests:    digests of the programs that are plans
    network:    network for which an all-to-all with given sizes is planned; None if it has no boxes with rails
    """

    digest: str
    entries: GroupEntries | None
    transports: Mapping[str, Transport] = field(default_factory=dict)
    owned: tuple[Transport, ...] = ()
    plans: DeviceTransport | Fallback = Fallback.PLAN
    digests: frozenset[str] = frozenset()
    network: RailFabric | None = None

    def transport(self, entry: JobEntry, device: str, size_bytes: int) -> Transport | Fallback:
        """Return the transport for the program of `entry` on the device type `device`, or the reason for a fallback."""
        if entry.program not in self.digests:
            return self.transports.get(device, Fallback.DEVICE)
        if isinstance(self.plans, Fallback):
            return self.plans
        if self.plans.name != device:
            return Fallback.PLAN
        return self.plans if self.plans.fits(str(entry.program), size_bytes) else Fallback.ROOM

    def close(self) -> None:
        """End the connections that only this table uses. Safe to call twice."""
        for transport in self.owned:
            transport.close()


def is_captured(device: Any) -> bool:
    """Return whether work enqueued on `device` is being captured in a CUDA graph."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def require_capturable(is_connected: bool, is_idle: bool, collective: str, size_bytes: int) -> None:
    """Raise InvalidInput if a program cannot be captured in a CUDA graph. Call this before anything is enqueued."""
    call = f"{collective} of {size_bytes} bytes"
    if not is_idle:
        rule = "{} cannot be captured in a CUDA graph while earlier collectives run in the background"
        raise InvalidInput(rule, call, "wait for all asynchronous collectives before the capture")
    if not is_connected:
        rule = "{} cannot be captured in a CUDA graph before the ranks are connected"
        raise InvalidInput(rule, call, "before the capture, call once a collective of this group that a program serves")


class StreamOrder:
    """On an accelerator, orders a run after the caller's earlier work, and the caller's later work after the run.

    The caller's thread creates the object, the thread of the run uses `on_stream`, and waiting threads use `join`.
    """

    def __init__(self, device: Any, is_awaited: bool) -> None:
        """Record the caller's stream. `is_awaited` says whether the caller waits for the result immediately."""
        self.device = device
        self._is_awaited = is_awaited
        self._module = None if device.type == "cpu" or is_captured(device) else torch.get_device_module(device)
        self._caller = threading.get_ident()
        self._called = self._module.current_stream(device).record_event() if self._module else None
        self._stream: Any = None
        self._done: Any = None

    @property
    def has_streams(self) -> bool:
        return self._module is not None

    @contextmanager
    def on_stream(self, streams: dict[Any, Any], tensors: Sequence[Any]) -> Iterator[None]:
        """Enqueue the work of the `with` block on the run's stream. The memory of `tensors` is not reused before this
        work has finished.

        streams: maps each device to the group's stream, which is created when first needed
        """
        if self._module is None or (self._is_awaited and threading.get_ident() == self._caller):
            yield
            return
        if self.device not in streams:
            streams[self.device] = self._module.Stream(self.device)
        stream = streams[self.device]
        stream.wait_event(self._called)
        for tensor in tensors:
            tensor.record_stream(stream)
        with self._module.stream(stream):
            self._stream = stream
            yield

    def end(self) -> None:
        """Record that the complete run is enqueued. Call this before notifying waiting threads."""
        if self._stream is not None:
            self._done = self._stream.record_event()

    def join(self) -> None:
        """Make the current stream wait for the run. Call this only after the run was enqueued."""
        if self._done is not None and self._module is not None:
            self._module.current_stream(self.device).wait_event(self._done)

    def is_over(self) -> bool:
        """Return whether the run has ended on the group's stream; always true for a run on the caller's stream."""
        return self._done is None or bool(self._done.query())


class BatchedTransport:
    """Runs programs for `rank` with batched sends and receives of `group`, a torch process group for this purpose only.

    Not thread-safe: one run at a time, in the same order on all ranks.
    """

    by = "batches"

    def __init__(self, group: Any, rank: int, programs: Mapping[str, TableProgram]) -> None:
        """Prepare to run `programs`, which are keyed by digest. Each program is parsed when it first runs."""
        self._group, self._rank, self._programs = group, rank, dict(programs)
        self._parts: dict[str, tuple[Program, RankRounds]] = {}
        self.is_connected = False

    def add(self, programs: Mapping[str, TableProgram]) -> None:
        self._programs |= programs

    def run(
        self, entry: JobEntry, collective: str, source: Any, target: Any, operation: ReduceOp, limit_s: float
    ) -> None:
        """Run the program of `entry`, see `Transport.run`. Raises torch's errors if messages are late or lost.

        On an accelerator, the stream waits for messages, and the thread does not. Such a wait has no time-out: with a
        time-out, the thread would wait in every round, which cannot be captured in a CUDA graph. Instead, the backend's
        own watchdog ends runs that hang.
        """
        assert entry.program is not None
        if max(source.numel(), target.numel()) == 0:
            return
        if entry.program not in self._parts:
            program = lift(self._programs[entry.program].text)
            self._parts[entry.program] = program, rounds_of(program)[self._rank]
        program, rounds = self._parts[entry.program]
        name, ranks, layout = program.collective.name, len(program.ranks), rounds.layout
        shards = ranks if name in SPLIT_BY_RANK else 1
        shard, chunks = max(source.numel(), target.numel()) // shards, program.chunks // shards  # elements, per shard
        chunk = -(-shard // chunks)
        with torch.no_grad():
            # A cell holds one chunk, padded to a common size
            cells = target.new_zeros(layout.cells + rounds.spare_cells, chunk)
            given = cells[layout.input_base :][: source.numel() // shard * chunks]
            copy_shards(given.view(-1), chunks * chunk, source.detach().view(-1), shard)
            deadline_s = monotonic() + limit_s
            for turn in rounds.rounds:
                _do(turn.local, cells, operation)
                self._exchange(turn, cells, deadline_s)
            _do(rounds.after, cells, operation)
            if name != CollectiveName.REDUCE or self._rank == program.collective.root:
                result = cells[layout.output_base :][: target.numel() // shard * chunks]
                copy_shards(target.view(-1), shard, result.view(-1), chunks * chunk)
                if operation == ReduceOp.AVG and name.reduces:
                    rounding = None if target.is_floating_point() else "trunc"
                    torch.div(target, ranks, rounding_mode=rounding, out=target)
        self.is_connected = self.is_connected or not is_captured(source.device)

    def close(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.shutdown()

    def _exchange(self, turn: Round, cells: Any, deadline_s: float) -> None:
        if not turn.sends and not turn.receives:
            return
        device = cells.device
        is_batch = bool(self._group._get_backend(device).supports_coalescing)
        if is_batch:
            self._group._start_coalescing(device)
        works = [self._group.recv([cells[first : first + count]], peer, 0) for peer, first, count in turn.receives]
        works += [self._group.send([cells[first : first + count]], peer, 0) for peer, first, count in turn.sends]
        if is_batch:
            works = [self._group._end_coalescing(device)]
        for work in works:
            if device.type != "cpu":
                work.wait()
                continue
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                raise RuntimeError(f"the messages of a round of rank {self._rank} did not all arrive in time")
            work.wait(timedelta(seconds=left_s))


def _do(steps: Sequence[LocalStep], cells: Any, operation: ReduceOp) -> None:
    for target, left, right, count in steps:
        result, first = cells[target : target + count], cells[left : left + count]
        if right is None:
            result.copy_(first)
        else:
            _COMBINE[operation](first, cells[right : right + count], out=result)
