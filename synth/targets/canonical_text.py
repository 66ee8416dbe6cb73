"""Reads ranks of programs whose text is exactly as it is written here, into columns.

Whatever differs from that by a byte, or has a fault, is not read here, so that the XML parser and the rules of
`chorale.synth.targets.xml_assembly` judge all of it. What is read here means the same to both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from chorale.synth.programs.columns import BUFFERS, Column, ColumnBlocks, RankColumns, ends_of
from chorale.synth.programs.program import RankProgram
from chorale.synth.targets.step_text import NOP, STEP_TYPES

_LONGEST_NUMBER = 9
_LARGEST_IN_WAIT = 9_999_999
_MOST_WAITS = 4096  # of a step; their text is surely shorter than the longest value
_NOP_TYPE = STEP_TYPES.index(NOP)

GPU, GPU_END, BLOCK, BLOCK_END, STEP = range(5)


class NotCanonicalError(Exception):
    """The text has another form; whether it is a program, the XML parser has to say."""


def _require(holds: object) -> None:
    if not holds:
        raise NotCanonicalError


class _Line(NamedTuple):
    """A line without its numbers: its kind, how many numbers it has, and of a step the type and both buffers."""

    kind: int
    numbers: int
    type: int = 0
    source: int = 0
    target: int = 0


_FRAME = {
    b'  <gpu id="" i_chunks="" o_chunks="" s_chunks="">': _Line(GPU, 4),
    b"  </gpu>": _Line(GPU_END, 0),
    b'    <tb id="" send="" recv="" chan="">': _Line(BLOCK, 4),
    b"    </tb>": _Line(BLOCK_END, 0),
}
_STEP = re.compile(
    rb'      <step s="" type="([a-z]+)" srcbuf="([ios])" srcoff="" dstbuf="([ios])" dstoff="" cnt=""(.*)/>'
)
_ONE_WAIT = b' depid="" deps="" hasdep=""'
_ALL_WAITS = re.compile(rb' waits=":(?: :)*"')
_TYPES = {name.encode(): number for number, name in enumerate(STEP_TYPES)}
_BUFFERS = {buffer.encode(): number for number, buffer in enumerate(BUFFERS)}


class LineForms(dict[bytes, int]):
    """Numbers the forms of lines as they come up: the text without its numbers; `lines` says what each means."""

    def __init__(self, single_wait: bool) -> None:
        super().__init__()
        self.lines: list[_Line] = []
        self.single_wait = single_wait

    def __missing__(self, text: bytes) -> int:
        line = _FRAME.get(text) or self._step(text)
        self[text] = len(self.lines)
        self.lines.append(line)
        return self[text]

    def _step(self, text: bytes) -> _Line:
        match = _STEP.fullmatch(text)
        if match is None or match[1] not in _TYPES:
            raise NotCanonicalError
        step = _TYPES[match[1]], _BUFFERS[match[2]], _BUFFERS[match[3]]
        if self.single_wait:
            _require(match[4] == _ONE_WAIT)
            return _Line(STEP, 7, *step)
        waits = match[4].count(b":")
        _require(step[0] != _NOP_TYPE and waits <= _MOST_WAITS and (not match[4] or _ALL_WAITS.fullmatch(match[4])))
        return _Line(STEP, 4 + 2 * waits, *step)


_DIGITS = b"-0123456789"
_NUMERIC = bytes(int(byte in _DIGITS) for byte in range(256))
_AROUND = np.zeros((256, 256), dtype=np.bool_)
"""By the characters before and after: where forms of lines have numbers, and nothing else."""
for _pair in ('""', '":', " :", ": ", ':"'):
    _AROUND[ord(_pair[0]), ord(_pair[1])] = True


def _numbers(text: bytes) -> Column:
    """Return all numbers of `text` in order: -1, or decimals without needless zeros. O(bytes)."""
    data, marks = np.frombuffer(text, dtype=np.uint8), np.frombuffer(text.translate(_NUMERIC), dtype=np.uint8)
    edges = np.flatnonzero(marks[1:] != marks[:-1]) + 1
    _require(len(edges) % 2 == 0 and not marks[0])
    first, end = edges[::2], edges[1::2]
    length, leading = end - first, data[first]
    _require(_AROUND[data[first - 1], data[end]].all() and length.max(initial=0) <= _LONGEST_NUMBER)
    negative = np.flatnonzero(leading == ord("-"))
    _require(text.count(b"-") == len(negative) and (length[negative] == 2).all())
    _require((data[first[negative] + 1] == ord("1")).all() and not ((leading == ord("0")) & (length > 1)).any())
    values = leading.astype(np.int64) - ord("0")
    longer = np.flatnonzero(length > 1)
    for digit in range(1, int(length.max(initial=1))):
        longer = longer[length[longer] > digit]
        values[longer] = values[longer] * 10 + data[first[longer] + digit] - ord("0")
    values[negative] = -1
    return values


class _Lines(NamedTuple):
    """The lines of a rank.

    form:   of each line of a step, a row of what `_Line` has
    first:  first step of each block, and the end of the last
    frame, blocks, steps: the numbers of the rank; of each block; the first four of each step
    rest:   further numbers of all steps; first_rest: where those of each begin, and the end
    """

    form: Column
    first: Column
    frame: Column
    blocks: Column
    steps: Column
    rest: Column
    first_rest: Column


def _lines(text: bytes, forms: LineForms) -> _Lines:
    texts = text.translate(None, _DIGITS).split(b"\n")
    _require(texts.pop() == b"")
    codes = np.fromiter(map(forms.__getitem__, texts), dtype=np.int64, count=len(texts))
    form = np.array(forms.lines, dtype=np.int64)[codes]
    kind, values, before = form[:, 0], _numbers(text), ends_of(form[:, 1])
    _require(len(values) == before[-1])
    begins, ends, steps = (np.flatnonzero(kind == each) for each in (BLOCK, BLOCK_END, STEP))
    _require(len(begins) == len(ends) and len(texts) == 2 + 2 * len(begins) + len(steps))
    _require(kind[0] == GPU and kind[-1] == GPU_END and (begins < ends).all())
    _require(np.array_equal(begins, 1 + np.concatenate([[0], ends])[:-1]) and (ends[-1:] == len(texts) - 2).all())
    form = form[steps]
    further = form[:, 1] - 4
    first_rest = ends_of(further)
    rest = np.repeat(before[steps] + 4 - first_rest[:-1], further) + np.arange(first_rest[-1])
    return _Lines(
        form,
        ends_of(ends - begins - 1),
        values[:4],
        values[before[begins, None] + np.arange(4)],
        values[before[steps, None] + np.arange(4)],
        values[rest],
        first_rest,
    )


def read_rank(text: bytes, forms: LineForms) -> tuple[int, RankProgram]:
    """Return the rank that `text` describes, and its number. O(bytes).

    `forms` are those that came up in ranks before. NotCanonicalError for text that is not, to the byte, as programs are
    written, and for what the rules for XML would find fault with.
    """
    lines = _lines(text, forms)
    number = np.arange(len(lines.steps)) - np.repeat(lines.first[:-1], np.diff(lines.first))
    _require(np.array_equal(lines.blocks[:, 0], np.arange(len(lines.blocks))))
    _require(np.array_equal(lines.steps[:, 0], number) and (lines.steps[:, 3] >= 0).all() and (lines.frame >= 0).all())
    columns = _folded(lines) if forms.single_wait else _columns(lines)
    inputs, outputs, scratch = lines.frame[1:].tolist()
    return int(lines.frame[0]), RankProgram(inputs, outputs, scratch, ColumnBlocks(columns))


def _columns(lines: _Lines) -> RankColumns:
    waits = lines.rest.reshape(-1, 2)
    _require((waits >= 0).all() and (waits <= _LARGEST_IN_WAIT).all() and (waits[:, 0] < len(lines.blocks)).all())
    every = np.arange(len(lines.steps))
    return _rank_columns(lines, every, lines.first, lines.first_rest // 2, (waits[:, 0], waits[:, 1]))


def _folded(lines: _Lines) -> RankColumns:
    """Return the instructions of steps with one wait each, which stand for the steps that are no `nop`."""
    waited_block, waited_step, published = lines.rest.reshape(-1, 3).T
    is_nop, waits = lines.form[:, 2] == _NOP_TYPE, waited_block >= 0
    last = np.zeros(len(is_nop), dtype=np.bool_)
    last[lines.first[1:][np.diff(lines.first) > 0] - 1] = True
    after_nop = np.concatenate([np.zeros(1, dtype=np.bool_), is_nop[:-1]])[: len(is_nop)]
    _require(((published == 0) | (published == 1)).all() and not (is_nop & last).any())
    _require(waits[is_nop | after_nop].all())
    block, step = waited_block[waits], waited_step[waits]
    _require((block < len(lines.blocks)).all())
    _require(((step >= 0) & (step < np.diff(lines.first)[block])).all())
    row = lines.first[block] + step
    _require((published[row] == 1).all() and not is_nop[row].any())
    before = ends_of((~is_nop).astype(np.int64))  # instructions before each row
    first, item = before[lines.first], np.flatnonzero(~is_nop)
    first_wait = np.concatenate([np.zeros(1, dtype=np.int64), ends_of(waits.astype(np.int64))[item + 1]])
    return _rank_columns(lines, item, first, first_wait, (block, before[row] - first[block]))


def _rank_columns(
    lines: _Lines, rows: Column, first: Column, first_wait: Column, waits: tuple[Column, Column]
) -> RankColumns:
    return RankColumns(
        send_peer=lines.blocks[:, 1],
        recv_peer=lines.blocks[:, 2],
        channel=lines.blocks[:, 3],
        first=first,
        op=lines.form[rows, 2],
        src_buffer=lines.form[rows, 3],
        src_offset=lines.steps[rows, 1],
        dst_buffer=lines.form[rows, 4],
        dst_offset=lines.steps[rows, 2],
        count=lines.steps[rows, 3],
        first_wait=first_wait,
        wait_block=waits[0],
        wait_step=waits[1],
    )


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
    forms = LineForms(single_wait)
    ranks: list[RankProgram] = []
    while not text.startswith(b"</algo>", first):
        end = text.find(_RANK_END, first) + len(_RANK_END)
        _require(end >= len(_RANK_END))
        number, rank = read_rank(text[first:end], forms)
        _require(number == len(ranks))
        ranks.append(rank)
        first = end
    _require(text[first:] == b"</algo>\n")
    return ranks
