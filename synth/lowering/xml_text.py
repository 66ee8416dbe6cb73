"""Writes program documents: one element per line, one space between attributes, always the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.program import RankProgram, ThreadBlock
from chorale.synth.lowering.xml_reader import MAX_VALUE_CHARACTERS

LONGEST_VALUE = 255  # of all but steps; what MSCCL's reader keeps
_PLAIN = re.compile(r"[ !#-%(-;=?-~]*")  # printable, without < > & and quotes

Attribute = str | int
StepAttributes = Mapping[str, Attribute]


def document_parts(
    root: Mapping[str, Attribute], ranks: Iterable[tuple[RankProgram, Sequence[Sequence[StepAttributes]]]]
) -> Iterator[str]:
    """Return the text of a program part by part: `root` holds the root's attributes, `ranks` each rank and, by block,
    the attributes of its steps. No more than one rank is held at a time."""
    yield _element("algo", root, 0) + ">\n"
    for number, (rank, steps) in enumerate(ranks):
        yield "\n".join(_rank_lines(number, rank, steps)) + "\n"
    yield "</algo>\n"


def _rank_lines(rank: int, program: RankProgram, steps: Sequence[Sequence[StepAttributes]]) -> Iterator[str]:
    chunks = {"i_chunks": program.input_chunks, "o_chunks": program.output_chunks, "s_chunks": program.scratch_chunks}
    yield _element("gpu", {"id": rank, **chunks}, 1) + ">"
    for index, block in enumerate(program.blocks):
        yield _element("tb", _block_attributes(index, block), 2) + ">"
        for step in steps[index]:
            yield _element("step", step, 3, MAX_VALUE_CHARACTERS) + "/>"
        yield "    </tb>"
    yield "  </gpu>"


def _block_attributes(index: int, block: ThreadBlock) -> dict[str, Attribute]:
    send = -1 if block.send_peer is None else block.send_peer
    recv = -1 if block.recv_peer is None else block.recv_peer
    return {"id": index, "send": send, "recv": recv, "chan": block.channel}


def _element(name: str, attributes: Mapping[str, Attribute], depth: int, longest: int = LONGEST_VALUE) -> str:
    words = [f'{key}="{_plain(key, value, longest)}"' for key, value in attributes.items()]
    return "  " * depth + "<" + " ".join([name, *words])


def _plain(key: str, value: Attribute, longest: int) -> str:
    if isinstance(value, int):
        return str(value)
    if len(value) > longest or _PLAIN.fullmatch(value) is None:
        rule = f"{key} must be at most {longest} printable ASCII characters without < > & and quotes"
        raise InvalidInput(rule, value, "choose a plainer value")
    return value
