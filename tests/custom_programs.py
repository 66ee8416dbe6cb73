"""Small programs for collectives that no library has, and the files that define these."""

import json

SCAN = """
format: chorale-collective/1
name: scan
ranks: 3
input_chunks: 2
output_chunks: 2
outputs:
  - {rank: 0, chunk: 0, count: 2, from: 0}
  - {rank: 1, chunk: 0, count: 2, from: [0, 1]}
  - {rank: 2, chunk: 0, count: 2, from: all}
"""
"""Each rank gets the sum of what the ranks up to it have."""

SHIFT = """
format: chorale-collective/1
name: shift
ranks: 3
input_chunks: 1
output_chunks: 2
outputs:
  - {rank: 0, chunk: 1, from: 2, source: 0}
  - {rank: 1, chunk: 1, from: 0, source: 0}
  - {rank: 2, chunk: 1, from: 1, source: 0}
"""
"""Each rank gets the chunk of the rank before it as its second one; nobody cares for the first."""

STENCIL = json.dumps(
    {
        "format": "chorale-collective/1",
        "name": "stencil",
        "ranks": 3,
        "input_chunks": 2,
        "output_chunks": 1,
        "outputs": [
            {"rank": rank, "chunk": 0, "sum": [{"rank": rank, "chunk": 0}, {"rank": (rank + 1) % 3, "chunk": 1}]}
            for rank in range(3)
        ],
    }
)
"""The own first chunk and the second of the next rank are added."""

Step = tuple[str, str, int, str, int, int]
"""Type, source, destination and count of a step; waits are not needed here."""


def xml(coll: str, chunks: int, blocks: dict[int, list[tuple[int, int, list[Step]]]], in_place: bool = False) -> str:
    """Return an MSCCL program whose blocks have each a rank to send to, one to receive from, and a channel."""
    channels = max(map(len, blocks.values()))
    head = f'name="hand" proto="Simple" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{len(blocks)}"'
    lines = [f'<algo {head} coll="{coll}" inplace="{int(in_place)}" outofplace="{int(not in_place)}" minBytes="0" ']
    lines[0] += 'maxBytes="1048577">'
    for rank, own in sorted(blocks.items()):
        lines.append(f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="1">')
        for index, (send, recv, steps) in enumerate(own):
            lines.append(f'<tb id="{index}" send="{send}" recv="{recv}" chan="{index}">')
            lines += [_step(number, step) for number, step in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _step(number: int, step: Step) -> str:
    name, source, first, target, place, count = step
    operands = f'srcbuf="{source}" srcoff="{first}" dstbuf="{target}" dstoff="{place}" cnt="{count}"'
    return f'<step s="{number}" type="{name}" {operands} depid="-1" deps="-1" hasdep="0"/>'


def scan_program(last: list[Step] | None = None, at_once: int = 2) -> str:
    """Return the chain 0 -> 1 -> 2 with so many chunks `at_once`; `last` is what rank 2 does with what it gets."""
    starts = range(0, 2, at_once)
    copy, sends = ("cpy", "i", 0, "o", 0, 2), [("s", "i", first, "i", first, at_once) for first in starts]
    adds = [("rrcs", "i", first, "o", first, at_once) for first in starts]
    ends = [("rrc", "i", first, "o", first, at_once) for first in starts]
    return xml("custom", 2, {0: [(1, -1, [copy, *sends])], 1: [(2, 0, adds)], 2: [(-1, 1, last or ends)]})


def shift_program(coll: str = "custom") -> str:
    """Return a ring of one step."""
    blocks = {
        rank: [((rank + 1) % 3, (rank - 1) % 3, [("s", "i", 0, "i", 0, 1), ("r", "o", 1, "o", 1, 1)])]
        for rank in range(3)
    }
    return xml(coll, 2, blocks)


def stencil_program() -> str:
    """Return what sends the second chunk backwards and adds it there."""
    blocks = {
        rank: [((rank - 1) % 3, (rank + 1) % 3, [("s", "i", 1, "i", 1, 1), ("rrc", "i", 0, "o", 0, 1)])]
        for rank in range(3)
    }
    return xml("custom", 2, blocks)


PROGRAMS = {"scan": (SCAN, scan_program()), "shift": (SHIFT, shift_program()), "stencil": (STENCIL, stencil_program())}
