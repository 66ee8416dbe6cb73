"""The lines of the blocks of a rank, written from its columns in one of two forms.

In one form a step carries all its waits, in the other one at most: further ones stand on `nop` steps before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.programs.columns import BUFFERS, NO_PEER, OPS, Column, RankColumns, RankRecord, record_of
from chorale.synth.targets.words import BASE, MINUS, ZERO, Bytes, Words, words_of

MAX_VALUE_CHARACTERS = 65536
NOP = "nop"
STEP_TYPES = (*(op.value for op in OPS), NOP)
UNUSED_OFFSET = -1
"""Of both operands of a `nop`, in the input."""

_FIXED = (
    *('      <step s="', '" cnt="', '" waits="', '" depid="', '" deps="', '" hasdep="', '"/>\n'),
    *('    <tb id="', '" send="', '" recv="', '" chan="', '">\n', "    </tb>\n"),
)
(_STEP, _COUNT, _WAITS, _WAIT_BLOCK, _WAIT_STEP, _PUBLISHED, _STEP_END) = range(7)
(_BLOCK, _SEND, _RECV, _CHANNEL, _HEAD_END, _BLOCK_END) = range(7, len(_FIXED))
_FIRST_TARGET = len(_FIXED)
_FIRST_SOURCE = _FIRST_TARGET + len(BUFFERS)
_WORDS = words_of(
    [
        *_FIXED,
        *(f'" dstbuf="{buffer}" dstoff="' for buffer in BUFFERS),
        *(f'" type="{name}" srcbuf="{buffer}" srcoff="' for name in STEP_TYPES for buffer in BUFFERS),
    ]
)
_BUFFER_COUNT = len(BUFFERS)
_NOP_SOURCE = _FIRST_SOURCE + STEP_TYPES.index(NOP) * _BUFFER_COUNT
_COLON, _SPACE = b": "
_MOST_BYTES = 20  # of a number
_MOST_BYTES_OF_STEP = 110 + 7 * _MOST_BYTES
_MOST_BYTES_OF_BLOCK = 60 + 4 * _MOST_BYTES
_MOST_BYTES_OF_WAIT = 2 + 2 * _MOST_BYTES


def block_lines(columns: RankColumns, single_wait: bool, head: bytes = b"", end: bytes = b"") -> bytes:
    """Return `head`, the lines of all blocks, from the first <tb> to the last </tb>, and `end`. O(bytes).

    InvalidInput for more waits of an instruction than readers take of a value.
    """
    frame = Frame(np.frombuffer(head, dtype=np.uint8), np.frombuffer(end, dtype=np.uint8))
    text, longest = _block_lines(record_of(columns), _WORDS, frame, single_wait)
    if longest > MAX_VALUE_CHARACTERS:
        rule = f"waits must have at most {MAX_VALUE_CHARACTERS} characters"
        raise InvalidInput(rule, longest, "lower it with more channels, or fewer chunks")
    return text.tobytes()


class Frame(NamedTuple):
    """What stands before and after the lines of all blocks."""

    head: Bytes
    end: Bytes


@compiled
def _block_lines(columns: RankRecord, words: Words, frame: Frame, single_wait: bool) -> tuple[Bytes, int]:
    """Return the lines, and the characters of the longest value of waits; numbers are at least -1."""
    items, blocks = len(columns.op), len(columns.channel)
    rows = np.zeros(items + 1, dtype=np.int64)  # as which steps are written up to each instruction
    for item in range(items):
        rows[item + 1] = rows[item] + max(1, columns.first_wait[item + 1] - columns.first_wait[item])
    published = np.zeros(items, dtype=np.int64)
    for wait in range(len(columns.wait_block)):
        published[columns.first[columns.wait_block[wait]] + columns.wait_step[wait]] = 1
    size = blocks * _MOST_BYTES_OF_BLOCK + rows[items] * _MOST_BYTES_OF_STEP
    size += len(columns.wait_block) * _MOST_BYTES_OF_WAIT + len(frame.head) + len(frame.end)
    text = np.empty(size, dtype=np.uint8)
    end, longest = len(frame.head), 0
    text[:end] = frame.head
    for block in range(blocks):
        end = _put_head(text, end, columns, words, block)
        for item in range(columns.first[block], columns.first[block + 1]):
            if single_wait:
                end = _put_steps(text, end, columns, words, block, item, rows, published)
                continue
            end = _put_step(text, end, columns, words, item, item - columns.first[block])
            before = end
            end = _put_waits(text, end, columns, words, item)
            longest = max(longest, end - before - (words.first[_WAITS + 1] - words.first[_WAITS]))
            end = _put_word(text, end, words, _STEP_END)
        end = _put_word(text, end, words, _BLOCK_END)
    text[end : end + len(frame.end)] = frame.end
    return text[: end + len(frame.end)], longest


@inlined
def _put_head(text: Bytes, end: int, columns: RankRecord, words: Words, block: int) -> int:
    end = _put_number(text, _put_word(text, end, words, _BLOCK), block)
    end = _put_number(text, _put_word(text, end, words, _SEND), columns.send_peer[block])
    end = _put_number(text, _put_word(text, end, words, _RECV), columns.recv_peer[block])
    end = _put_number(text, _put_word(text, end, words, _CHANNEL), columns.channel[block])
    return _put_word(text, end, words, _HEAD_END)


@inlined
def _put_step(text: Bytes, end: int, columns: RankRecord, words: Words, item: int, number: int) -> int:
    """Write a step up to its number of chunks."""
    source = _FIRST_SOURCE + columns.op[item] * _BUFFER_COUNT + columns.src_buffer[item]
    end = _put_number(text, _put_word(text, end, words, _STEP), number)
    end = _put_number(text, _put_word(text, end, words, source), columns.src_offset[item])
    end = _put_number(
        text, _put_word(text, end, words, _FIRST_TARGET + columns.dst_buffer[item]), columns.dst_offset[item]
    )
    return _put_number(text, _put_word(text, end, words, _COUNT), columns.chunks[item])


@inlined
def _put_nop(text: Bytes, end: int, words: Words, number: int) -> int:
    """Write a `nop` up to its number of chunks."""
    end = _put_number(text, _put_word(text, end, words, _STEP), number)
    end = _put_number(text, _put_word(text, end, words, _NOP_SOURCE), UNUSED_OFFSET)
    end = _put_number(text, _put_word(text, end, words, _FIRST_TARGET), UNUSED_OFFSET)
    return _put_number(text, _put_word(text, end, words, _COUNT), 0)


@inlined
def _put_waits(text: Bytes, end: int, columns: RankRecord, words: Words, item: int) -> int:
    """Write all waits of an instruction."""
    for wait in range(columns.first_wait[item], columns.first_wait[item + 1]):
        is_first = wait == columns.first_wait[item]
        end = _put_word(text, end, words, _WAITS) if is_first else _put_byte(text, end, _SPACE)
        end = _put_byte(text, _put_number(text, end, columns.wait_block[wait]), _COLON)
        end = _put_number(text, end, columns.wait_step[wait])
    return end


@inlined
def _put_steps(
    text: Bytes, end: int, columns: RankRecord, words: Words, block: int, item: int, rows: Column, published: Column
) -> int:
    """Write an instruction as steps of one wait each, which are counted from the first step of its block."""
    begin = rows[columns.first[block]]
    for row in range(rows[item], rows[item + 1]):
        is_last = row == rows[item + 1] - 1
        if is_last:
            end = _put_step(text, end, columns, words, item, row - begin)
        else:
            end = _put_nop(text, end, words, row - begin)
        wait = columns.first_wait[item] + row - rows[item]
        depid, deps = NO_PEER, NO_PEER
        if wait < columns.first_wait[item + 1]:
            depid = columns.wait_block[wait]
            first = columns.first[depid]
            deps = rows[first + columns.wait_step[wait] + 1] - 1 - rows[first]
        end = _put_number(text, _put_word(text, end, words, _WAIT_BLOCK), depid)
        end = _put_number(text, _put_word(text, end, words, _WAIT_STEP), deps)
        end = _put_word(text, end, words, _PUBLISHED)
        end = _put_byte(text, end, ZERO + (published[item] if is_last else 0))
        end = _put_word(text, end, words, _STEP_END)
    return end


@inlined
def _put_word(text: Bytes, end: int, words: Words, number: int) -> int:
    first, length = words.first[number], int(words.first[number + 1] - words.first[number])
    for index in range(length):
        text[end + index] = words.text[first + index]
    return end + length


@inlined
def _put_byte(text: Bytes, end: int, byte: int) -> int:
    text[end] = byte
    return end + 1


@inlined
def _put_number(text: Bytes, end: int, number: int) -> int:
    if number < 0:
        end = _put_byte(text, end, MINUS)
        number = -number
    length, rest = 1, number
    while rest >= BASE:
        rest, length = rest // BASE, length + 1
    for index in range(end + length - 1, end - 1, -1):
        text[index] = ZERO + number % BASE
        number = number // BASE
    return end + length
