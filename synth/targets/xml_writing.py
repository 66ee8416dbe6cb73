"""Writes program documents. Equal programs give equal bytes: one element per line, one space between attributes.

There are two forms: either a step has all its waits, or it has at most one wait, and additional waits are written as
`nop` steps before it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import BUFFERS, OPS, RankColumns, RankProgram, ends_of

MAX_VALUE_CHARACTERS = 65536
LONGEST_VALUE = 255  # limit for all values outside steps; the MSCCL reader truncates longer values
NOP = "nop"
_NOP_OPERANDS = f'" type="{NOP}" srcbuf="i" srcoff="-1" dstbuf="i" dstoff="-1" cnt="0'
_PLAIN = re.compile(r"[ !#-%(-;=?-~]*")  # printable, without < > & and quotes

Attribute = str | int


def document_text(root: Mapping[str, Attribute], ranks: Iterable[RankProgram], single_wait: bool) -> str:
    """Return a program as XML text. O(instructions + waits).

    Args:
        root: The root element's attributes.
        ranks: What each rank executes.
        single_wait: Whether a step has at most one wait.

    Raises:
        InvalidInput: A value is too long for readers, or has characters that they do not accept.
    """
    for key, value in root.items():
        if isinstance(value, str) and (len(value) > LONGEST_VALUE or _PLAIN.fullmatch(value) is None):
            rule = f"{key} must be at most {LONGEST_VALUE} printable ASCII characters without < > & and quotes"
            raise InvalidInput(rule, value, "choose a plainer value")
    lines = [" ".join(["<algo", *(f'{key}="{value}"' for key, value in root.items())]) + ">"]
    for number, rank in enumerate(ranks):
        columns = rank.columns
        chunks = f'i_chunks="{rank.input_chunks}" o_chunks="{rank.output_chunks}" s_chunks="{rank.scratch_chunks}"'
        lines.append(f'  <gpu id="{number}" {chunks}>')
        steps = _single_steps(columns) if single_wait else _joined_steps(columns)
        ends = zip(columns.send_peer.tolist(), columns.recv_peer.tolist(), columns.channel.tolist(), strict=True)
        for block, (send, recv, channel) in enumerate(ends):
            lines.append(f'    <tb id="{block}" send="{send}" recv="{recv}" chan="{channel}">')
            lines += next(steps)
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>\n"])


def _operands(columns: RankColumns) -> list[str]:
    """Return, for each instruction, the text of its attributes from `type` to `cnt`."""
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
    """Yield the step elements of each thread block. Each step has all its waits."""
    operands, bounds = _operands(columns), columns.first_wait.tolist()
    pairs = zip(columns.wait_block.tolist(), columns.wait_step.tolist(), strict=True)
    waits = [f"{block}:{step}" for block, step in pairs]
    texts = [" ".join(waits[low:high]) for low, high in pairwise(bounds)]
    longest = max(map(len, texts), default=0)
    if longest > MAX_VALUE_CHARACTERS:
        rule = f"waits must have at most {MAX_VALUE_CHARACTERS} characters"
        raise InvalidInput(rule, longest, "lower it with more channels, or fewer chunks")
    waiting = [f'" waits="{text}' if text else "" for text in texts]
    for begin, end in pairwise(columns.first.tolist()):
        yield [f'      <step s="{item - begin}{operands[item]}{waiting[item]}"/>' for item in range(begin, end)]


def _single_steps(columns: RankColumns) -> Iterator[list[str]]:
    """Yield the step elements of each thread block, with a `nop` step for each additional wait."""
    operands, bounds = _operands(columns), columns.first_wait.tolist()
    rows = ends_of(np.maximum(columns.waits, 1))  # number of steps written before each instruction
    waited = columns.first[columns.wait_block] + columns.wait_step
    published = np.zeros(len(operands), dtype=np.int64)
    published[waited] = 1
    steps = rows[waited + 1] - 1 - rows[columns.first[columns.wait_block]]
    waits = [f'{b}" deps="{s}' for b, s in zip(columns.wait_block.tolist(), steps.tolist(), strict=True)]
    is_awaited, row = published.tolist(), rows.tolist()
    for begin, end in pairwise(columns.first.tolist()):
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
