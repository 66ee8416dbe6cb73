"""Ways to break programs and files, one fault at a time."""

import re
from dataclasses import replace

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import Program
from chorale.synth.targets.base import Lifted
from chorale.synth.targets.judge import check_program, judge
from chorale.synth.targets.lift import lift_with_findings
from chorale.synth.targets.xml_targets import MscclExecutorXml, MscclXml
from chorale.synth.topology.spec import parse_topology
from tests.unit.synth.lowering.programs import block, edited, instructions, lowered, program, step, with_block

GOOD = lowered("ring:4", "reduce_scatter", "msccl-xml", in_place=False)
WAITING = lowered("hypercube:3", "allreduce", "msccl-xml")
TEXT = MscclXml().emit(GOOD)
EXECUTOR = MscclExecutorXml().emit(replace(GOOD, target="msccl-executor-xml"))
REDUCES = [step("re", f"i{chunk}", "i0") for chunk in range(1, 17)]


def first(made: Program, **changes: object) -> Program:
    """Return `made` with the first instruction changed."""
    return edited(made, (0, 0, 0, replace(made.ranks[0].blocks[0].instructions[0], **changes)))


def first_block(made: Program, **changes: object) -> Program:
    return with_block(made, 0, 0, replace(made.ranks[0].blocks[0], **changes))


def first_rank(made: Program, **changes: object) -> Program:
    return replace(made, ranks=(replace(made.ranks[0], **changes), *made.ranks[1:]))


def without_wait(made: Program) -> Program:
    rank, index, number, item = next(place for place in instructions(made) if place[3].waits)
    return edited(made, (rank, index, number, replace(item, waits=())))


def local(*items: object, in_place: bool = True, scratch: int = 0) -> Program:
    """Return an allreduce of two ranks in which the first only works locally."""
    idle = [block(None, None)]
    made = program(CollectiveName.ALLREDUCE, 20, [block(None, None, *items)], idle, scratch=scratch, target="msccl-xml")
    return replace(made, in_place=in_place)


def cut(pattern: str, new: str, text: str = TEXT) -> Lifted:
    changed = re.sub(pattern, new, text, count=1, flags=re.DOTALL)
    assert changed != text
    return lift_with_findings(changed.encode())


STEP_NOP = (
    '<step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="i" dstoff="-1" cnt="0" depid="{}" deps="{}" hasdep="0"/>\n'
)


def exchange(count: int) -> Program:
    """Both send everything before they receive: more messages than a connection holds, if each is one chunk."""
    half = [step("s", "o0", count=count), step("r", f"o{count}", count=count)]
    other = [step("s", f"o{count}", count=count), step("r", "o0", count=count)]
    return program(CollectiveName.ALLGATHER, 2 * count, [block(1, 1, *half)], [block(0, 0, *other)])


def spoiled(in_place: bool) -> Program:
    """Both swap their vectors; the first writes the sum over its input, too."""
    swap = [step("s", "i0"), step("rrc", "i0", "o0")]
    back = step("cpy", "o0", "i0")
    ranks = [[block(1, 1, *swap, back)], [block(0, 0, *swap)]]
    return program(CollectiveName.ALLREDUCE, 1, *ranks, in_place=in_place)


def rules_of(made: Program | Lifted) -> set[str]:
    if isinstance(made, Program):
        return {violation.rule for violation in check_program(made)}
    return {violation.rule for violation in judge(made, parse_topology("ring:4")).violations}
