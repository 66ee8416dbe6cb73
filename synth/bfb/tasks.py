"""The tasks of breadth-first broadcast: one block of nodes each, pure, picklable, the same bytes anywhere.

A task covers all steps of its block: one pass over a node's hop counts yields the problems of every step, so
cutting by step as well would only repeat that pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bfb.blocks import assign_chunks, integral_chunk_times, least_loads
from chorale.synth.bfb.network import BfbNetwork, problems_of

BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Block:
    """Nodes `first` to `last - 1`."""

    first: int
    last: int


def blocks_of(nodes: int) -> list[Block]:
    """Cut the nodes into at most `BLOCKS` blocks; depends on nothing else, so results do not depend on workers."""
    count = min(nodes, BLOCKS)
    edges = [nodes * index // count for index in range(count + 1)]
    return [Block(first, last) for first, last in pairwise(edges)]


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Time of each step as p / q (int64 columns), in ticks of a shard or of a chunk."""

    top: NDArray[np.int64]
    bottom: NDArray[np.int64]

    def of_step(self, step: int) -> Fraction:
        return Fraction(int(self.top[step]), int(self.bottom[step]))


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Largest time per step over some nodes, with the node that attains it and its critical in-links as bits."""

    times: StepTimes
    node: NDArray[np.int64]
    links: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class IntegralChunks:
    """Shared input of the passes for whole chunks: chunks per shard and the time of each step."""

    network: BfbNetwork
    chunks: int
    times: StepTimes


def block_loads(network: BfbNetwork, block: Block) -> Loads:
    """Return the least loads of a block."""
    problems = problems_of(network)
    top, bottom, node, links = least_loads(block.first, block.last, problems, int(problems.rows.max()))
    return Loads(StepTimes(top, bottom), node, links)


def block_chunk_times(shared: IntegralChunks, block: Block) -> Loads:
    """Return the least times of a block when shards are cut into whole chunks, at least the shared times."""
    times = (shared.times.top.copy(), shared.times.bottom.copy())
    problems = problems_of(shared.network)
    top, bottom, node, links = integral_chunk_times(block.first, block.last, problems, shared.chunks, *times)
    return Loads(StepTimes(top, bottom), node, links)


def block_transfers(shared: IntegralChunks, block: Block) -> tuple[NDArray[np.unsignedinteger], ...]:
    """Return the columns (step, link, shard, lo, hi) of what a block receives, as small unsigned integers."""
    times = (shared.times.top.copy(), shared.times.bottom.copy())
    step, rows = assign_chunks(block.first, block.last, problems_of(shared.network), shared.chunks, *times)
    network = shared.network
    largest = (len(shared.times.top), len(network.tails), network.shards, shared.chunks, shared.chunks)
    columns = (step, *rows.T)
    return tuple(column.astype(np.min_scalar_type(limit)) for column, limit in zip(columns, largest, strict=True))
