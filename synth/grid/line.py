"""A reduce_scatter along one line of positions: what each position hands on, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput

Positions = NDArray[np.int64]

MAX_LINE_SIZE = 4096


@dataclass(frozen=True, slots=True, eq=False)
class LineStep:
    """In this step position `src[i]` hands its partial sum of `block[i]` on to position `dst[i]`."""

    src: Positions
    dst: Positions
    block: Positions

    def pairs(self, size: int) -> tuple[Positions, Positions, Positions]:
        """Return (src, dst, number of blocks) of each pair of positions, each once, in order."""
        keys, counts = np.unique(self.src * size + self.dst, return_counts=True)
        return *np.divmod(keys, size), counts


@dataclass(frozen=True, slots=True, eq=False)
class LineReduceScatter:
    """A reduce_scatter of `size` blocks over `size` positions in one dimension of a grid.

    Every position starts with a contribution to every block and hands its partial sum of a block on at most once;
    whoever never does holds the sum in the end. handed_on: int32[size, size], the step in which a position hands
    a block on, `len(steps)` where it never does.
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
        """Return bool[position, block]: which partial sums positions have not handed on before `step`."""
        return self.handed_on >= step

    def mirrored(self) -> LineReduceScatter:
        """Return the line that does at position -a modulo size, for block -b, what this one does at a for b."""
        return LineReduceScatter(self.size, tuple(LineStep(*(-part % self.size for part in (s.src, s.dst, s.block)))
                                     for s in self.steps))  # fmt: skip


def require_line_size(size: int) -> None:
    """Refuse a dimension whose tables of positions and blocks would be too large."""
    if size > MAX_LINE_SIZE:
        raise InvalidInput(
            f"a dimension of a grid must have at most {MAX_LINE_SIZE} positions", size, "use more dimensions"
        )


def halving_steps(peers: Sequence[Positions], home: Positions) -> list[LineStep]:
    """Return the steps of a reduce_scatter in which position a talks to `peers[s][a]` in step s.

    `home[b]` is the position that keeps block b. A position hands a block on in the last step in which its peer
    can still bring it home (Swing paper, appendix A.2: a block that could be sent twice is sent only later); where
    the sizes are powers of two there is one such step only.
    """
    positions = np.arange(len(peers[0]) if peers else 1)
    reach = home == positions[:, None]
    steps = []
    for peer in reversed(peers):
        src, block = np.nonzero(reach[peer] & ~reach)
        steps.append(LineStep(src, np.asarray(peer)[src], block))
        reach = reach | reach[peer]
    return steps[::-1]
