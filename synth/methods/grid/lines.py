"""Grids of ranks, the steps of a reduce_scatter along one line of a grid, and the order of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, parse_spec
from chorale.synth.topology.registry import fixed_numbers, whole_numbers
from chorale.synth.topology.topology import Topology

_SIZES_ARE_ARGUMENTS = ("torus", "mesh", "hyperx")


def grid_shape(topology: Topology) -> tuple[int, ...]:
    """Return the sizes of the grid in which the N ranks are numbered. The last dimension varies fastest.

    Recognises torus, mesh, hyperx, hypercube, hamming and hxmesh, and functions that keep all their ranks (`scaled`,
    `without(…;link=…)`). All other networks are treated as a single line of ranks. Algorithms on grids are correct for
    any shape, but a shape that does not fit makes them slower.
    """
    ranks = topology.compute_count
    try:
        tree: object = parse_spec(topology.spec)
        while isinstance(tree, FunctionCall):
            tree = tree.arguments[0]
        sizes = _sizes_of(tree) if isinstance(tree, FamilyCall) else ()
    except InvalidInput:  # the name is not a spec, for example if a program made the network
        return (ranks,)
    return sizes if sizes and prod(sizes) == ranks else (ranks,)


def _sizes_of(call: FamilyCall) -> tuple[int, ...]:
    if call.name in _SIZES_ARE_ARGUMENTS:
        return tuple(whole_numbers(call, call.name, separator="x"))
    if call.name == "hypercube":
        return (2,) * fixed_numbers(call, call.name, 1)[0]
    if call.name == "hamming":
        letters, size = fixed_numbers(call, call.name, 2)
        return (size,) * letters
    if call.name == "hxmesh":
        board, _, boards = call.text.partition(",")
        (side,) = whole_numbers(call, call.name, text=board)
        return tuple(side * count for count in whole_numbers(call, call.name, separator="x", text=boards))
    return ()


Positions = NDArray[np.int64]

MAX_LINE_SIZE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class LineStep:
    """A step in which position `src[i]` sends its partial sum of `block[i]` to position `dst[i]`."""

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

    Every position starts with a contribution to every block and sends its partial sum of a block at most once. The only
    position that never sends its partial sum of a block has the block's complete sum in the end.
    handed_on: int32[position, block]: step in which the position sends the block, `len(steps)` if it never does
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
        """Return bool[position, block]: whether the position still has a partial sum of the block before `step`."""
        return self.handed_on >= step

    def mirrored(self) -> LineReduceScatter:
        """Return the mirror image: position a becomes -a and block b becomes -b, modulo size."""
        return LineReduceScatter(self.size, tuple(LineStep(*(-part % self.size for part in (s.src, s.dst, s.block)))
                                     for s in self.steps))  # fmt: skip


def require_line_size(size: int) -> None:
    """Raise InvalidInput for a dimension whose tables (size x size) would be too large."""
    if size > MAX_LINE_SIZE:
        raise InvalidInput(
            f"a dimension of a grid must have at most {MAX_LINE_SIZE} positions", size, "use more dimensions"
        )


def halving_steps(peers: Sequence[Positions], home: Positions) -> list[LineStep]:
    """Return the steps of a reduce_scatter in which position a exchanges blocks with `peers[s][a]` in step s.

    `home[b]` is the position that keeps block b. A position sends a block in the last step from which the block can
    still reach its home (Swing paper, appendix A.2: if a block could be sent in two steps, the later one is used). If
    the size is a power of two, there is only one possible step.
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
    """A step of a grid algorithm: step `number` of dimension `axis`, for one of `pieces` equal pieces of the data."""

    axis: int
    number: int
    piece: int = 0
    pieces: int = 1


def round_robin(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return steps that alternate between dimensions, starting with `first`. Finished dimensions are skipped.

    Source: Swing paper, sections 4.1 and 4.2 (omega and sigma).
    """
    dimensions = _from(first, len(step_counts))
    rounds = range(max(step_counts, default=0))
    return [Turn(axis, number) for number in rounds for axis in dimensions if number < step_counts[axis]]


def dimension_by_dimension(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return all steps of dimension `first`, then all steps of the next dimension, and so on cyclically."""
    return [Turn(axis, number) for axis in _from(first, len(step_counts)) for number in range(step_counts[axis])]


def synchronised_dimensions(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return steps as in `dimension_by_dimension`, but with equally many steps for every dimension.

    Collectives that start in different dimensions then switch dimensions at the same time and never share links. To
    fill the steps of the longest dimension, the steps of shorter dimensions are divided into several pieces, so that
    their larger blocks do not delay others. None stands for a step in which nothing is sent. Source: Swing paper,
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
