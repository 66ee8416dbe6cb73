"""Programs run with the batched sends and receives of a process group, on tensors of any device.

What `torch.distributed.batch_isend_irecv` does, for groups that torch has no name for: a batch is coalesced where the
backend can do so (NCCL), and posted message by message elsewhere (gloo). Local steps are torch's own operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any

import torch

from chorale.job.round_times import LocalStep
from chorale.job.rounds import RankRounds, Round, rounds_of
from chorale.job.table.model import JobEntry, TableProgram
from chorale.job.torch.streams import is_captured
from chorale.runners.engine.library import ReduceOp
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift

_COMBINE: Mapping[ReduceOp, Callable[..., Any]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: torch.add,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
    ReduceOp.PROD: torch.mul,
}


class BatchedTransport:
    """Runs programs for `rank` of `group`, a process group of torch that nobody else sends by at the same time.

    Not thread-safe: one run at a time, in the same order on all ranks.
    """

    def __init__(self, group: Any, rank: int, programs: Mapping[str, TableProgram]) -> None:
        """programs: by digest; each is read when it is first run."""
        self._group, self._rank, self._programs = group, rank, dict(programs)
        self._read: dict[str, _RankProgram] = {}
        self.is_connected = False

    def add(self, programs: Mapping[str, TableProgram]) -> None:
        """Let it run `programs`, too."""
        self._programs |= programs

    def run(
        self, entry: JobEntry, collective: str, source: Any, target: Any, operation: ReduceOp, limit_s: float
    ) -> None:
        """See Transport. What torch raises where a message does not arrive, in time or at all.

        Messages of an accelerator are waited for by its stream. A time-out would have the thread wait for each round,
        and cannot be in a CUDA graph: the backend's own watches over them.
        """
        assert entry.program is not None
        if max(source.numel(), target.numel()) == 0:
            return
        with torch.no_grad():
            part = self._part(entry.program)
            memory = _Memory(part, source.detach(), target.detach())
            deadline_s = monotonic() + limit_s
            for turn in part.rounds.rounds:
                memory.do(turn.local, operation)
                self._exchange(turn, memory, deadline_s)
            memory.do(part.rounds.after, operation)
            memory.finish(operation)
        self.is_connected = self.is_connected or not is_captured(source.device)

    def close(self) -> None:
        """End connections. Safe to call twice."""
        group, self._group = self._group, None
        if group is not None:
            group.shutdown()

    def _part(self, digest: str) -> _RankProgram:
        if digest not in self._read:
            program = lift(self._programs[digest].text)
            self._read[digest] = _RankProgram(program, self._rank)
        return self._read[digest]

    def _exchange(self, turn: Round, memory: _Memory, deadline_s: float) -> None:
        if not turn.sends and not turn.receives:
            return
        device = memory.device
        is_batch = bool(self._group._get_backend(device).supports_coalescing)
        if is_batch:
            self._group._start_coalescing(device)
        works = [self._group.recv([memory.cells(first, count)], peer, 0) for peer, first, count in turn.receives]
        works += [self._group.send([memory.cells(first, count)], peer, 0) for peer, first, count in turn.sends]
        if is_batch:
            works = [self._group._end_coalescing(device)]
        for work in works:
            if device.type == "cpu":
                self._wait(work, deadline_s)
            else:
                work.wait()

    def _wait(self, work: Any, deadline_s: float) -> None:
        left_s = deadline_s - monotonic()
        if left_s <= 0:
            raise RuntimeError(f"the messages of a round of rank {self._rank} did not all arrive in time")
        work.wait(timedelta(seconds=left_s))


class _RankProgram:
    """What a rank needs of a program."""

    def __init__(self, program: Program, rank: int) -> None:
        self.rank, self.ranks = rank, len(program.ranks)
        self.name, self.root = program.collective.name, program.collective.root
        self.chunks, self.in_place = program.chunks, program.in_place
        self.rounds: RankRounds = rounds_of(program)[rank]


class _Memory:
    """The memory of a rank in one run: the caller's tensors where they fit, copies with padding elsewhere."""

    def __init__(self, part: _RankProgram, source: Any, target: Any) -> None:
        self._part, self._target = part, target.view(-1)
        self.device = source.device
        shards = part.ranks if part.name in SPLIT_BY_RANK else 1
        shard = max(source.numel(), target.numel()) // shards
        chunks = part.chunks // shards  # of a shard
        self._chunk = -(-shard // chunks)
        self._shard, self._padded = shard, self._chunk * chunks
        self._output: Any = None
        flat = source.view(-1)
        pieces = [self._whole(flat)] if part.in_place else self._input_and_output(flat)
        layout = part.rounds.layout
        spare = layout.cells - layout.scratch_base + part.rounds.spare_cells
        pieces.append(target.new_empty(spare * self._chunk))
        starts = [0, layout.scratch_base] if part.in_place else [0, layout.output_base, layout.scratch_base]
        self._pieces = list(zip(starts, pieces, strict=True))[::-1]

    def cells(self, first: int, count: int) -> Any:
        """Return the elements of `count` cells."""
        start, piece = next(entry for entry in self._pieces if entry[0] <= first)
        return piece[(first - start) * self._chunk : (first - start + count) * self._chunk]

    def do(self, steps: Sequence[LocalStep], operation: ReduceOp) -> None:
        """Do local steps in order."""
        for target, left, right, count in steps:
            result = self.cells(target, count)
            if right is None:
                result.copy_(self.cells(left, count))
            else:
                _COMBINE[operation](self.cells(left, count), self.cells(right, count), out=result)

    def finish(self, operation: ReduceOp) -> None:
        """Put the result into the caller's memory."""
        part = self._part
        if part.name == CollectiveName.REDUCE and part.rank != part.root:
            return
        if self._output.data_ptr() != self._target.data_ptr():
            self._copy(self._target, self._shard, self._output, self._padded)
        if operation == ReduceOp.AVG and part.name.reduces:
            is_whole = self._target.is_floating_point()
            torch.div(self._target, part.ranks, rounding_mode=None if is_whole else "trunc", out=self._target)

    def _input_and_output(self, source: Any) -> list[Any]:
        part, target = self._part, self._target
        ignores_input = part.name == CollectiveName.BROADCAST and part.rank != part.root
        fits = self._shard == self._padded
        outputs = target.numel() // self._shard
        inputs = source.numel() // self._shard
        keeps = part.name == CollectiveName.REDUCE and part.rank != part.root
        self._output = target if fits and not keeps else target.new_zeros(outputs * self._padded)
        if fits and not ignores_input and not _overlap(source, self._output):
            return [source, self._output]
        given = source.new_zeros(inputs * self._padded)
        if not ignores_input:
            self._copy(given, self._padded, source, self._shard)
        return [given, self._output]

    def _whole(self, source: Any) -> Any:
        """Return the memory that holds input and output of a program that works in place."""
        part, target = self._part, self._target
        fits = self._shard == self._padded
        shards = max(source.numel(), target.numel()) // self._shard
        is_target = target.numel() == shards * self._shard and not self._keeps_output()
        whole = target if fits and is_target else target.new_zeros(shards * self._padded)
        own = slice(part.rank * self._padded, (part.rank + 1) * self._padded)
        given = whole[own] if part.name == CollectiveName.ALLGATHER else whole
        self._output = whole[own] if part.name == CollectiveName.REDUCE_SCATTER else whole
        ignores_input = part.name == CollectiveName.BROADCAST and part.rank != part.root
        if not ignores_input and given.data_ptr() != source.data_ptr():
            self._copy(given, self._padded, source.clone() if _overlap(source, given) else source, self._shard)
        return whole

    def _keeps_output(self) -> bool:
        return self._part.name == CollectiveName.REDUCE and self._part.rank != self._part.root

    @staticmethod
    def _copy(to: Any, to_stride: int, source: Any, from_stride: int) -> None:
        """Copy pieces that lie `from_stride` elements apart to where they lie `to_stride` elements apart."""
        most = min(to_stride, from_stride)
        to.view(-1, to_stride)[:, :most].copy_(source.view(-1, from_stride)[:, :most])


def _overlap(first: Any, second: Any) -> bool:
    starts = first.data_ptr(), second.data_ptr()
    return bool(starts[0] < starts[1] + second.nbytes and starts[1] < starts[0] + first.nbytes)
