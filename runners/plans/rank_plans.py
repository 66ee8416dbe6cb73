"""Encodes and executes one rank's plans on CPUs. The ranks' memory is a file that all ranks map.

`chorale.synth.programs.plans.moves`, which the plan checker also uses, lists the data that an operation moves.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.api.elements import Vector
from chorale.runners.api.programs import PLAN_ALIGNMENT_BYTES
from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE as ENGINE, DataType, ReduceOp, declare
from chorale.runners.measurement.machine import Facts
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.plans.moves import Move, MoveMaker, Repeat, pieces_of_a_chunk
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind, Operation, PlanBlock
from chorale.synth.programs.program import BUFFERS

_VERSION = 4
_NOP, _BARRIER, _SIGNAL, _WAIT, _ACQUIRE, _RELEASE, _MOVE, _PIPELINE = range(8)
_SYNC = [_NOP, 0]  # makes the threads of a block wait for each other
INPUT, OUTPUT, SCRATCH, PACKETS, COUNTERS, WINDOWS = range(6)
"""Numbers of the windows (parts) of a rank's memory. Among all ranks' windows, those of rank r begin at r * WINDOWS."""
_LIMIT = 7
REASONS = (
    *("its turn", "rank {} to begin", "signal {1} of rank {0}", "a semaphore", "other blocks at a barrier"),
    *("packets", "what lies outside of its memory"),
)
"""Format strings for what a block may be waiting for, as in native/plan_core.hpp. Arguments: a rank, then a number."""
IMPLEMENTED: dict[Kind, str] = {
    "memory": "memory shared by the processes of ranks",
    "port": "memory shared by the processes of ranks, written by the sending rank",
    "switch": "emulated: the rank that asks reads, adds and stores the memory of all ranks of the group",
}


@dataclass(frozen=True, slots=True)
class WordsHead:
    """The first words of an encoded plan, which determine the size of a rank's state; see native/plan_core.hpp."""

    slots: int
    halves: int
    barriers: int
    semaphores: tuple[int, ...]
    blocks: int

    @staticmethod
    def of(words: Sequence[int]) -> WordsHead:
        """Parse the head of `words`, an encoded plan (see `encode_plan`)."""
        _, _, ranks, slots, halves, barriers, semaphores, blocks, _ = words[:9]
        first = 9 + 4 * ranks
        return WordsHead(slots, halves, barriers, tuple(words[first : first + semaphores]), blocks)

    def state(self) -> list[int]:
        return [*[0] * (4 * self.blocks + self.slots), *self.semaphores, *[0] * self.barriers]


def encode_plan(plan: ExecutionPlan, rank: int) -> array[int]:
    """Return `rank`'s part of a valid `plan` as 64-bit integers for the executor. O(operations)."""
    encoder, blocks = _Encoder(plan, rank), plan.ranks[rank].blocks
    head = encoder.head()
    table = len(head)
    words = array("q", [*head, *[0] * (2 * len(blocks))])
    for number, block in enumerate(blocks):
        words[table + 2 * number] = len(words)
        for action in encoder.block(block, len(words)):
            words.extend(action)
        words[table + 2 * number + 1] = len(words)
    return words


