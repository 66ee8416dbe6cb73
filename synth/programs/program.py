"""The Program: what each rank executes, block by block, instruction by instruction; its violations; streams of ranks.

One in-memory form serves every XML target. Buffers, instructions and the meaning of chunks are those of the
MSCCL interpreters; targets differ in names, limits and text (see `chorale.synth.targets.base`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.names import name_among
from chorale.synth.programs.plans.options import WHOLE_CHUNKS, PlanOptions

Protocol = Literal["Simple", "LL", "LL128"]
QUEUE_DEPTH: Mapping[Protocol, int] = {"Simple": 2, "LL": 8, "LL128": 8}
"""How many messages a sender can be ahead of its receiver on one connection."""
Buffer = Literal["i", "o", "s"]
"""Input, output, scratch."""


def as_protocol(text: str) -> Protocol:
    """Return `text` as the protocol that it names; InvalidInput for any other text."""
    return cast(Protocol, name_among("protocol", text, get_args(Protocol)))


def exact_protocol(text: str) -> Protocol:
    """Return `text`, which must be a protocol letter by letter, as runtimes read it; InvalidInput for any other."""
    if as_protocol(text) != text:
        rule = "a protocol of a program must be written as runtimes write it"
        raise InvalidInput(rule, text, f"write {as_protocol(text)}")
    return as_protocol(text)


class Message(NamedTuple):
    """`chunks` chunks from rank `src` to rank `dst` on one channel."""

    src: int
    dst: int
    channel: int
    chunks: int


class Op(StrEnum):
    """Instructions; `net` is the message from the block's receive peer, all on `count` chunks."""

    SEND = "s"  # send src
    RECV = "r"  # dst = net
    RECV_COPY_SEND = "rcs"  # dst = net; send net
    RECV_REDUCE_SEND = "rrs"  # send net + src; nothing is stored
    RECV_REDUCE_COPY = "rrc"  # dst = net + src
    RECV_REDUCE_COPY_SEND = "rrcs"  # dst = net + src; send the same
    COPY = "cpy"  # dst = src, local
    REDUCE = "re"  # dst = dst + src, local

    @property
    def receives(self) -> bool:
        return self in _RECEIVING

    @property
    def sends(self) -> bool:
        return self in _SENDING

    @property
    def reads_src(self) -> bool:
        """Whether the src place holds an operand (the src of `r` and `rcs` is ignored)."""
        return self not in (Op.RECV, Op.RECV_COPY_SEND)

    @property
    def writes_dst(self) -> bool:
        """Whether the dst place is written (the dst of `s` and `rrs` is ignored)."""
        return self not in (Op.SEND, Op.RECV_REDUCE_SEND)


_RECEIVING = frozenset({Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND})
_SENDING = frozenset({Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND})


_Class = TypeVar("_Class", bound=type)


