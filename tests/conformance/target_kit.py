"""What every Target must do: a test class to inherit from, with a fixture `target`."""

from dataclasses import replace

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import BufferRef, Op, Program, ThreadBlock, Wait
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift, lift_with_findings
from chorale.synth.targets.registry import TARGETS, Target
from tests.unit.synth.lowering.programs import verified

CASES = [
    ("ring:3", "allgather", True, 1, 1),
    ("ring:3", "reduce_scatter", False, 2, 2),
    ("ring:3", "allreduce", True, 2, 2),
    ("hypercube:2", "allgather", False, 2, 2),
    ("hypercube:2", "reduce_scatter", True, 2, 2),
    ("hypercube:2", "allreduce", False, 1, 1),
    ("biring:4,3", "allgather", False, 1, 1),
    ("biring:4,3", "reduce_scatter", True, 1, 1),
    ("biring:4,3", "allreduce", False, 2, 2),
]
"""Every two of network, collective, place, and numbers of channels and instances meet in one of these."""


class TargetKit:
    """Inherit, and give a fixture `target`. Needs a target that is registered in `chorale.synth.targets.registry`."""

    @pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
    def program(self, request: pytest.FixtureRequest, target: Target) -> Program:
        spec, collective, in_place, channels, instances = request.param
        options = LoweringOptions(target.name, channels, instances, "LL", in_place, 1024, 2**20)
        return lower(verified(spec, collective), options)

    def test_reading_what_was_written_gives_the_same_program(self, target: Target, program: Program) -> None:
        """Of this target, which does what the collective says; writing it again gives the same text."""
        assert TARGETS[target.name] == target
        text = target.emit(program)
        lifted = lift_with_findings(text.encode())
        assert (lifted.findings, lifted.program, lifted.program.target) == ((), program, target.name)
        assert check_program(lifted.program) == []
        assert target.emit(replace(program)) == text

    def test_no_limit_and_no_origin_survive(self, target: Target, program: Program) -> None:
        plain = replace(program, min_bytes=0, max_bytes=0, origin="", name="x", protocol="Simple")
        assert lift(target.emit(plain).encode()) == plain

    def test_several_waits_of_one_step_survive(self, target: Target) -> None:
        program = lower(verified("bipartite:3", "reduce_scatter"), LoweringOptions(target.name))
        most = max(len(item.waits) for rank in program.ranks for block in rank.blocks for item in block.instructions)
        assert most > 1
        assert lift(target.emit(program).encode()) == program

    def test_what_breaks_a_rule_is_not_written(self, target: Target, program: Program) -> None:
        for damaged in _damaged(program):
            with pytest.raises(InvalidInput):
                target.emit(damaged)

    def test_a_name_that_could_leave_its_quotes_is_not_written(self, target: Target, program: Program) -> None:
        for name in ('a" b="c', "a<b", "a&amp;b", "tab\there", "line\nend", "ü", "'"):
            with pytest.raises(InvalidInput):
                target.emit(replace(program, name=name))


def _damaged(program: Program) -> list[Program]:
    first = program.ranks[0]
    block = first.blocks[0]
    item = block.instructions[0]
    items = [
        replace(item, waits=(Wait(len(first.blocks), 0),)),
        replace(item, dst=BufferRef(item.dst.buffer, 2**40)),
        replace(item, count=item.count + 1),
        replace(item, op=Op.SEND),
    ]
    blocks = [replace(block, instructions=(changed, *block.instructions[1:])) for changed in items]
    blocks += [replace(block, channel=program.channels), replace(block, recv_peer=0)]
    rest = program.ranks[1:]
    damaged = [replace(first, blocks=(changed, *first.blocks[1:])) for changed in blocks]
    damaged.append(replace(first, blocks=(*first.blocks, ThreadBlock(1, None, 0, ()))))
    return [replace(program, ranks=(changed, *rest)) for changed in damaged]
