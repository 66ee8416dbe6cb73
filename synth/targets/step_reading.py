"""Reads the lines of one rank, which must be to the byte as programs are written, as columns of numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.programs.columns import Column
from chorale.synth.targets.words import BASE, MINUS, NINE, ZERO, Bytes, Words, words_of

LONGEST_NUMBER = 9
LONGEST_NUMBER_IN_WAIT = 7
MOST_WAITS = 4096  # of a step; their text is surely shorter than the longest value

TYPES = ("s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop")
"""As which the steps are numbered."""

_WORDS = words_of(
    [
        *('  <gpu id="', '" i_chunks="', '" o_chunks="', '" s_chunks="', "  </gpu>\n"),
        *('    <tb id="', '" send="', '" recv="', '" chan="', "    </tb>\n", '">\n', '"/>\n'),
        *('      <step s="', '" type="', '" srcoff="', '" dstbuf="', '" dstoff="', '" cnt="'),
        *('" waits="', '" depid="', '" deps="', '" hasdep="'),
        *(f'{name}" srcbuf="' for name in TYPES),
    ]
)
(_RANK, _INPUTS, _OUTPUTS, _SCRATCH, _RANK_END) = range(5)
(_BLOCK, _SEND, _RECV, _CHANNEL, _BLOCK_END, _HEAD_END, _STEP_END) = range(5, 12)
(_STEP, _TYPE, _SOURCE, _BUFFER, _TARGET, _COUNT) = range(12, 18)
(_WAITS, _WAIT_BLOCK, _WAIT_STEP, _PUBLISHED, _FIRST_TYPE) = range(18, 23)
_TYPE_COUNT = len(TYPES)
_INPUT, _OUTPUT, _SCRATCH_BUFFER = b"ios"
_COLON, _SPACE = b": "
_LEAST_BYTES_OF_LINE = len("  </gpu>\n")
_LEAST_BYTES_OF_WAIT = len(" 0:0")


class RankLines(NamedTuple):
    """The numbers of a rank as they stand in its lines.

    frame:       number of the rank, chunks of input, output and scratch
    send_peer, recv_peer, channel: of each block
    first:       first step of each block, and the end of the last
    type:        of each step, an index into TYPES
    src_buffer, dst_buffer: 0 for i, 1 for o, 2 for s
    src_offset, dst_offset, chunks: of each step
    first_wait:  first wait of each step, and the end of the last
    wait_block, wait_step: of each wait
    published:   of each step whether others may wait for it, where steps have one wait at most
    """

    frame: Column
    send_peer: Column
    recv_peer: Column
    channel: Column
    first: Column
    type: Column
    src_buffer: Column
    src_offset: Column
    dst_buffer: Column
    dst_offset: Column
    chunks: Column
    first_wait: Column
    wait_block: Column
    wait_step: Column
    published: Column


def lines_of(text: bytes, single_wait: bool) -> RankLines:
    """Return what stands in the lines of a rank. ValueError for any other text. O(bytes)."""
    return _lines(np.frombuffer(text, dtype=np.uint8), _WORDS, single_wait)


class _Ends(NamedTuple):
    """How many blocks, steps and waits there are so far: each an array of one number."""

    blocks: Column
    steps: Column
    waits: Column


@compiled
def _lines(text: Bytes, words: Words, single_wait: bool) -> RankLines:
    lines, waits = len(text) // _LEAST_BYTES_OF_LINE, len(text) // _LEAST_BYTES_OF_WAIT  # at most
    result = RankLines(
        np.zeros(4, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines + 1, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
        np.empty(lines + 1, dtype=np.int64),
        np.empty(waits, dtype=np.int64),
        np.empty(waits, dtype=np.int64),
        np.empty(lines, dtype=np.int64),
    )
    ends = _Ends(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))
    result.first[0], result.first_wait[0] = 0, 0
    position = 0
    for index in range(4):
        position = _after(text, position, words, _RANK + index)
        result.frame[index], position = _count(text, position)
    position = _after(text, position, words, _HEAD_END)
    while not _begins(text, position, words, _RANK_END):
        position = _read_block(text, position, words, result, ends, single_wait)
    if _after(text, position, words, _RANK_END) != len(text):
        raise ValueError("text after the end of a rank")
    blocks, steps, waits = ends.blocks[0], ends.steps[0], ends.waits[0]
    return RankLines(
        result.frame,
        result.send_peer[:blocks],
        result.recv_peer[:blocks],
        result.channel[:blocks],
        result.first[: blocks + 1],
        result.type[:steps],
        result.src_buffer[:steps],
        result.src_offset[:steps],
        result.dst_buffer[:steps],
        result.dst_offset[:steps],
        result.chunks[:steps],
        result.first_wait[: steps + 1],
        result.wait_block[:waits],
        result.wait_step[:waits],
        result.published[:steps],
    )


@inlined
def _read_block(text: Bytes, position: int, words: Words, result: RankLines, ends: _Ends, single_wait: bool) -> int:
    block, first = ends.blocks[0], ends.steps[0]
    position = _after(text, position, words, _BLOCK)
    number, position = _count(text, position)
    if number != block:
        raise ValueError("blocks must be numbered in order")
    result.send_peer[block], position = _number(text, _after(text, position, words, _SEND))
    result.recv_peer[block], position = _number(text, _after(text, position, words, _RECV))
    result.channel[block], position = _number(text, _after(text, position, words, _CHANNEL))
    position = _after(text, position, words, _HEAD_END)
    while not _begins(text, position, words, _BLOCK_END):
        position = _read_step(text, position, words, result, ends, ends.steps[0] - first)
        if single_wait:
            position = _read_wait(text, position, words, result, ends)
        else:
            position = _read_waits(text, position, words, result, ends)
        ends.steps[0] += 1
        result.first_wait[ends.steps[0]] = ends.waits[0]
    ends.blocks[0] = block + 1
    result.first[block + 1] = ends.steps[0]
    return _after(text, position, words, _BLOCK_END)


@inlined
def _read_step(text: Bytes, position: int, words: Words, result: RankLines, ends: _Ends, expected: int) -> int:
    """Read a step up to its number of chunks."""
    step = ends.steps[0]
    number, position = _count(text, _after(text, position, words, _STEP))
    if number != expected:
        raise ValueError("steps must be numbered in order")
    position = _after(text, position, words, _TYPE)
    kind = 0
    while kind < _TYPE_COUNT and not _begins(text, position, words, _FIRST_TYPE + kind):
        kind += 1
    if kind == _TYPE_COUNT:
        raise ValueError("a step must have a type that is known")
    position = _after(text, position, words, _FIRST_TYPE + kind)
    result.type[step] = kind
    result.src_buffer[step], position = _buffer(text, position)
    result.src_offset[step], position = _number(text, _after(text, position, words, _SOURCE))
    result.dst_buffer[step], position = _buffer(text, _after(text, position, words, _BUFFER))
    result.dst_offset[step], position = _number(text, _after(text, position, words, _TARGET))
    result.chunks[step], position = _count(text, _after(text, position, words, _COUNT))
    return position


@inlined
def _read_wait(text: Bytes, position: int, words: Words, result: RankLines, ends: _Ends) -> int:
    """Read the wait of a step that has at most one, and whether others may wait for the step."""
    block, position = _number(text, _after(text, position, words, _WAIT_BLOCK))
    step, position = _number(text, _after(text, position, words, _WAIT_STEP))
    published, position = _count(text, _after(text, position, words, _PUBLISHED))
    if block >= 0:
        result.wait_block[ends.waits[0]], result.wait_step[ends.waits[0]] = block, step
        ends.waits[0] += 1
    result.published[ends.steps[0]] = published
    return _after(text, position, words, _STEP_END)


@inlined
def _read_waits(text: Bytes, position: int, words: Words, result: RankLines, ends: _Ends) -> int:
    """Read all waits of a step."""
    result.published[ends.steps[0]] = 0
    if _begins(text, position, words, _STEP_END):
        return _after(text, position, words, _STEP_END)
    position = _after(text, position, words, _WAITS)
    first, wait = ends.waits[0], ends.waits[0]
    while wait == first or _is(text, position, _SPACE):
        begin = position + (wait > first)
        block, position = _count(text, begin)
        if not _is(text, position, _COLON) or position - begin > LONGEST_NUMBER_IN_WAIT:
            raise ValueError("a wait must be two numbers of at most seven digits")
        begin = position + 1
        step, position = _count(text, begin)
        if wait - first == MOST_WAITS or position - begin > LONGEST_NUMBER_IN_WAIT:
            raise ValueError("a wait must be two numbers of at most seven digits")
        result.wait_block[wait], result.wait_step[wait] = block, step
        wait += 1
    ends.waits[0] = wait
    return _after(text, position, words, _STEP_END)


@inlined
def _is(text: Bytes, position: int, byte: int) -> bool:
    return position < len(text) and bool(text[position] == byte)


@inlined
def _begins(text: Bytes, position: int, words: Words, number: int) -> bool:
    """Return whether a word stands at `position`."""
    first, length = words.first[number], words.first[number + 1] - words.first[number]
    if position + length > len(text):
        return False
    same = 0
    while same < length and text[position + same] == words.text[first + same]:
        same += 1
    return bool(same == length)


@inlined
def _after(text: Bytes, position: int, words: Words, number: int) -> int:
    """Return where the word that must stand at `position` ends."""
    if not _begins(text, position, words, number):
        raise ValueError("the text has another form")
    end: int = position + words.first[number + 1] - words.first[number]
    return end


@inlined
def _buffer(text: Bytes, position: int) -> tuple[int, int]:
    if _is(text, position, _INPUT):
        return 0, position + 1
    if _is(text, position, _OUTPUT):
        return 1, position + 1
    if not _is(text, position, _SCRATCH_BUFFER):
        raise ValueError("a buffer must be i, o or s")
    return 2, position + 1


@inlined
def _number(text: Bytes, position: int) -> tuple[int, int]:
    """Return a number, which may be -1, and where it ends."""
    if not _is(text, position, MINUS):
        return _count(text, position)
    value, end = _count(text, position + 1)
    if value != 1:
        raise ValueError("a number below 0 must be -1")
    return -1, end


@inlined
def _count(text: Bytes, position: int) -> tuple[int, int]:
    """Return a number of at most nine digits, without needless zeros, and where it ends."""
    value, end = 0, position
    while end < len(text) and ZERO <= text[end] <= NINE:
        value = value * BASE + int(text[end]) - ZERO  # a byte alone would overflow as Python
        end += 1
        if end - position > LONGEST_NUMBER:
            raise ValueError("a number must have at most nine digits")
    if end == position or (end - position > 1 and text[position] == ZERO):
        raise ValueError("a number must have digits, and no needless zeros")
    return value, end
