"""Writes program documents: one element per line and one space between attributes, so that equal programs have equal
bytes.

In one form a step carries all its waits, in the other one at most: further ones stand on `nop` steps before it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import BUFFERS, OPS, RankColumns, RankProgram, ends_of

MAX_VALUE_CHARACTERS = 65536
LONGEST_VALUE = 255  # of all but steps; what MSCCL's reader keeps
NOP = "nop"
_NOP_OPERANDS = f'" type="{NOP}" srcbuf="i" srcoff="-1" dstbuf="i" dstoff="-1" cnt="0'
_PLAIN = re.compile(r"[ !#-%(-;=?-~]*")  # printable, without < > & and quotes

Attribute = str | int


def document_text(root: Mapping[str, Attribute], ranks: Iterable[RankProgram], single_wait: bool) -> str:
    """Return the text of a program whose root has the attributes `root`.

    `single_wait`: whether a step carries one wait at most. InvalidInput for values that readers do not take.
    """
    words = " ".join(["<algo", *(f'{key}="{_plain(key, value)}"' for key, value in root.items())])
    return "".join(
        [f"{words}>\n", *(rank_text(number, rank, single_wait) for number, rank in enumerate(ranks)), "</algo>\n"]
    )


def rank_text(number: int, rank: RankProgram, single_wait: bool) -> str:
    """Return the lines of rank `number`. O(instructions + waits)."""
    columns = rank.columns
    chunks = f'i_chunks="{rank.input_chunks}" o_chunks="{rank.output_chunks}" s_chunks="{rank.scratch_chunks}"'
    lines = [f'  <gpu id="{number}" {chunks}>']
    steps = _single_steps(columns) if single_wait else _joined_steps(columns)
    ends = zip(columns.send_peer.tolist(), columns.recv_peer.tolist(), columns.channel.tolist(), strict=True)
    for block, (send, recv, channel) in enumerate(ends):
        lines.append(f'    <tb id="{block}" send="{send}" recv="{recv}" chan="{channel}">')
        lines += next(steps)
        lines.append("    </tb>")
    lines.append("  </gpu>\n")
    return "\n".join(lines)


def _operands(columns: RankColumns) -> list[str]:
    """Return what the step of each instruction says after its number, up to its chunks."""
    sources = [f'" type="{op.value}" srcbuf="{buffer}" srcoff="' for op in OPS for buffer in BUFFERS]
    targets = [f'" dstbuf="{buffer}" dstoff="' for buffer in BUFFERS]
    rows = zip(
        (columns.op * len(BUFFERS) + columns.src_buffer).tolist(),
        columns.src_offset.tolist(),
        columns.dst_buffer.tolist(),
        columns.dst_offset.tolist(),
        columns.count.tolist(),
        strict=True,
    )
    return [f'{sources[kind]}{src}{targets[into]}{dst}" cnt="{count}' for kind, src, into, dst, count in rows]


def _joined_steps(columns: RankColumns) -> Iterator[list[str]]:
    """Yield the steps of each block, with all waits of each."""
    operands, bounds, first = _operands(columns), columns.first_wait.tolist(), columns.first.tolist()
    pairs = zip(columns.wait_block.tolist(), columns.wait_step.tolist(), strict=True)
    waits = [f"{block}:{step}" for block, step in pairs]
    texts = [" ".join(waits[low:high]) for low, high in pairwise(bounds)]
    longest = max(map(len, texts), default=0)
    if longest > MAX_VALUE_CHARACTERS:
        rule = f"waits must have at most {MAX_VALUE_CHARACTERS} characters"
        raise InvalidInput(rule, longest, "lower it with more channels, or fewer chunks")
    for begin, end in pairwise(first):
        yield [
            f'      <step s="{item - begin}{operands[item]}" waits="{texts[item]}"/>'
            if texts[item]
            else f'      <step s="{item - begin}{operands[item]}"/>'
            for item in range(begin, end)
        ]


def _single_steps(columns: RankColumns) -> Iterator[list[str]]:
    """Yield the steps of each block, with a `nop` for each further wait."""
    operands, bounds, first = _operands(columns), columns.first_wait.tolist(), columns.first.tolist()
    rows = ends_of(np.maximum(columns.waits, 1))  # the steps written before each instruction
    waited = columns.first[columns.wait_block] + columns.wait_step
    published = np.zeros(len(operands), dtype=np.int64)
    published[waited] = 1
    steps = rows[waited + 1] - 1 - rows[columns.first[columns.wait_block]]
    waits = [f'{b}" deps="{s}' for b, s in zip(columns.wait_block.tolist(), steps.tolist(), strict=True)]
    is_awaited, row = published.tolist(), rows.tolist()
    for begin, end in pairwise(first):
        lines: list[str] = []
        for item in range(begin, end):
            carried = waits[bounds[item] : bounds[item + 1]] or ['-1" deps="-1']
            number = row[item] - row[begin]
            for wait in carried[:-1]:
                lines.append(f'      <step s="{number}{_NOP_OPERANDS}" depid="{wait}" hasdep="0"/>')
                number += 1
            step = f'{number}{operands[item]}" depid="{carried[-1]}" hasdep="{is_awaited[item]}'
            lines.append(f'      <step s="{step}"/>')
        yield lines


def _plain(key: str, value: Attribute) -> str:
    if isinstance(value, int):
        return str(value)
    if len(value) > LONGEST_VALUE or _PLAIN.fullmatch(value) is None:
        rule = f"{key} must be at most {LONGEST_VALUE} printable ASCII characters without < > & and quotes"
        raise InvalidInput(rule, value, "choose a plainer value")
    return value
