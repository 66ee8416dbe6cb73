"""The lines of the steps of a rank, written from its columns in one of two forms.

In one form a step carries all its waits, in the other one at most: further ones stand on `nop` steps before it.
"""

from __future__ import annotations

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.columns import BUFFERS, OPS, Column, RankColumns, ends_of
from chorale.synth.targets.text_columns import Words, decimals, rows_text, words_where

MAX_VALUE_CHARACTERS = 65536
NOP = "nop"
STEP_TYPES = (*(op.value for op in OPS), NOP)
UNUSED_OFFSET = -1
"""Of both operands of a `nop`, in the input."""

_NOP_TYPE = STEP_TYPES.index(NOP)
_BLOCK_END = b"\x01"
_HEAD = np.array([f'" type="{name}" srcbuf="{buffer}" srcoff="'.encode() for name in STEP_TYPES for buffer in BUFFERS])
_TARGET = np.array([f'" dstbuf="{buffer}" dstoff="'.encode() for buffer in BUFFERS])
_FLAG = np.array([b"0", b"1"])


def step_lines(columns: RankColumns, single_wait: bool) -> list[bytes]:
    """Return the lines of the steps of each block. O(instructions + waits).

    InvalidInput for more waits of an instruction than readers take of a value.
    """
    text = _lines_with_nops(columns) if single_wait else _lines_with_all_waits(columns)
    parts = iter(text.split(_BLOCK_END))
    return [next(parts) if length else b"" for length in columns.lengths.tolist()]


def _lines_with_nops(columns: RankColumns) -> bytes:
    item, within, rows = _rows(columns.waits)
    block = columns.block_of_instruction()[item]
    first = ends_of(rows)
    is_last = within == rows[item] - 1
    waited = columns.first[columns.wait_block] + columns.wait_step
    published = np.zeros(len(columns.op), dtype=np.int64)
    published[waited] = 1
    depends = np.full((2, len(item)), -1)
    waiting = columns.waits[item] > 0
    depends[0, waiting] = columns.wait_block
    depends[1, waiting] = first[waited + 1] - 1 - first[columns.first[columns.wait_block]]
    parts = [
        *_operands(columns, np.where(is_last, item, _NO_ITEM), np.arange(len(item)) - first[columns.first[block]]),
        *(b'" depid="', decimals(depends[0]), b'" deps="', decimals(depends[1])),
        *(b'" hasdep="', _FLAG[published[item] * is_last], b'"/>\n'),
        _block_ends(block),
    ]
    return rows_text(parts, len(item))


def _lines_with_all_waits(columns: RankColumns) -> bytes:
    """A row for each instruction, and one more for each of its waits after the first."""
    item, within, rows = _rows(columns.waits)
    block = columns.block_of_instruction()[item]
    waiting = columns.waits[item] > 0
    wait_block, wait_step = decimals(columns.wait_block), decimals(columns.wait_step)
    _require_short(columns, wait_block, wait_step)
    ends = [
        np.where(waiting, np.where(within == 0, b'" waits="', b" "), b""),
        words_where(waiting, wait_block),
        np.where(waiting, b":", b""),
        words_where(waiting, wait_step),
        np.where(within == rows[item] - 1, b'"/>\n', b""),
        _block_ends(block),
    ]
    operands = _operands(columns, item, item - columns.first[block])
    return rows_text([*operands, *ends], len(item), continued=within > 0, last=len(ends))


def _rows(waits: Column) -> tuple[Column, Column, Column]:
    """Return, for each row of each instruction, which instruction it is of and its number there, and how many rows each
    has: as many as it has waits, at least one."""
    rows = np.maximum(waits, 1)
    item = np.repeat(np.arange(len(waits)), rows)
    return item, np.arange(len(item)) - ends_of(rows)[item], rows


_NO_ITEM = -1


def _operands(columns: RankColumns, item: Column, number: Column) -> list[bytes | Words]:
    """Return the parts with which the steps begin in both forms; _NO_ITEM is a `nop`."""
    is_nop = item == _NO_ITEM
    kind, source, target, src, dst, count = (
        np.where(is_nop, unused, column[item]) if is_nop.any() else column[item]
        for column, unused in (
            (columns.op, _NOP_TYPE),
            (columns.src_buffer, 0),
            (columns.dst_buffer, 0),
            (columns.src_offset, UNUSED_OFFSET),
            (columns.dst_offset, UNUSED_OFFSET),
            (columns.count, 0),
        )
    )
    head, middle = _HEAD[kind * len(BUFFERS) + source], _TARGET[target]
    return [
        b'      <step s="',
        decimals(number),
        head,
        decimals(src),
        middle,
        decimals(dst),
        b'" cnt="',
        decimals(count),
    ]


def _block_ends(block: Column) -> Words:
    """Return a mark in the last row of each block."""
    return np.where(np.diff(block, append=-1) != 0, _BLOCK_END, b"")


def _require_short(columns: RankColumns, wait_block: Words, wait_step: Words) -> None:
    """Raise InvalidInput if the waits of an instruction make a longer text than readers take."""
    lengths = np.char.str_len(wait_block) + np.char.str_len(wait_step) + 2
    longest = int(np.diff(ends_of(lengths)[columns.first_wait]).max(initial=1)) - 1
    if longest > MAX_VALUE_CHARACTERS:
        rule = f"waits must have at most {MAX_VALUE_CHARACTERS} characters"
        raise InvalidInput(rule, longest, "lower it with more channels, or fewer chunks")
