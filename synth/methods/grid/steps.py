"""Computes the steps of algorithms on grids of ranks. Subcollectives run in parallel, each on a part of every shard.

A reduce_scatter on a grid combines reduce_scatters along the grid's lines. An exchange sends the complete vector in
every message, which takes the fewest steps but sends the most bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import STANDARD, Collective, CollectiveName, require_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.registry import FamilyCall, FunctionCall, fixed_numbers, parse_spec, whole_numbers
from chorale.synth.topology.topology import Topology

_SIZES_ARE_ARGUMENTS = ("torus", "mesh", "hyperx")
Positions = NDArray[np.int64]
MAX_LINE_SIZE = 4096
Numbers = NDArray[np.int64]
Columns = tuple[Numbers, Numbers, Numbers]
_NOTHING = np.zeros(0, dtype=np.int64)


def grid_shape(topology: Topology) -> tuple[int, ...]:
    """Return the sizes of the grid in which ranks are numbered. The last coordinate varies fastest.

    Recognises torus, mesh, hyperx, hypercube, hamming and hxmesh, also inside topology functions that keep all ranks
    (`scaled`, `without(…;link=…)`). All other networks are treated as a single line of ranks. Algorithms on grids are
    correct for any shape, but slower if neighbours in the grid are not neighbours in the network.
    """
    ranks = topology.compute_count
    try:
        tree: object = parse_spec(topology.spec)
        while isinstance(tree, FunctionCall):
            tree = tree.arguments[0]
        call = tree if isinstance(tree, FamilyCall) else None
        sizes: tuple[int, ...] = ()
        if call is not None and call.name in _SIZES_ARE_ARGUMENTS:
            sizes = tuple(whole_numbers(call, call.name, separator="x"))
        elif call is not None and call.name == "hypercube":
            sizes = (2,) * fixed_numbers(call, call.name, 1)[0]
        elif call is not None and call.name == "hamming":
            letters, size = fixed_numbers(call, call.name, 2)
            sizes = (size,) * letters
        elif call is not None and call.name == "hxmesh":
            board, _, boards = call.text.partition(",")
            (side,) = whole_numbers(call, call.name, text=board)
            sizes = tuple(side * count for count in whole_numbers(call, call.name, separator="x", text=boards))
    except InvalidInput:  # the name is not a spec, for example if a program made the network
        return (ranks,)
    return sizes if sizes and prod(sizes) == ranks else (ranks,)


@dataclass(frozen=True, slots=True, eq=False)
class LineStep:
    """A step of a reduce_scatter: position `src[i]` sends its partial sum of block `block[i]` to position `dst[i]`."""

    src: Positions
    dst: Positions
    block: Positions

    def pairs(self, size: int) -> tuple[Positions, Positions, Positions]:
        """Return (src, dst, number of blocks sent) for each pair of positions, sorted by src and dst."""
        keys, counts = np.unique(self.src * size + self.dst, return_counts=True)
        return *np.divmod(keys, size), counts


@dataclass(frozen=True, slots=True, eq=False)
class LineReduceScatter:
    """A reduce_scatter of `size` blocks over `size` positions in one dimension of a grid.

    Every position starts with a contribution to every block, and sends its partial sum of the block once. Only the
    position that has the block's complete sum in the end never sends it.

    handed_on: int32[position, block]: step in which the position sends its sum of the block; `len(steps)` for never
    """

    size: int
    steps: tuple[LineStep, ...]
    handed_on: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        handed_on = np.full((self.size, self.size), len(self.steps), dtype=np.int32)
        for number, step in enumerate(self.steps):
            handed_on[step.src, step.block] = number
        object.__setattr__(self, "handed_on", handed_on)

    def held(self, step: int) -> NDArray[np.bool_]:
        """Return bool[position, block]: whether the position still holds its sum of the block before `step`."""
        return self.handed_on >= step

    def mirrored(self) -> LineReduceScatter:
        """Return the mirror image: position a becomes -a and block b becomes -b, modulo size."""
        return LineReduceScatter(self.size, tuple(LineStep(*(-part % self.size for part in (s.src, s.dst, s.block)))
                                     for s in self.steps))  # fmt: skip


def require_line_size(size: int) -> None:
    """Raise InvalidInput if the tables for a dimension of this size (size x size entries) would be too large."""
    if size > MAX_LINE_SIZE:
        raise InvalidInput(
            f"a dimension of a grid must have at most {MAX_LINE_SIZE} positions", size, "use more dimensions"
        )


def halving_steps(peers: Sequence[Positions], home: Positions) -> list[LineStep]:
    """Return a reduce_scatter's steps. In step s, position a exchanges blocks with position `peers[s][a]`.

    `home[b]` is the position that keeps block b. A position sends a block in the last step from which the block can
    still reach its home (Swing paper, appendix A.2: if a block could be sent in either of two steps, the later one is
    used). If the size is a power of two, there is only one possible step.
    """
    positions = np.arange(len(peers[0]) if peers else 1)
    reach = home == positions[:, None]
    steps = []
    for peer in reversed(peers):
        src, block = np.nonzero(reach[peer] & ~reach)
        steps.append(LineStep(src, np.asarray(peer)[src], block))
        reach = reach | reach[peer]
    return steps[::-1]


class Turn(NamedTuple):
    """A step of a grid algorithm: step `number` in dimension `axis`. Moves piece `piece` of `pieces` equal pieces."""

    axis: int
    number: int
    piece: int = 0
    pieces: int = 1


def round_robin(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return steps that alternate between dimensions, starting with `first`, and skip dimensions that have finished.

    Source: Swing paper, sections 4.1 and 4.2 (omega and sigma).
    """
    dimensions = _from(first, len(step_counts))
    rounds = range(max(step_counts, default=0))
    return [Turn(axis, number) for number in rounds for axis in dimensions if number < step_counts[axis]]


