"""Random ranks as columns, sound and unsound."""

from dataclasses import fields, replace

import numpy as np
from hypothesis import strategies as st

from chorale.synth.programs.program import (
    BUFFERS,
    OPS,
    ColumnBlocks,
    Program,
    RankColumns,
    RankProgram,
    ends_of,
)

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


UNTOUCHED = {"first", "first_wait"}
VALUES = (-2, -1, 0, 1, 2, 3, 7, 72, 216, 4097, 32768, 2**24 + 1)


def damaged(program: Program, data: st.DataObject) -> Program:
    """Return `program` with one number of one column of one rank changed; it may still be right."""
    rank = data.draw(st.integers(0, len(program.ranks) - 1))
    columns = program.ranks[rank].columns
    names = [item.name for item in fields(RankColumns) if item.name not in UNTOUCHED]
    name = data.draw(st.sampled_from([name for name in names if len(getattr(columns, name))]))
    column = getattr(columns, name).copy()
    domain = {"op": range(len(OPS)), "src_buffer": range(3), "dst_buffer": range(3)}.get(name, VALUES)
    column[data.draw(st.integers(0, len(column) - 1))] = data.draw(st.sampled_from(domain))
    body = replace(program.ranks[rank], blocks=ColumnBlocks(replace(columns, **{name: column})))
    return replace(program, ranks=(*program.ranks[:rank], body, *program.ranks[rank + 1 :]))


def of_objects(program: Program) -> Program:
    """Return `program` with blocks that are objects, so that rules go through them one by one."""
    return replace(program, ranks=tuple(replace(rank, blocks=tuple(rank.blocks)) for rank in program.ranks))
