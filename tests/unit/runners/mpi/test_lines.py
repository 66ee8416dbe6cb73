"""Documents between the runner and rank 0: they survive pieces, strangers' lines and any text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.mpi.messages import PIECE_CHARACTERS, MessageAssembler, decode_line, encode_line, encode_pieces

documents = st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.floats(allow_nan=False)))


@given(documents)
def test_a_line_says_what_was_written(document: dict[str, Any]) -> None:
    line = encode_line(document)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_line(line) == document


@pytest.mark.parametrize("line", [b"", b"\xff\xfe", b"= BAD TERMINATION", b'{"answer":"more"}', b" @chorale {}"])
def test_lines_of_others_are_none_of_ours(line: bytes) -> None:
    assert decode_line(line) is None


@pytest.mark.parametrize("length", [0, 1, PIECE_CHARACTERS - 8, PIECE_CHARACTERS, 5 * PIECE_CHARACTERS + 3])
def test_pieces_are_short_lines_that_make_up_the_document(length: int) -> None:
    document = {"t": "+=" * (length // 2) + "é" * (length % 2)}
    lines = list(encode_pieces(document))
    assert all(len(line) <= PIECE_CHARACTERS + 2 and line.count(b"\n") == 1 for line in lines)
    assembly = MessageAssembler()
    for _ in range(2):  # the second document begins afresh
        assert [assembly.add(line) for line in lines] == [None] * (len(lines) - 1) + [document]
