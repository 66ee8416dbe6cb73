"""The text of small programs, byte for byte. Regenerate a file only for a wanted change of the dialect."""

from functools import partial
from pathlib import Path

import pytest

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings, library_call_text
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import Program
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift_code
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import TARGETS, target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.unit.synth.lowering.programs import lowered

GOLDEN = Path(__file__).parents[3] / "golden"


def lowered_tree(target: str) -> Program:
    schedule = verify(double_binary_tree(parse_topology("ring:3"), Collective(CollectiveName.BROADCAST, 1)).schedule())
    return lower(schedule, LoweringOptions(target, in_place=False))


def lowered_exchange(target: str) -> Program:
    return lower(verify(alltoall_schedule(parse_topology("complete:3"))), LoweringOptions(target, sm_count=2))


@pytest.mark.parametrize(
    ("target", "rest", "make"),
    [
        ("msccl-xml", "complete2-allreduce-inplace", partial(lowered, "complete:2", "allreduce")),
        ("msccl-xml", "ring3-allgather-outofplace", partial(lowered, "ring:3", "allgather", in_place=False)),
        ("oneccl-xml", "complete2-allreduce-inplace", partial(lowered, "complete:2", "allreduce")),
        ("oneccl-xml", "ring3-reduce_scatter-outofplace", partial(lowered, "ring:3", "reduce_scatter", in_place=False)),
        ("msccl-xml", "ring3-broadcast-outofplace", lowered_tree),
        (
            "msccl-executor-xml",
            "ring4-allreduce-fused",
            partial(lowered, "ring:4", "allreduce", method="ring", fuse=True),
        ),
        ("oneccl-xml", "complete3-alltoall-inplace", lowered_exchange),
    ],
)
def test_the_text_is_as_recorded(target, rest, make):
    program = make(target=target)
    assert check_program(program) == []
    text = target_named(target).emit(program)
    assert text == (GOLDEN / f"{target}-{rest}.xml").read_bytes().decode()


def test_code_of_every_target_and_of_libraries_is_lifted_and_written_again():
    lifted = {
        path: lift_code(path.read_bytes()) for path in sorted(GOLDEN.glob("*-*.*ml")) + sorted(GOLDEN.glob("*.json"))
    }
    for path, program in lifted.items():
        is_plan = isinstance(program, ExecutionPlan)
        assert (plan_text(program) if is_plan else target_named(program.target).emit(program)) == path.read_text()
    assert {program.target for program in lifted.values()} == {*TARGETS}
    call = LibraryCall(Collective(CollectiveName.BROADCAST, 1), 4, True, LibrarySettings(algorithm="ring"))
    assert lift_code(library_call_text(call).encode()) == call
