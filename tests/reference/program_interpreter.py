"""Executes a program: one meaning of the instructions, whatever the values are.

Blocks are strictly sequential. A message is the part of an instruction that travels at once; a connection holds
at most `depth` messages that have been sent and not yet received. A step starts when all its waits are met; a
receiving step needs an arrived message, a sending step a free slot, a fused step both.

A single loop iteration is enough. Real runtimes loop over parts of long chunks, every block for itself; an
operation of one iteration depends on operations of the same iteration only (queues are in order and have one
block at either end), and iterations touch disjoint elements.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.program import Instruction, Op, Program, ThreadBlock
from tests.reference.vector_clocks import Clock, HappensBefore

Value = Any
"""Whatever the domain calculates with; None is a chunk that was never written, UNKNOWN what comes of such a chunk."""
UNKNOWN = -1
Order = Literal["forward", "reverse", "random"]


RANDOM_REACH = 64
"""In random order, the next block is one of so many; turning a queue further would cost more than it finds."""


class ExecutionError(Exception):
    """An instruction did something without meaning: `rule` is a short stable name, the rest says what and where."""

    def __init__(self, rule: str, message: str, rank: int, block: int, step: int) -> None:
        super().__init__(message)
        self.rule, self.message, self.rank, self.block, self.step = rule, message, rank, block, step


class DomainError(Exception):
    """Raised by a domain's addition for values that must not be added."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """A block that can never go on, and what it waits for."""

    rank: int
    block: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a run goes: messages a connection holds, chunks of a message (None: whole steps), order of the blocks.

    forward: every block as far as it gets, the one that could go on first before others; reverse: the one that
    could go on last before others; random: one message at a time, in an order drawn from `seed`.
    """

    depth: int
    message_chunks: int | None
    order: Order = "forward"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Code:
    """An instruction with its operands as cells."""

    instruction: Instruction
    src: int
    dst: int


@dataclass(slots=True, eq=False)
class _Block:
    """A thread block in execution: `pc` instructions are done, and `moved` chunks of the next one."""

    number: int
    rank: int
    index: int
    code: list[_Code]
    incoming: deque[_Message]
    outgoing: deque[_Message]
    pc: int = 0
    moved: int = 0

    @property
    def finished(self) -> bool:
        return self.pc == len(self.code)


@dataclass(frozen=True, slots=True)
class _Message:
    values: list[Value]
    clock: Clock | None


class Interpreter:
    """One execution of a structurally sound program.

    memory:  one list of cells per rank, as `chorale.synth.programs.memory` lays them out; changed in place
    add:     the sum of two values; raises DomainError where there is none
    watcher: sees all accesses, if given, and lets races fail
    """

    def __init__(
        self,
        program: Program,
        memory: Sequence[list[Value]],
        add: Callable[[Value, Value], Value],
        conditions: Conditions,
        watcher: HappensBefore | None = None,
    ) -> None:
        self._memory = memory
        self._add = add
        self._conditions = conditions
        self._watcher = watcher
        self._random = random.Random(conditions.seed)
        self._ranks = _load(program)
        self._neighbours = _neighbours(program, self._ranks)

    def run(self) -> list[Blocked]:
        """Execute to the end; return the blocks that never finish. ExecutionError at the first faulty instruction.

        A block gets a turn at the start and whenever a block went on that it may be waiting for.
        O(messages * blocks that depend on one another).
        """
        blocks = [block for rank in self._ranks for block in rank]
        ready = deque(reversed(blocks) if self._conditions.order == "reverse" else blocks)
        waiting = {block.number for block in ready}
        while ready:
            block = self._next(ready)
            waiting.discard(block.number)
            if self._turn(block):
                for woken in (*self._neighbours[block.number], block):
                    if woken.number not in waiting and not woken.finished:
                        waiting.add(woken.number)
                        ready.append(woken)
        return [self._blocked(block) for block in blocks if not block.finished]

    def _next(self, ready: deque[_Block]) -> _Block:
        if self._conditions.order == "random":
            ready.rotate(self._random.randrange(min(len(ready), RANDOM_REACH)))
        return ready.pop() if self._conditions.order == "reverse" else ready.popleft()

    def _turn(self, block: _Block) -> bool:
        """Let `block` go on as far as it gets (in random order: by one message); return whether it did."""
        moved = False
        while not block.finished and not self._obstacles(block):
            self._advance(block)
            moved = True
            if self._conditions.order == "random":
                break
        return moved

    def _obstacles(self, block: _Block) -> str:
        """Return why `block` cannot go on, "" if it can."""
        instruction = block.code[block.pc].instruction
        if block.moved == 0:
            for wait in instruction.waits:
                if self._ranks[block.rank][wait.block].pc <= wait.step:
                    return f"waits for step {wait.step} of block {wait.block}"
        if instruction.op.receives and not block.incoming:
            return "waits for a message"
        if instruction.op.sends and len(block.outgoing) >= self._conditions.depth:
            return "waits for a free slot to send"
        return ""

    def _advance(self, block: _Block) -> None:
        code = block.code[block.pc]
        count = code.instruction.count
        if self._watcher is not None:
            self._watcher.tick(block.number)
            if block.moved == 0:
                for wait in code.instruction.waits:
                    other = self._ranks[block.rank][wait.block]
                    self._watcher.wait(block.number, other.number, wait.step)
        span = min(self._conditions.message_chunks or count, count - block.moved)
        self._move(block, code, span)
        block.moved += span
        if block.moved == count:
            if self._watcher is not None:
                self._watcher.finish(block.number, block.pc)
            block.pc, block.moved = block.pc + 1, 0

    def _move(self, block: _Block, code: _Code, span: int) -> None:
        op = code.instruction.op
        values: list[Value] = []
        if op.receives:
            message = block.incoming.popleft()
            values = message.values
            if self._watcher is not None:
                self._watcher.receive(block.number, message.clock)
        if op.reads_src:
            own = self._read(block, code.src + block.moved, span)
            values = self._sums(block, values, own) if op.receives else own
        dst = code.dst + block.moved
        if op == Op.REDUCE:
            values = self._sums(block, values, self._read(block, dst, span))
        if op.writes_dst:
            self._write(block, dst, values)
        if op.sends:
            clock = self._watcher.send(block.number) if self._watcher is not None else None
            block.outgoing.append(_Message(values, clock))

    def _read(self, block: _Block, first: int, span: int) -> list[Value]:
        values = [UNKNOWN if value is None else value for value in self._memory[block.rank][first : first + span]]
        if self._watcher is not None:
            for cell in range(first, first + span):
                self._race(block, self._watcher.read(block.number, cell))
        return values

    def _write(self, block: _Block, first: int, values: list[Value]) -> None:
        self._memory[block.rank][first : first + len(values)] = values
        if self._watcher is not None:
            for cell in range(first, first + len(values)):
                self._race(block, self._watcher.write(block.number, cell))

    def _race(self, block: _Block, other: int | None) -> None:
        if other is not None:
            index = other - self._ranks[block.rank][0].number
            message = f"touches a chunk that block {index} touches too, and nothing orders the two"
            raise _error(block, "race", message)

    def _sums(self, block: _Block, left: list[Value], right: list[Value]) -> list[Value]:
        try:
            return [
                UNKNOWN if UNKNOWN in (first, second) else self._add(first, second)
                for first, second in zip(left, right, strict=True)
            ]
        except DomainError as error:
            raise _error(block, "reduction", str(error)) from None

    def _blocked(self, block: _Block) -> Blocked:
        return Blocked(block.rank, block.index, block.pc, self._obstacles(block))


def _error(block: _Block, rule: str, message: str) -> ExecutionError:
    return ExecutionError(rule, message, block.rank, block.index, block.pc)


def _load(program: Program) -> list[list[_Block]]:
    queues: dict[tuple[int, int, int], deque[_Message]] = {}
    numbers: Iterator[int] = iter(range(sum(len(rank.blocks) for rank in program.ranks)))
    ranks = []
    for rank, rank_program in enumerate(program.ranks):
        layout = layout_of(program, rank)
        blocks = []
        for index, block in enumerate(rank_program.blocks):
            code = [_Code(item, layout.cell(item.src), layout.cell(item.dst)) for item in block.instructions]
            incoming, outgoing = _queues(queues, rank, block)
            blocks.append(_Block(next(numbers), rank, index, code, incoming, outgoing))
        ranks.append(blocks)
    return ranks


def _neighbours(program: Program, ranks: Sequence[Sequence[_Block]]) -> list[list[_Block]]:
    """Return, for each block, those that may wait for it: at the other ends of its connections, and in its rank."""
    senders: dict[tuple[int, int, int], _Block] = {}
    receivers: dict[tuple[int, int, int], _Block] = {}
    found: list[dict[int, _Block]] = [{} for rank in ranks for _ in rank]
    for rank, blocks in enumerate(ranks):
        for block in blocks:
            code = program.ranks[rank].blocks[block.index]
            if code.send_peer is not None:
                senders[rank, code.send_peer, code.channel] = block
            if code.recv_peer is not None:
                receivers[code.recv_peer, rank, code.channel] = block
            for number in {wait.block for item in code.instructions for wait in item.waits}:
                found[blocks[number].number][block.number] = block
    for connection, sender in senders.items():
        receiver = receivers[connection]
        found[sender.number][receiver.number] = receiver
        found[receiver.number][sender.number] = sender
    return [list(blocks.values()) for blocks in found]


def _queues(
    queues: dict[tuple[int, int, int], deque[_Message]], rank: int, block: ThreadBlock
) -> tuple[deque[_Message], deque[_Message]]:
    nothing: deque[_Message] = deque()
    incoming, outgoing = nothing, nothing
    if block.recv_peer is not None:
        incoming = queues.setdefault((block.recv_peer, rank, block.channel), deque())
    if block.send_peer is not None:
        outgoing = queues.setdefault((rank, block.send_peer, block.channel), deque())
    return incoming, outgoing