def pickled_by_fields(cls: _Class) -> _Class:
    """Let instances of a dataclass with two fields or more be pickled as the class and the values of its fields.

    What frozen dataclasses with slots do by themselves asks for the fields of each instance again, which takes twice
    as long both ways.
    """
    values = attrgetter(*(field.name for field in fields(cls)))

    def reduce(self: Any) -> tuple[type, tuple[Any, ...]]:
        return cls, values(self)

    cls.__reduce__ = reduce  # type: ignore[assignment, method-assign]
    return cls


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class BufferRef:
    """First chunk of an operand: `offset` counts chunks from the start of `buffer`."""

    buffer: Buffer
    offset: int


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until block `block` of the same rank has finished its instruction number `step`."""

    block: int
    step: int


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction on `count` consecutive chunks, started after all `waits` are met.

    Waits refer to instruction numbers within a block; a target that allows one wait per step writes the
    others as `nop` steps and renumbers.
    """

    op: Op
    src: BufferRef
    dst: BufferRef
    count: int
    waits: tuple[Wait, ...] = ()


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A strictly sequential program with at most one peer to send to and one to receive from, on one channel."""

    send_peer: int | None
    recv_peer: int | None
    channel: int
    instructions: tuple[Instruction, ...]


class CompactBlocks(Sequence[ThreadBlock]):
    """Blocks in another form than objects, which are made where one is asked for."""

    __slots__ = ()

    @abstractmethod
    def targets(self) -> list[int]:
        """Return the ranks that blocks may send to."""

    @abstractmethod
    def sends(self) -> Iterator[tuple[int, int, int]]:
        """Yield receiving rank, channel and chunks of all that is sent, of each block in order."""


@pickled_by_fields
@dataclass(frozen=True, slots=True)
class RankProgram:
    """What one rank executes; a block's index is its id. Chunk counts are those of whole buffers, or 0 where unused.

    Of lowered programs, and of those read from files as they are written here, `blocks` are columns that make their
    objects on demand (see `chorale.synth.programs.columns`), else a tuple.
    """

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    blocks: Sequence[ThreadBlock]


@dataclass(frozen=True, slots=True)
class Program:
    """A collective as instructions for every rank.

    chunks:     N, the number of equal chunks of the whole vector (`nchunksperloop`). Chunk k of a buffer is its
                elements [k * S, (k + 1) * S), S = elements of the vector / N. allgather: the input has
                N / ranks chunks; reduce_scatter: the output has; all else N and N.
    in_place:   whether input and output share memory: allgather `i[k]` is `o[rank * N / ranks + k]`;
                reduce_scatter `o[k]` is `i[rank * N / ranks + k]`; else `i[k]` is `o[k]`.
    channels:   number of channels. A connection is (sender, receiver, channel); its messages match in order.
    origin:     content id of the schedule it was lowered from, "" for a program read from elsewhere.
    plan:       how a one-sided runtime moves what is sent; without meaning elsewhere.
    switches:   nodes of the network that the last of the ranks stand for, switches that add or multicast; see
                `chorale.synth.programs.switch_processes`.
    """

    name: str
    target: str
    collective: Collective
    chunks: int
    in_place: bool
    protocol: Protocol
    channels: int
    ranks: tuple[RankProgram, ...]
    min_bytes: int = 0
    max_bytes: int = 0  # 0: no limit
    origin: str = ""
    plan: PlanOptions = WHOLE_CHUNKS
    switches: tuple[int, ...] = ()

    @property
    def one_sided(self) -> bool:
        return False

    def peers(self) -> set[tuple[int, int]]:
        """Return who may send to whom."""
        return {(rank, peer) for rank, body in enumerate(self.ranks) for peer in _targets(body.blocks)}

    def messages(self) -> Iterator[Message]:
        """Yield what is sent, of each block in order. O(instructions)."""
        for rank, body in enumerate(self.ranks):
            for peer, channel, chunks in _sends(body.blocks):
                yield Message(rank, peer, channel, chunks)


def _targets(blocks: Sequence[ThreadBlock]) -> list[int]:
    if isinstance(blocks, CompactBlocks):
        return blocks.targets()
    return [block.send_peer for block in blocks if block.send_peer is not None]


def _sends(blocks: Sequence[ThreadBlock]) -> Iterator[tuple[int, int, int]]:
    if isinstance(blocks, CompactBlocks):
        return blocks.sends()
    return (
        (block.send_peer, block.channel, item.count)
        for block in blocks
        if block.send_peer is not None
        for item in block.instructions
        if item.op.sends
    )


@dataclass(frozen=True, slots=True)
class ProgramViolation:
    """A rule that a program breaks. `rule` is a stable short name, `message` one line that includes the place.

    `block` is the id of a thread block of `rank`, `step` the number of an instruction in it; None where the
    rule is about something wider. `chunk` is that of the output whose contents are wrong; `other` is the other of two
    instructions that nothing orders: rank, block, step.
    """

    rule: str
    message: str
    rank: int | None = None
    block: int | None = None
    step: int | None = None
    chunk: int | None = None
    other: tuple[int, int, int] | None = None

    @staticmethod
    def at(
        rule: str, message: str, rank: int | None = None, block: int | None = None, step: int | None = None
    ) -> ProgramViolation:
        """Return a violation whose message begins with its place."""
        named = (("rank", rank), ("block", block), ("step", step))
        place = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return ProgramViolation(rule, f"{place}: {message}" if place else message, rank, block, step)


EMPTY_RANK = RankProgram(0, 0, 0, ())


@dataclass(frozen=True, slots=True)
class ProgramStream:
    """head: the program without anything in its ranks; make: returns what a rank executes."""

    head: Program
    make_rank: Callable[[int], RankProgram]

    def ranks(self) -> Iterator[RankProgram]:
        """Make one rank after the other."""
        return map(self.make_rank, range(len(self.head.ranks)))
