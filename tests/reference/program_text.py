"""The text of a program, written the slow way: instruction by instruction."""

from collections.abc import Iterator, Sequence

from chorale.synth.programs.program import BufferRef, RankProgram, ThreadBlock


def rank_text(number: int, rank: RankProgram, single_wait: bool) -> str:
    """Return the lines of a rank; `single_wait` puts each further wait of a step on a `nop` before it."""
    chunks = f'i_chunks="{rank.input_chunks}" o_chunks="{rank.output_chunks}" s_chunks="{rank.scratch_chunks}"'
    lines = [f'  <gpu id="{number}" {chunks}>']
    for index, block in enumerate(rank.blocks):
        ends = [-1 if peer is None else peer for peer in (block.send_peer, block.recv_peer)]
        lines.append(f'    <tb id="{index}" send="{ends[0]}" recv="{ends[1]}" chan="{block.channel}">')
        steps = _single(rank.blocks, index) if single_wait else _joined(block)
        lines += [f"      <step {step}/>" for step in steps]
        lines.append("    </tb>")
    return "\n".join([*lines, "  </gpu>", ""])


def _joined(block: ThreadBlock) -> Iterator[str]:
    for number, item in enumerate(block.instructions):
        waits = " ".join(f"{wait.block}:{wait.step}" for wait in item.waits)
        text = _operands(number, item.op.value, item.src, item.dst, item.count)
        yield f'{text} waits="{waits}"' if waits else text


def _single(blocks: Sequence[ThreadBlock], index: int) -> Iterator[str]:
    waited = {(wait.block, wait.step) for block in blocks for item in block.instructions for wait in item.waits}
    number = 0
    for step, item in enumerate(blocks[index].instructions):
        for position, wait in enumerate(item.waits or (None,)):
            met = "-1", "-1"
            if wait is not None:
                met = str(wait.block), str(_written_number(blocks[wait.block], wait.step))
            if position < len(item.waits) - 1:
                text, published = _operands(number, "nop", BufferRef("i", -1), BufferRef("i", -1), 0), False
            else:
                text = _operands(number, item.op.value, item.src, item.dst, item.count)
                published = (index, step) in waited
            yield f'{text} depid="{met[0]}" deps="{met[1]}" hasdep="{published:d}"'
            number += 1


def _written_number(block: ThreadBlock, step: int) -> int:
    return sum(max(1, len(item.waits)) for item in block.instructions[: step + 1]) - 1


def _operands(number: int, name: str, src: BufferRef, dst: BufferRef, count: int) -> str:
    operands = f'srcbuf="{src.buffer}" srcoff="{src.offset}" dstbuf="{dst.buffer}" dstoff="{dst.offset}"'
    return f's="{number}" type="{name}" {operands} cnt="{count}"'
