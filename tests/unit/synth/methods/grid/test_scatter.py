"""Lines, orders and their products, against a replay that knows nothing of products."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.methods.grid.algorithms import halving_line, ring_line, swing_line
from chorale.synth.methods.grid.lines import (
    LineReduceScatter,
    Turn,
    dimension_by_dimension,
    round_robin,
    synchronised_dimensions,
)
from chorale.synth.methods.grid.steps import backwards, grid_reduce_scatter, reduce_to_root

MAKERS = [swing_line, ring_line, lambda size: halving_line(size, returns=True)]
lines = st.builds(lambda make, size: make(size), st.sampled_from(MAKERS), st.integers(2, 7))


def replayed(line: LineReduceScatter) -> list[set[int]]:
    """Return which blocks each position holds the whole sum of, after a replay of sets."""
    held = [[{position} for _ in range(line.size)] for position in range(line.size)]
    for step in line.steps:
        sent = [
            (src, dst, block, held[src][block])
            for src, dst, block in zip(*map(np.ndarray.tolist, (step.src, step.dst, step.block)), strict=True)
        ]
        for src, _, block, _ in sent:
            held[src][block] = set()
        for _, dst, block, ranks in sent:
            assert not held[dst][block] & ranks
            held[dst][block] = held[dst][block] | ranks
    return [
        {block for block in range(line.size) if len(held[position][block]) == line.size}
        for position in range(line.size)
    ]


@given(lines)
def test_every_block_comes_home_along_a_line(line):
    assert replayed(line) == [{position} for position in range(line.size)]
    assert replayed(line.mirrored()) == [{position} for position in range(line.size)]


@given(
    st.lists(lines, min_size=1, max_size=3),
    st.sampled_from([round_robin, dimension_by_dimension, synchronised_dimensions]),
    st.data(),
)
def test_messages_are_the_cells_counted(chosen, order, data):
    counts = [len(line.steps) for line in chosen]
    scatter = grid_reduce_scatter(chosen, order(counts, data.draw(st.integers(0, len(chosen) - 1))))
    ranks = int(np.prod([line.size for line in chosen]))
    root = data.draw(st.integers(0, ranks - 1))
    for port in (scatter, backwards(scatter), reduce_to_root(scatter, root, ranks)):
        for step in port:
            cells, (src, dst, shards) = step.sends(), step.messages()
            counted = Counter(zip(cells[0].tolist(), cells[1].tolist(), strict=True))
            assert counted == dict(zip(zip(src.tolist(), dst.tolist(), strict=True), shards.tolist(), strict=True))


@given(
    st.lists(lines, min_size=2, max_size=2),
    st.sampled_from([round_robin, dimension_by_dimension, synchronised_dimensions]),
)
def test_steps_of_equal_signature_send_the_same(chosen, order):
    seen: dict = {}
    for step in grid_reduce_scatter(chosen, order([len(line.steps) for line in chosen], 0)):
        messages = [part.tolist() for part in step.messages()]
        assert seen.setdefault(step.signature(), messages) == messages


def test_turns_skip_dimensions_that_are_through():
    assert round_robin([1, 3], 0) == [Turn(0, 0), Turn(1, 0), Turn(1, 1), Turn(1, 2)]
    assert round_robin([1, 3], 1) == [Turn(1, 0), Turn(0, 0), Turn(1, 1), Turn(1, 2)]


@pytest.mark.parametrize(("counts", "first"), [([1, 3], 0), ([2, 3], 1), ([3, 3, 1], 2)])
def test_side_by_side_everyone_changes_dimension_at_the_same_time(counts, first):
    turns = synchronised_dimensions(counts, first)
    assert len(turns) == len(counts) * max(counts)
    for number in range(len(counts)):
        axis = (first + number) % len(counts)
        phase = [turn for turn in turns[number * max(counts) : (number + 1) * max(counts)] if turn is not None]
        assert {turn.axis for turn in phase} == {axis}
        pieces = Counter(turn.number for turn in phase)
        assert set(pieces.values()) == {max(counts) // counts[axis]}
        assert len(pieces) == counts[axis]