def dimension_by_dimension(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return all steps along dimension `first`, then all steps along the next dimension, and so on cyclically."""
    return [Turn(axis, number) for axis in _from(first, len(step_counts)) for number in range(step_counts[axis])]


def synchronised_dimensions(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return steps as in `dimension_by_dimension`, but with the same number of steps for every dimension.

    Collectives that start in different dimensions then change dimensions at the same time and never share links. Steps
    of shorter dimensions, which have larger blocks, are divided into pieces to fill the time that the longest dimension
    takes, so they do not delay other collectives. None stands for a step in which nothing is sent. Source: Swing paper,
    section 5.2.
    """
    longest = max(step_counts)
    turns: list[Turn | None] = []
    for axis in _from(first, len(step_counts)):
        pieces = longest // step_counts[axis]
        steps = range(step_counts[axis])
        turns += [Turn(axis, number, piece, pieces) for number in steps for piece in range(pieces)]
        turns += [None] * (longest - pieces * step_counts[axis])
    return turns


def _from(first: int, count: int) -> list[int]:
    return [(first + offset) % count for offset in range(count)]


class SendStep(NamedTuple):
    """A step of a subcollective. Its messages are computed on demand.

    messages:      returns (src, dst, shards): `shards[i]` shards go from `src[i]` to `dst[i]`; each pair occurs once
    sends:         returns (src, dst, shard), with a separate entry for each shard of these messages
    signature:     returns a hashable value; two steps with equal values have identical messages
    reduces:       whether the receiver adds the data to its own
    piece, pieces: index of the piece that is sent, and number of equal pieces into which the data are divided
    """

    messages: Callable[[], Columns]
    sends: Callable[[], Columns]
    signature: Callable[[], Hashable]
    reduces: bool = True
    piece: int = 0
    pieces: int = 1


SubCollective: TypeAlias = Sequence[SendStep]


def backwards(steps: SubCollective) -> list[SendStep]:
    """Return `steps` in reverse order, with sources and targets exchanged, and with data copied instead of added."""

    def turned(columns: Callable[[], Columns]) -> Columns:
        src, dst, amount = columns()
        return dst, src, amount

    def marked(signature: Callable[[], Hashable]) -> Hashable:
        return "backwards", signature()

    return [
        step._replace(
            messages=partial(turned, step.messages),
            sends=partial(turned, step.sends),
            signature=partial(marked, step.signature),
            reduces=False,
        )
        for step in reversed(steps)
    ]


def whole_vector_step(
    ends: Callable[[], tuple[Numbers, Numbers]], ranks: int, signature: Hashable, reduces: bool = True
) -> SendStep:
    """Return a step in which each source sends all shards to its target.

    ends: returns (sources, targets)
    """

    def messages() -> Columns:
        src, dst = ends()
        return src, dst, np.full(len(src), ranks, dtype=np.int64)

    def sends() -> Columns:
        src, dst = ends()
        return np.repeat(src, ranks), np.repeat(dst, ranks), np.tile(np.arange(ranks), len(src))

    return SendStep(messages, sends, lambda: signature, reduces)


@dataclass(frozen=True, slots=True)
class _GridStep:
    """Computes the messages of one step (`turn`). In dimension d, the lines have already run `done[d]` steps."""

    lines: Sequence[LineReduceScatter]
    turn: Turn
    done: tuple[int, ...]

    def messages(self) -> Columns:
        src, dst, shards = [], [], []
        for axis, line in enumerate(self.lines):
            if axis == self.turn.axis:
                here, there, blocks = line.steps[self.turn.number].pairs(line.size)
            else:
                blocks = line.held(self.done[axis]).sum(axis=1)
                here = there = np.flatnonzero(blocks)
                blocks = blocks[here]
            src.append(here * self._stride(axis))
            dst.append(there * self._stride(axis))
            shards.append(blocks)
        counts = np.ones(1, dtype=np.int64)
        for part in shards:
            counts = np.multiply.outer(counts, part).ravel()
        return outer_sum(src), outer_sum(dst), counts

    def sends(self) -> Columns:
        columns: tuple[list[Numbers], ...] = ([], [], [])
        for axis, line in enumerate(self.lines):
            if axis == self.turn.axis:
                moved = line.steps[self.turn.number]
                parts = (moved.src, moved.dst, moved.block)
            else:
                here, block = np.nonzero(line.held(self.done[axis]))
                parts = (here, here, block)
            for numbers, part in zip(columns, parts, strict=True):
                numbers.append(part * self._stride(axis))
        src, dst, shard = map(outer_sum, columns)
        return src, dst, shard

    def signature(self) -> Hashable:
        axis, line = self.turn.axis, self.lines[self.turn.axis]
        moved = b"".join(part.tobytes() for part in line.steps[self.turn.number].pairs(line.size))
        held = (line.held(done).sum(axis=1).tobytes() for line, done in zip(self.lines, self.done, strict=True))
        return axis, self.turn.pieces, moved, *(part for number, part in enumerate(held) if number != axis)

    def _stride(self, axis: int) -> int:
        return prod(line.size for line in self.lines[axis + 1 :])


def outer_sum(parts: Iterable[Numbers]) -> Numbers:
    """Return the sums of all combinations of one number per part. The number from the last part varies fastest."""
    result = np.zeros(1, dtype=np.int64)
    for part in parts:
        result = np.add.outer(result, part).ravel()
    return result


def reduce_to_root(scatter: SubCollective, root: int, ranks: int) -> list[SendStep]:
    """Return a reduce that sends complete vectors along the tree on which the reduce_scatter sums the root's shard."""

    def ends(step: SendStep) -> tuple[Numbers, Numbers]:
        src, dst, shard = step.sends()
        return src[shard == root], dst[shard == root]

    return [
        whole_vector_step(partial(ends, step), ranks, ("tree", number, root))._replace(
            piece=step.piece, pieces=step.pieces
        )
        for number, step in enumerate(scatter)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class ExchangeRounds:
    """Rounds in which the positions of one line exchange vectors. The number of active positions is a power of two.

    active: positions that participate in the exchange
    folded: the other positions; `onto[i]` receives the vector of `folded[i]` first and returns the sum at the end
    peers:  `peers[s][i]` is the position with which `active[i]` exchanges vectors in round s
    """

    size: int
    active: Positions
    folded: Positions
    onto: Positions
    peers: tuple[Positions, ...]

    @staticmethod
    def of(size: int, peers: Sequence[Positions]) -> ExchangeRounds:
        """Return rounds in which the first 2^k of `size` positions exchange vectors with their `peers`."""
        active = np.arange(1 << len(peers))
        folded = np.arange(len(active), size)
        return ExchangeRounds(size, active, folded, folded - len(active), tuple(peers))

    def mirrored(self) -> ExchangeRounds:
        """Return the mirror image, in which each position a becomes -a modulo size."""
        active, folded, onto = (-part % self.size for part in (self.active, self.folded, self.onto))
        return ExchangeRounds(self.size, active, folded, onto, tuple(-peer % self.size for peer in self.peers))


def exchange_steps(lines: Sequence[ExchangeRounds], turns: Sequence[Turn | None]) -> list[SendStep]:
    """Return an allreduce in which every message contains the complete vector of the subcollective.

    If a dimension's size is not a power of two, some of its ranks first send their vectors to others (folding). Then
    the active ranks exchange vectors in the order of `turns`, and finally the folded ranks receive the result. If all
    sizes are powers of two, this is a latency-optimal algorithm of the Swing paper (sections 2.3.2 and 3.1.2).
    """
    ranks = prod(line.size for line in lines)

    def ranks_at(axis: int, positions: Positions, others: Sequence[Positions]) -> Positions:
        parts = [positions if number == axis else other for number, other in enumerate(others)]
        strides = [prod(line.size for line in lines[number + 1 :]) for number in range(len(parts))]
        return outer_sum(part * stride for part, stride in zip(parts, strides, strict=True))

    def fold(axis: int) -> tuple[Positions, Positions]:
        """Return (ranks to fold along `axis`, receivers of their vectors), without ranks folded along earlier axes."""
        others = [line.active if number < axis else np.arange(line.size) for number, line in enumerate(lines)]
        return ranks_at(axis, lines[axis].folded, others), ranks_at(axis, lines[axis].onto, others)

    def turn_ends(turn: Turn | None) -> tuple[Positions, Positions]:
        if turn is None:
            return _NOTHING, _NOTHING
        others, line = [line.active for line in lines], lines[turn.axis]
        return ranks_at(turn.axis, line.active, others), ranks_at(turn.axis, line.peers[turn.number], others)

    folds = [axis for axis, line in enumerate(lines) if len(line.folded)]
    ends: list[Callable[[], tuple[Positions, Positions]]] = [
        *(partial(fold, axis) for axis in folds),
        *(partial(turn_ends, turn) for turn in turns),
        *(lambda axis=axis: fold(axis)[::-1] for axis in reversed(folds)),
    ]
    summed = len(folds) + len(turns)
    return [
        whole_vector_step(of_step, ranks, ("exchange", number), reduces=number < summed)
        for number, of_step in enumerate(ends)
    ]


LineT = TypeVar("LineT", LineReduceScatter, ExchangeRounds)

Order = Callable[[Sequence[int], int], list[Turn | None]]
"""Function that orders all steps, given the number of steps in each dimension and the first dimension."""


def grid_collectives(
    lines: Sequence[LineReduceScatter], order: Order, all_ports: bool, collective: Collective, method: str
) -> tuple[SubCollective, ...]:
    """Return the subcollectives of `collective`, all derived from reduce_scatters (Swing paper, section 4.1).

    With `all_ports`, one subcollective starts in each dimension, and each has a mirror image in the opposite direction
    (unless all of the grid's sizes are 2). Otherwise, a single subcollective starts in the first dimension. An
    allgather is the reversed reduce_scatter, and an allreduce runs both in sequence. A reduce sends complete vectors
    along the tree on which the reduce_scatter sums the root's shard, and a broadcast is the reversed reduce.

    Raises:
        InvalidInput: for an alltoall.
    """
    counts, ranks = [len(line.steps) for line in lines], prod(line.size for line in lines)
    require_collective(method, collective, [name for name in STANDARD if name != CollectiveName.ALLTOALL])
    parts: list[SubCollective] = []
    for first, port_lines in _beginnings(lines, all_ports):
        # A shard's block in each dimension is its owner's coordinate, so a step is a product over the dimensions.
        scatter, done = [], [0] * len(port_lines)
        for turn in order(counts, first):
            if turn is None:
                scatter.append(SendStep(lambda: (_NOTHING,) * 3, lambda: (_NOTHING,) * 3, lambda: None))
                continue
            at = _GridStep(port_lines, turn, tuple(done))
            scatter.append(SendStep(at.messages, at.sends, at.signature, True, turn.piece, turn.pieces))
            done[turn.axis] = max(done[turn.axis], turn.number + 1)
        if collective.root is not None:
            tree = reduce_to_root(scatter, collective.root, ranks)
            parts.append(tree if collective.reduces else backwards(tree))
        else:
            parts.append(of_parts(scatter, backwards(scatter), collective, method))
    return tuple(parts)


def of_parts(scatter: SubCollective, gather: SubCollective, collective: Collective, method: str) -> SubCollective:
    """Return the steps of `collective`: `scatter`, `gather` or, for an allreduce, both in sequence.

    Raises InvalidInput for other collectives.
    """
    parts: dict[CollectiveName, SubCollective] = {
        CollectiveName.ALLGATHER: gather,
        CollectiveName.REDUCE_SCATTER: scatter,
        CollectiveName.ALLREDUCE: [*scatter, *gather],
    }
    require_collective(method, collective, parts)
    return parts[collective.name]


def vector_exchanges(lines: Sequence[ExchangeRounds], all_ports: bool) -> tuple[SubCollective, ...]:
    """Return parallel exchanges of complete vectors, which start in the same dimensions as `grid_collectives`."""
    counts = [len(line.peers) for line in lines]
    return tuple(
        exchange_steps(port_lines, round_robin(counts, first)) for first, port_lines in _beginnings(lines, all_ports)
    )


def _beginnings(lines: Sequence[LineT], all_ports: bool) -> Iterator[tuple[int, Sequence[LineT]]]:
    """Yield (first dimension, lines) for each subcollective. The mirror image follows directly after the original."""
    mirrored = [line.mirrored() for line in lines]
    for first in range(len(lines) if all_ports else 1):
        yield first, lines
        if all_ports and any(line.size > 2 for line in lines):
            yield first, mirrored


def require_allreduce(collective: Collective, method: str) -> None:
    if collective.name != CollectiveName.ALLREDUCE:
        raise InvalidInput(
            f"{method} makes allreduce, broadcast or reduce, not {{}}", collective.name.value, "choose allreduce"
        )
