"""Reads ranks of programs whose text is exactly as it is written here, into columns.

Whatever differs from that by a byte, or has a fault, is not read here, so that the XML parser and the rules of
`chorale.synth.targets.xml_assembly` judge all of it. What is read here means the same to both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from chorale.synth.programs.columns import OPS, Column, ColumnBlocks, RankColumns, ends_of
from chorale.synth.programs.program import RankProgram
from chorale.synth.targets.step_reading import TYPES, RankLines, lines_of

_NOP_TYPE = len(OPS)
assert TYPES[:_NOP_TYPE] == tuple(op.value for op in OPS)  # so that numbers mean the same


class NotCanonicalError(Exception):
    """The text has another form; whether it is a program, the XML parser has to say."""


def _require(holds: object) -> None:
    if not holds:
        raise NotCanonicalError


def read_rank(text: bytes, single_wait: bool) -> tuple[int, RankProgram]:
    """Return the rank that `text` describes, and its number. O(bytes).

    NotCanonicalError for text that is not, to the byte, as programs are written, and for what the rules for XML would
    find fault with.
    """
    try:
        lines = lines_of(text, single_wait)
    except ValueError:
        raise NotCanonicalError from None
    columns = _folded(lines) if single_wait else _columns(lines)
    number, inputs, outputs, scratch = lines.frame.tolist()
    return number, RankProgram(inputs, outputs, scratch, ColumnBlocks(columns))


def _columns(lines: RankLines) -> RankColumns:
    _require(not (lines.type == _NOP_TYPE).any() and (lines.wait_block < len(lines.channel)).all())
    return _rank_columns(lines, lines.first, _steps(lines), (lines.first_wait, lines.wait_block, lines.wait_step))


def _steps(lines: RankLines) -> tuple[Column, Column, Column, Column, Column, Column]:
    return lines.type, lines.src_buffer, lines.src_offset, lines.dst_buffer, lines.dst_offset, lines.chunks


def _rank_columns(
    lines: RankLines, first: Column, steps: Iterable[Column], waits: tuple[Column, Column, Column]
) -> RankColumns:
    op, src_buffer, src_offset, dst_buffer, dst_offset, count = steps
    first_wait, wait_block, wait_step = waits
    return RankColumns(
        send_peer=lines.send_peer,
        recv_peer=lines.recv_peer,
        channel=lines.channel,
        first=first,
        op=op,
        src_buffer=src_buffer,
        src_offset=src_offset,
        dst_buffer=dst_buffer,
        dst_offset=dst_offset,
        count=count,
        first_wait=first_wait,
        wait_block=wait_block,
        wait_step=wait_step,
    )


def _folded(lines: RankLines) -> RankColumns:
    """Return the instructions of steps with one wait each, which stand for the steps that are no `nop`."""
    is_nop, waits = lines.type == _NOP_TYPE, np.diff(lines.first_wait) > 0
    last = np.zeros(len(is_nop), dtype=np.bool_)
    last[lines.first[1:][np.diff(lines.first) > 0] - 1] = True
    after_nop = np.concatenate([np.zeros(1, dtype=np.bool_), is_nop[:-1]])[: len(is_nop)]
    _require((lines.published <= 1).all() and not (is_nop & last).any())
    _require(waits[is_nop | after_nop].all())
    block, step = lines.wait_block, lines.wait_step
    _require((block < len(lines.channel)).all())
    _require(((step >= 0) & (step < np.diff(lines.first)[block])).all())
    row = lines.first[block] + step
    _require((lines.published[row] == 1).all() and not is_nop[row].any())
    before = ends_of((~is_nop).astype(np.int64))  # instructions before each row
    first, item = before[lines.first], np.flatnonzero(~is_nop)
    first_wait = np.concatenate([np.zeros(1, dtype=np.int64), lines.first_wait[item + 1]])
    waited_step = before[row] - first[block]
    return _rank_columns(lines, first, (column[item] for column in _steps(lines)), (first_wait, block, waited_step))


_ROOT = re.compile(rb'<algo((?: [A-Za-z_]+="[ !#-%(-;=?-~]{0,255}")*)>\n')
_ATTRIBUTE = re.compile(r' ([A-Za-z_]+)="([^"]*)"')
_MAX_ATTRIBUTES = 16
_RANK_END = b"\n  </gpu>\n"


def read_root(text: bytes) -> tuple[dict[str, str], int]:
    """Return the attributes of the root element with which `text` begins, and where it ends."""
    match = _ROOT.match(text)
    if match is None:
        raise NotCanonicalError
    pairs = _ATTRIBUTE.findall(match[1].decode("ascii"))
    _require(len(pairs) <= _MAX_ATTRIBUTES and len(dict(pairs)) == len(pairs))
    return dict(pairs), match.end()


def read_ranks(text: bytes, first: int, single_wait: bool) -> list[RankProgram]:
    """Return the ranks of a program from `first` to its end, which come in order. O(bytes)."""
    ranks: list[RankProgram] = []
    while not text.startswith(b"</algo>", first):
        end = text.find(_RANK_END, first) + len(_RANK_END)
        _require(end >= len(_RANK_END))
        number, rank = read_rank(text[first:end], single_wait)
        _require(number == len(ranks))
        ranks.append(rank)
        first = end
    _require(text[first:] == b"</algo>\n")
    return ranks
