"""Runs a group's plans as kernels: allocates memory, copies data in and out, launches kernels, reports errors."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from chorale.runners.api.programs import PLAN_ALIGNMENT_BYTES
from chorale.runners.device.memory import DTYPES, PlanDevice, SymmetricBuffer, copy_shards
from chorale.runners.engine.library import ReduceOp
from chorale.runners.plans import rank_plans
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.run import packet_writer

MAX_THREADS = 512
"""Number of threads per block for which native/plan_kernel.cu is compiled. A plan may use fewer."""

RequestedPlan = tuple[ExecutionPlan, int]
"""A plan, and the size in bytes of the largest vector that it must handle."""


@dataclass(slots=True)
class _Placed:
    """A loaded plan, which occupies one part of this rank's memory.

    shape:  the plan's buffers
    most:   size in bytes of the largest piece (see `PlanBuffers`) that fits
    first:  offset in bytes of the plan's part of the memory
    region: layout of that part
    words:  the encoded plan, as a tensor on the device; `head` holds its first words
    state:  the rank's state, as a tensor on the device
    record: host buffer that says what each thread block was waiting for when it timed out
    """

    plan: ExecutionPlan
    shape: rank_plans.PlanBuffers
    head: rank_plans.WordsHead
    most: int
    first: int
    region: rank_plans.RankRegion
    words: Any
    state: Any
    record: Any


@dataclass(frozen=True, slots=True)
class _Bound:
    """A prepared kernel launch, which can be repeated: the arguments of `launch`, and the tensors that it uses.

    tensors: tensors whose addresses are in `binding`; listed here so that they stay allocated
    """

    arithmetic: rank_plans.Arithmetic
    binding: Any
    blocks: int
    tensors: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Home:
    """The location of a vector: `offset` in bytes from the start of a symmetric buffer."""

    buffer: SymmetricBuffer
    offset: int

    def view(self, skipped: int, elements: int, dtype: Any) -> Any:
        """Return a tensor of the `elements` elements that start `skipped` bytes after the location."""
        first = self.offset + skipped
        return self.buffer.own[first : first + elements * dtype.itemsize].view(dtype)


class GroupPlans:
    """Runs one rank's part of a group's plans as kernels. All ranks make the same calls in the same order. A call's
    tensors must be in symmetric buffers at the same offsets on all ranks, or outside such buffers on all ranks.
    """

    def __init__(
        self,
        device: PlanDevice,
        rank: int,
        ranks: int,
        requests: Mapping[str, RequestedPlan],
        limit_s: float = 60.0,
        keeps_wide: bool = False,
    ) -> None:
        """Allocate memory for the plans in `requests` (name -> plan, identical on all ranks). Raises InvalidInput or
        PlanError for an invalid plan.

        limit_s:    time in seconds after which thread blocks stop waiting for other ranks
        keeps_wide: whether sums of 16-bit floats are kept as 32-bit floats until they are stored
        """
        self._device, self._rank, self._ranks = device, rank, ranks
        self._limit_s, self._keeps_wide = limit_s, keeps_wide
        self._placed: dict[str, _Placed] = {}
        self._bound: dict[tuple[Any, ...], _Bound] = {}
        shapes = {name: rank_plans.PlanBuffers.of(plan) for name, (plan, _) in requests.items()}
        # Upper bounds, valid for all element types, of a piece's padded size in bytes if the vector is the largest
        unit = 2 * PLAN_ALIGNMENT_BYTES
        pieces = {
            name: -(-most_bytes // (shapes[name].pieces * unit)) * unit + unit
            for name, (_, most_bytes) in requests.items()
        }
        staging = [
            max(layout.scratch_base for layout in shape.layouts) * shape.pieces_of_a_chunk * pieces[name]
            for name, shape in shapes.items()
        ]
        first = -(-max(staging, default=0) // 64) * 64
        for name in sorted(requests):
            self._placed[name] = self._place(requests[name][0], shapes[name], pieces[name], first)
            first += self._placed[name].region.bytes
        self._memory = device.allocate(max(64, first))
        self._broken = device.tensor(np.zeros(1, np.int64))
        self._registered: list[SymmetricBuffer] = []

    def empty(self, elements: int, dtype: Any) -> Any:
        """Return a tensor of zeros that plans access directly, without copies; all ranks call this together."""
        buffer = self._device.allocate(elements * dtype.itemsize)
        self._registered.append(buffer)
        return buffer.own.view(dtype)

    def fits(self, name: str, elements: int, dtype: Any) -> bool:
        """Return whether the plan `name` has enough memory for a vector of `elements` elements."""
        placed = self._placed.get(name)
        return placed is not None and _Sizes(placed, self._ranks, elements, dtype).piece_bytes <= placed.most

    def is_ready(self, name: str, source: Any, target: Any, operation: ReduceOp) -> bool:
        """Return whether an identical call was already prepared, so that `run` can be captured in a CUDA graph."""
        return self._call(name, source, target, operation)[0] in self._bound

    def run(self, name: str, source: Any, target: Any, operation: ReduceOp = ReduceOp.SUM) -> None:
        """Enqueue the plan `name` on the current stream. For the tensors, see `Transport.run` in job/torch."""
        with self._device.in_turn():
            self._run(name, source, target, operation)

    def _run(self, name: str, source: Any, target: Any, operation: ReduceOp) -> None:
        key, sizes, homes = self._call(name, source, target, operation)
        placed = self._placed[name]
        bound = self._bound.get(key) or self._bind(key, placed, sizes, homes)
        collective, layout = placed.plan.collective, placed.shape.layouts[self._rank]
        chunk_bytes = sizes.piece_bytes * placed.shape.pieces_of_a_chunk
        dtype = source.dtype
        given = homes[0].view(layout.input_base * chunk_bytes, sizes.padded_of(source), dtype)
        result = homes[1].view(layout.output_base * chunk_bytes, sizes.padded_of(target), dtype)
        is_root = collective.root in (None, self._rank)
        if collective.name != CollectiveName.BROADCAST or is_root:
            self._copy(given, sizes.padded, source, sizes.shard)
        threads = min(MAX_THREADS, placed.plan.settings.threads)
        self._device.launch(bound.arithmetic, bound.binding, bound.blocks, threads)
        if collective.name == CollectiveName.REDUCE and not is_root:
            return
        self._copy(target, sizes.shard, result, sizes.padded)
        if operation == ReduceOp.AVG and collective.name.reduces:
            rounding = None if dtype.is_floating_point else "trunc"
            torch.div(target, self._ranks, rounding_mode=rounding, out=target)

    def blocked(self) -> list[tuple[str, int, int, str]]:
        """Return (plan's name, block, step, missing event) of each block that has timed out so far, without
        waiting for running kernels."""
        found = []
        for name, placed in self._placed.items():
            if placed.record[0]:
                lines = rank_plans.blocked_lines(
                    placed.record.tolist(), partial(packet_writer, placed.plan, self._rank)
                )
                parts = (line.split(" ", 2) for line in lines.splitlines())
                found += [(name, int(block), int(step), why) for block, step, why in parts]
        return found

    def failure(self) -> str | None:
        """Return one line that lists the blocks that timed out in one plan, or None if no block has timed out."""
        blocked = self.blocked()
        told = "; ".join(
            f"block {block} step {step} {why}" for name, block, step, why in blocked if name == blocked[0][0]
        )
        return f"plan {blocked[0][0][:12]} on rank {self._rank} of the group timed out: {told}" if blocked else None

    def _place(self, plan: ExecutionPlan, shape: rank_plans.PlanBuffers, piece: int, first: int) -> _Placed:
        words = rank_plans.encode_plan(plan, self._rank)
        rank_plans.check_words(rank_plans.load_plan_library(rank_plans.plan_library()), words, self._rank, self._ranks)
        head = rank_plans.WordsHead.of(words)
        scratch = max(layout.cells - layout.scratch_base for layout in shape.layouts) * shape.pieces_of_a_chunk
        region = rank_plans.RankRegion.of(head, self._ranks, scratch, shape.packets, piece)
        state = self._device.tensor(array("q", head.state()))
        record = self._device.host_words(1 + 4 * head.blocks)
        return _Placed(plan, shape, head, piece, first, region, self._device.tensor(words), state, record)

    def _call(
        self, name: str, source: Any, target: Any, operation: ReduceOp
    ) -> tuple[tuple[Any, ...], _Sizes, tuple[_Home, _Home]]:
        placed = self._placed[name]
        sizes = _Sizes(placed, self._ranks, max(source.numel(), target.numel()), source.dtype)
        homes = self._homes(placed, sizes, source, target)
        places = tuple((home.buffer.bases[self._rank], home.offset) for home in homes)
        return (name, sizes.piece_bytes, source.dtype, operation, places), sizes, homes

    def _homes(self, placed: _Placed, sizes: _Sizes, source: Any, target: Any) -> tuple[_Home, _Home]:
        """Return the locations of the input and the output, which are the same if the plan works in place."""
        staging = _Home(self._memory, 0)
        if sizes.padded != sizes.shard or placed.plan.collective.name == CollectiveName.REDUCE:
            return staging, staging
        if not placed.plan.in_place:
            layout, chunk = placed.shape.layouts[self._rank], sizes.piece_bytes * placed.shape.pieces_of_a_chunk
            bases = (layout.input_base * chunk, layout.output_base * chunk)
            found = [self._home_of(tensor, base) for tensor, base in zip((source, target), bases, strict=True)]
            return found[0] or staging, found[1] or staging
        whole = target if target.numel() >= source.numel() else source
        own = self._rank * sizes.padded * source.dtype.itemsize
        keeps_input = whole is source and target.data_ptr() != source.data_ptr() + own
        home = None if keeps_input else self._home_of(whole, 0)
        return home or staging, home or staging

    def _home_of(self, tensor: Any, base: int) -> _Home | None:
        """Return the location `base` bytes before `tensor`, or None if the tensor is not in a symmetric buffer."""
        first = tensor.data_ptr()
        for buffer in self._registered:
            skipped = first - buffer.own.data_ptr()
            if 0 <= skipped <= buffer.own.numel() - tensor.nbytes and first % PLAN_ALIGNMENT_BYTES == 0:
                return _Home(buffer, skipped - base)
        return None

    def _bind(self, key: tuple[Any, ...], placed: _Placed, sizes: _Sizes, homes: tuple[_Home, _Home]) -> _Bound:
        if sizes.piece_bytes > placed.most:
            rule, value = "a plan has memory for pieces of at most {} bytes", f"{placed.most}, not {sizes.piece_bytes}"
            raise InvalidInput(rule, value, "call `fits` first, or request memory for larger vectors")
        operation = ReduceOp.SUM if key[3] == ReduceOp.AVG else key[3]
        arithmetic = rank_plans.Arithmetic(DTYPES[key[2]], operation, self._keeps_wide)
        self._device.prepare(arithmetic)
        # `found` becomes the addresses of all ranks' windows (input, output and parts of the plan's memory), then each
        # window's multicast address: 0 if a switch cannot be used, for example because offsets differ between ranks.
        chunk = sizes.piece_bytes * placed.shape.pieces_of_a_chunk
        region, memory = placed.region, self._memory
        rows = []
        for layout in placed.shape.layouts:
            data = (homes[0].offset + layout.input_base * chunk, homes[1].offset + layout.output_base * chunk)
            own = (region.data, region.packets, 0)
            rows.append([*data, *(placed.first + each for each in own)])
        buffers = [homes[0].buffer, homes[1].buffer, memory, memory, memory]
        found = [
            buffer.bases[rank] + offset
            for rank, row in enumerate(rows)
            for buffer, offset in zip(buffers, row, strict=True)
        ]
        for window in range(rank_plans.WINDOWS):
            offsets, everywhere = {row[window] for row in rows}, buffers[window].everywhere
            reached = everywhere and len(offsets) == 1 and window < rank_plans.COUNTERS - 1
            found.append(everywhere + offsets.pop() if reached else 0)
        bases = self._device.tensor(array("q", found))
        tensors = (placed.words, placed.state, self._broken)
        limit_ns = round(min(self._limit_s, 1e9) * 1e9)
        numbers = [sizes.piece_bytes, placed.region.half_bytes, limit_ns, arithmetic.type, operation]
        words = [each.data_ptr() for each in tensors] + [placed.record.ctypes.data, bases.data_ptr()]
        binding = self._device.tensor(array("q", [*words, *map(int, numbers), int(arithmetic.keeps_wide)]))
        self._bound[key] = _Bound(arithmetic, binding, placed.head.blocks, (*tensors, bases))
        return self._bound[key]

    @staticmethod
    def _copy(to: Any, to_stride: int, source: Any, from_stride: int) -> None:
        if to.data_ptr() != source.data_ptr():
            copy_shards(to, to_stride, source, from_stride)


class _Sizes:
    """Cuts a vector into shards and pieces. A shard has `shard` elements, or `padded` elements with its padding."""

    def __init__(self, placed: _Placed, ranks: int, elements: int, dtype: Any) -> None:
        shards = ranks if placed.plan.collective.name in SPLIT_BY_RANK else 1
        pieces = placed.shape.pieces // shards
        self.shard = elements // shards
        unit = max(1, PLAN_ALIGNMENT_BYTES // dtype.itemsize)
        piece = -(-self.shard // (pieces * unit)) * unit
        self.padded = piece * pieces
        self.piece_bytes = piece * dtype.itemsize

    def padded_of(self, tensor: Any) -> int:
        return int(tensor.numel() // self.shard * self.padded)