class _Encoder:
    def __init__(self, plan: ExecutionPlan, rank: int) -> None:
        self._plan, self._rank = plan, rank
        self._pieces = pieces_of_a_chunk(plan, 1)
        self._maker = MoveMaker(plan, self._pieces)
        # Counters of memory channels come first, then those of port channels. Both include channels that only the peer
        # declares.
        self._counters: dict[Kind, int] = {}
        kinds: tuple[Kind, Kind] = ("memory", "port")
        for kind in kinds:
            ends = [
                end
                for rank, body in enumerate(plan.ranks)
                for number in range(len(body.peers_of(kind)))
                for end in (number, plan.other_end(rank, number, kind)[1])
            ]
            self._counters[kind] = 1 + max(ends, default=0)

    def head(self) -> list[int]:
        plan = self._plan
        body = plan.ranks[self._rank]
        numbers = [each.barrier[0] for block in body.blocks for each in block.every_operation() if each.barrier]
        sizes: list[int] = []  # number of pieces in each rank's input, output, scratch and packets
        for rank, other in enumerate(plan.ranks):
            layout = plan.layout(rank)
            ends = (layout.scratch_base if plan.in_place else layout.output_base), layout.scratch_base
            packets = other.scratch_chunks if plan.settings.packets else 0
            chunks = ends[0] - layout.input_base, ends[1] - layout.output_base, other.scratch_chunks, packets
            sizes += [each * self._pieces for each in chunks]
        slots = sum(self._counters.values())
        fixed = [_VERSION, self._rank, len(plan.ranks), slots, 1 + int(plan.settings.double_scratch)]
        lists = [1 + max(numbers, default=-1), len(body.semaphores), len(body.blocks), plan.settings.vector_bytes]
        return [*fixed, *lists, *sizes, *body.semaphores]

    def _slot(self, kind: Kind, number: int) -> int:
        return number if kind == "memory" else self._counters["memory"] + number

    def block(self, block: PlanBlock, first: int) -> Iterator[list[int]]:
        """Yield the words of each action in `block`, whose first word has index `first` in the encoded plan.

        The words of an action are the number of these words, its step, its kind and its operands.
        """
        for step, operation in enumerate(block.operations):
            if operation.action is not Action.PIPELINE:
                actions = list(self._actions(block, operation))
            else:
                assert operation.pipeline is not None
                unit_bytes, chunks = operation.pipeline
                body = [action for each in operation.body for action in self._actions(block, each)]
                unit_bytes = -(-unit_bytes // PLAN_ALIGNMENT_BYTES) * PLAN_ALIGNMENT_BYTES
                end = first + 6 + sum(2 + len(action) for action in body)
                actions = [[_PIPELINE, unit_bytes, chunks * self._pieces, end], *body]
            for action in actions:
                yield [2 + len(action), step, *action]
                first += 2 + len(action)

    def _actions(self, block: PlanBlock, operation: Operation) -> Iterator[list[int]]:
        action = operation.action
        if action.moves:
            for move in self._maker.moves(self._rank, block, operation, Repeat()):
                yield from self._move(block, operation, move)
        elif action.signals:
            yield [_SIGNAL, *self._signalled(block, operation, operation.channels)]
        elif action.waits:
            numbers = [block.channels_of(operation.kind)[local] for local in operation.channels]
            peers = self._plan.ranks[self._rank].peers_of(operation.kind)
            slots = [word for number in numbers for word in (self._slot(operation.kind, number), peers[number])]
            yield [_WAIT, len(numbers), *slots]
        elif action is Action.BARRIER:
            assert operation.barrier is not None
            yield [_BARRIER, *operation.barrier]
        elif action in (Action.ACQUIRE, Action.RELEASE):
            code = _ACQUIRE if action is Action.ACQUIRE else _RELEASE
            yield [code, len(operation.semaphores), *operation.semaphores]
        else:
            yield _SYNC  # a flush alone does nothing

    def _signalled(self, block: PlanBlock, operation: Operation, channels: Sequence[int]) -> list[int]:
        """Return the number of counters that a signal on `channels` increments, then the rank and index of each one."""
        words = [len(channels)]
        for local in channels:
            own = block.channels_of(operation.kind)[local]
            peer, number = self._plan.other_end(self._rank, own, operation.kind)
            words += [peer, self._slot(operation.kind, number)]
        return words

    def _move(self, block: PlanBlock, operation: Operation, move: Move) -> Iterator[list[int]]:
        lists = ((move.reads, False), (move.takes, True), (move.writes, False), (move.packets, True))
        count = next(stretch.count for stretches, _ in lists for stretch in stretches)
        words = [*(len(stretches) for stretches, _ in lists), count, int(move.switch)]
        for stretches, packed in lists:
            for each in stretches:
                words += [each.rank * WINDOWS + (PACKETS if packed else BUFFERS.index(each.buffer)), each.first]
        if move.port is None:
            yield [_MOVE, *words]
            return
        # There is no proxy thread for ports: the block moves the data itself. All threads of the block must have moved
        # their data before one of them signals.
        yield from (_SYNC, [_MOVE, *words], _SYNC)
        if operation.action.signals:
            yield [_SIGNAL, *self._signalled(block, operation, operation.channels[move.port : move.port + 1])]


NATIVE = Path(__file__).parent / "native"
_LIBRARY = "libchorale_plans.so"
_OK, _TIMEOUT = 0, 2


class PlanError(Exception):
    """Raised if a call to the executor failed.

    is_late: whether the call failed because the time limit passed
    blocked: if `is_late`, a line for each unfinished block: its number, its step, and what it was waiting for
    """

    def __init__(self, message: str, is_late: bool = False, blocked: str = "") -> None:
        super().__init__(message)
        self.is_late = is_late
        self.blocked = blocked


@dataclass(frozen=True, slots=True)
class RankRegion:
    """The layout of a rank's memory, the same on all ranks: counters, then data, then packets. Offsets are in bytes.

    data, packets: offsets of the data and of the packets
    half_bytes: size of a packet buffer; plans with double buffering have two packet buffers
    bytes:      total size
    """

    data: int
    packets: int
    half_bytes: int
    bytes: int

    @staticmethod
    def of(head: WordsHead, ranks: int, cells: int, packets: int, piece_bytes: int) -> RankRegion:
        """Return the layout for a plan with this `head`. For `cells` and `packets`, see the fields of `PlanBuffers`."""
        data = _rounded(8 * (head.slots + ranks))
        first = data + _rounded(cells * piece_bytes)
        half = _rounded(2 * packets * piece_bytes)
        return RankRegion(data, first, half, first + head.halves * half)


def _rounded(size_bytes: int) -> int:
    return -(-size_bytes // 64) * 64


def blocked_lines(record: Sequence[int], writer_of: Callable[[int], int | None] = lambda _: None) -> str:
    """Return a line for each block that timed out, with block, step and what the block was waiting for.

    Args:
        record: A call's record, see native/plan_core.hpp.
        writer_of: Function that returns which rank writes packets to a piece of scratch, or None if it is not known.
    """
    lines = []
    for block, first in enumerate(range(1, len(record), 4)):
        step, why, who, which = (int(word) for word in record[first : first + 4])
        if which > 0:
            writer = writer_of(which - 1) if REASONS[why] == "packets" else None
            of = "" if writer is None else f" of rank {writer}"
            lines.append(f"{block} {step} waits for {REASONS[why].format(who, which - 1)}{of}\n")
    return "".join(lines)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The element type and the reduce operation of a call.

    keeps_wide: whether sums of 16-bit floats are kept as 32-bit floats until they are stored
    """

    type: DataType
    operation: ReduceOp = ReduceOp.SUM
    keeps_wide: bool = False


def check_words(library: ctypes.CDLL, words: array[int], rank: int, ranks: int) -> None:
    """Raise PlanError unless `words` (from `encode_plan`) are a plan for `rank`."""
    buffer = (ctypes.c_int64 * len(words)).from_buffer(words)
    if library.chorale_plan_check(buffer, len(words), rank, ranks) != _OK:
        raise PlanError(library.chorale_plans_error().decode(errors="replace"))


def execute_plan(library: ctypes.CDLL, call: BoundPlan, limit_s: float, not_before_ns: int) -> int:
    """Run this rank's part of a call; return its end in ns of CLOCK_MONOTONIC. Raises PlanError after `limit_s`."""
    call.binding[_LIMIT] = max(0, min(round(limit_s * 1e9), 2**62))
    end_ns = ctypes.c_int64()
    status = library.chorale_plan_call(call.binding.ctypes.data, 0, not_before_ns, ctypes.byref(end_ns))
    if status != _OK:
        message = library.chorale_plans_error().decode(errors="replace")
        raise PlanError(message, status == _TIMEOUT, blocked_lines(call.record.tolist()))
    return end_ns.value


class BoundPlan:
    """A rank's plan in its initial state, with its memory. `binding` is a `Binding` as in native/plan_core.hpp."""

    def __init__(
        self, words: array[int], bases: Sequence[int], piece_bytes: int, half_bytes: int, arithmetic: Arithmetic
    ) -> None:
        """Bind the plan. `bases` has all windows' addresses, then their multicast addresses (0 if there are none)."""
        head = WordsHead.of(words)
        self.words = np.array(words, np.int64)
        self.state = np.array(head.state(), np.uint64)
        self.broken = np.zeros(1, np.uint64)
        self.record = np.zeros(1 + 4 * head.blocks, np.uint64)
        self.bases = np.array(bases, np.uint64)
        addresses = [each.ctypes.data for each in (self.words, self.state, self.broken, self.record, self.bases)]
        numbers = [piece_bytes, half_bytes, 0, arithmetic.type, arithmetic.operation, arithmetic.keeps_wide]
        self.binding = np.array([*addresses, *map(int, numbers)], np.uint64)


def plan_library() -> Path:
    """Return the library's path; build it first if necessary. Raises Unavailable without a compiler."""
    sources = tuple(sorted(NATIVE.glob("*.cpp")))
    flags = ("-O3", "-shared", "-fPIC", "-pthread")
    return build_native(NativeTarget(_LIBRARY, sources, flags, (ENGINE,)))


@cache
def load_plan_library(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
    signatures = {
        "chorale_plans_error": (text, ()),
        "chorale_plan_check": (ctypes.c_int, (pointer, size, ctypes.c_int, ctypes.c_int)),
        "chorale_plan_call": (ctypes.c_int, (pointer, ctypes.c_int, number, pointer)),
    }
    declare(library, signatures)
    return library


@dataclass(frozen=True, slots=True)
class PlanBuffers:
    """The layout of the memory that a plan uses.

    A piece is a chunk or, if several groups of blocks divide each chunk, one group's part of it.

    pieces:            number of pieces in the vector
    pieces_of_a_chunk: number of pieces per chunk
    packets:           largest number of pieces that a rank's packet buffer holds
    layouts:           layout of each rank's memory
    """

    pieces: int
    pieces_of_a_chunk: int
    packets: int
    layouts: tuple[Layout, ...]

    @staticmethod
    def of(plan: ExecutionPlan) -> PlanBuffers:
        pieces = pieces_of_a_chunk(plan, 1)
        packets = max(body.scratch_chunks for body in plan.ranks) * pieces if plan.settings.packets else 0
        layouts = tuple(plan.layout(rank) for rank in range(len(plan.ranks)))
        return PlanBuffers(plan.chunks * pieces, pieces, packets, layouts)

    @property
    def cells(self) -> int:
        """Return the largest total number of pieces in a rank's input, output and scratch."""
        return max(layout.cells for layout in self.layouts) * self.pieces_of_a_chunk

    def to_json(self) -> list[Any]:
        bases = [[each.input_base, each.output_base, each.scratch_base, each.cells] for each in self.layouts]
        return [self.pieces, self.pieces_of_a_chunk, self.packets, bases]

    @staticmethod
    def from_json(value: Sequence[Any]) -> PlanBuffers:
        return PlanBuffers(value[0], value[1], value[2], tuple(Layout(*bases) for bases in value[3]))


@dataclass(frozen=True, slots=True)
class _Context:
    """A plan that is ready to run, with views of this rank's input and output in the shared memory."""

    bound: BoundPlan
    input: Vector
    output: Vector
    memory: Vector


class RankPlans:
    """Loads and executes plans on one rank. All ranks make the same calls in the same order.

    Scratch memory, signals, packets and semaphores keep their contents between successive calls of the same size.

    memory: file descriptor of the memory that all ranks share
    """

    def __init__(self, rank: int, ranks: int, memory: int) -> None:
        self._rank, self._ranks, self._memory = rank, ranks, memory
        self._library: ctypes.CDLL | None = None
        self._parts: list[tuple[array[int], PlanBuffers]] = []
        self._contexts: dict[int, _Context] = {}
        self._size: tuple[int, str] = (0, "")
        self._used_bytes = 0

    def load(self, library: Path, parts: Iterable[tuple[bytes, PlanBuffers]]) -> None:
        """Replace all plans by `parts`: (words, buffers) of each plan. A plan's number is its position."""
        self.unload()
        self._library = load_plan_library(library)
        self._parts = [(array("q", words), buffers) for words, buffers in parts]
        for words, _ in self._parts:
            check_words(self._library, words, self._rank, self._ranks)

    def buffers(self, plan: int, elements: int, dtype: str) -> tuple[Vector, Vector]:
        """Return two views of this rank's memory: one starts at the input, the other one at the output."""
        if self._size != (elements, dtype):
            self.unload()
            self._size = elements, dtype
        if plan not in self._contexts:
            self._contexts[plan] = self._bound(plan, elements, np.dtype(dtype))
        context = self._contexts[plan]
        return context.input, context.output

    def execute(self, plan: int, limit_s: float, not_before_ns: int) -> int:
        """Run this rank's part of a call of plan number `plan`; return its end time, see `execute_plan`."""
        assert self._library is not None
        return execute_plan(self._library, self._contexts[plan].bound, limit_s, not_before_ns)

    def unload(self) -> None:
        """Release the memory of all plans."""
        self._contexts.clear()
        self._size, self._used_bytes = (0, ""), 0

    def _bound(self, plan: int, elements: int, dtype: np.dtype[Any]) -> _Context:
        """Map new memory for a plan and set this rank's part of that memory to its initial state."""
        words, part = self._parts[plan]
        piece_bytes = elements // part.pieces * dtype.itemsize
        region = RankRegion.of(WordsHead.of(words), self._ranks, part.cells, part.packets, piece_bytes)
        begin = self._used_bytes
        total = -(-region.bytes * self._ranks // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._used_bytes = begin + total
        if os.fstat(self._memory).st_size < self._used_bytes:
            os.ftruncate(self._memory, self._used_bytes)  # other ranks set the same length, and no rank shortens it
        shared = np.frombuffer(mmap.mmap(self._memory, total, offset=begin), dtype=np.uint8)
        own = shared[self._rank * region.bytes : (self._rank + 1) * region.bytes]
        own[:] = 0
        starts = [shared.ctypes.data + rank * region.bytes for rank in range(self._ranks)]
        chunk_bytes = piece_bytes * part.pieces_of_a_chunk
        bases: list[int] = []
        for start, layout in zip(starts, part.layouts, strict=True):
            chunks = (layout.input_base, layout.output_base, layout.scratch_base)
            bases += [*(start + region.data + base * chunk_bytes for base in chunks), start + region.packets, start]
        bases += [0] * WINDOWS  # no switch is used
        bound = BoundPlan(words, bases, piece_bytes, region.half_bytes, Arithmetic(DataType[dtype.name.upper()]))
        layout = part.layouts[self._rank]
        cells = own[region.data : region.data + layout.cells * chunk_bytes]
        input_, output = (cells[base * chunk_bytes :].view(dtype) for base in (layout.input_base, layout.output_base))
        return _Context(bound, input_, output, shared)


def plan_facts(plans: Iterable[ExecutionPlan]) -> Facts:
    """Return the facts for a measurement's environment: how each kind of channel in `plans` is implemented on CPUs."""
    blocks = (block for plan in plans for body in plan.ranks for block in body.blocks)
    used = {each.kind for block in blocks for each in block.every_operation() if each.action.moves or each.channels}
    return {f"{kind}_channels": text for kind, text in IMPLEMENTED.items() if kind in used}
