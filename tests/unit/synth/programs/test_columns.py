"""Columns and the objects that they describe are the same programs."""

import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.programs.program import BUFFERS, OPS, ColumnBlocks, RankColumns, RankProgram, ends_of

LARGEST = 3 * 10**8


@st.composite
def ranks(draw: st.DrawFn, largest: int = LARGEST) -> RankProgram:
    """A rank with waits that exist, and all else as it comes."""
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    blocks, items = len(lengths), sum(lengths)
    first = ends_of(lengths)
    number, peer = st.integers(0, largest), st.integers(-1, largest)
    places = [(block, step) for block, length in enumerate(lengths) for step in range(length)]
    waits = [draw(st.lists(st.sampled_from(places), max_size=3)) for _ in range(items)]
    pairs = np.array([pair for some in waits for pair in some], dtype=np.int64).reshape(-1, 2)

    def column(strategy: st.SearchStrategy[int], length: int) -> np.ndarray:
        return np.array(draw(st.lists(strategy, min_size=length, max_size=length)), dtype=np.int64)

    columns = RankColumns(
        send_peer=column(peer, blocks),
        recv_peer=column(peer, blocks),
        channel=column(number, blocks),
        first=first,
        op=column(st.integers(0, len(OPS) - 1), items),
        src_buffer=column(st.integers(0, len(BUFFERS) - 1), items),
        src_offset=column(peer, items),
        dst_buffer=column(st.integers(0, len(BUFFERS) - 1), items),
        dst_offset=column(peer, items),
        count=column(number, items),
        first_wait=ends_of([len(some) for some in waits]),
        wait_block=pairs[:, 0],
        wait_step=pairs[:, 1],
    )
    return RankProgram(*(draw(number) for _ in range(3)), ColumnBlocks(columns))


@given(ranks())
def test_columns_of_the_objects_of_columns_are_the_same(rank):
    blocks = tuple(rank.blocks)
    again = replace(rank, blocks=blocks)
    assert again.columns == rank.columns
    assert rank.blocks == blocks == ColumnBlocks(rank.columns)
    assert again == rank
    assert hash(again) == hash(rank)
    assert len(rank.blocks) == len(blocks)
    assert pickle.loads(pickle.dumps(rank)) == rank
