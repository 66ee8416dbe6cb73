"""The text of small programs, byte for byte. Regenerate a file only for a wanted change of the dialect."""

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
from tests.unit.synth.lowering.scanner import accept

GOLDEN = Path(__file__).parents[3] / "golden"
CASES = [
    ("msccl-xml", "complete:2", "allreduce", True),
    ("msccl-xml", "ring:3", "allgather", False),
    ("oneccl-xml", "complete:2", "allreduce", True),
    ("oneccl-xml", "ring:3", "reduce_scatter", False),
]


def golden_file(target: str, spec: str, collective: str, in_place: bool) -> Path:
    place = "inplace" if in_place else "outofplace"
    return GOLDEN / f"{target}-{spec.replace(':', '')}-{collective}-{place}.xml"


@pytest.mark.parametrize(("target", "spec", "collective", "in_place"), CASES)
def test_the_text_is_as_recorded(target, spec, collective, in_place):
    text = target_named(target).emit(lowered(spec, collective, target, in_place=in_place))
    recorded = golden_file(target, spec, collective, in_place).read_bytes().decode()
    assert text == recorded
    if target == "msccl-xml":
        accept(recorded)


def _tree(target: str) -> Program:
    schedule = verify(double_binary_tree(parse_topology("ring:3"), Collective(CollectiveName.BROADCAST, 1)).schedule())
    return lower(schedule, LoweringOptions(target, in_place=False))


def _ring(target: str) -> Program:
    return lowered("ring:4", "allreduce", target, method="ring", fuse=True)


def _exchange(target: str) -> Program:
    return lower(verify(alltoall_schedule(parse_topology("complete:3"))), LoweringOptions(target, sm_count=2))


@pytest.mark.parametrize(
    ("name", "target", "make"),
    [
        ("msccl-xml-ring3-broadcast-outofplace", "msccl-xml", _tree),
        ("msccl-executor-xml-ring4-allreduce-fused", "msccl-executor-xml", _ring),
        ("oneccl-xml-complete3-alltoall-inplace", "oneccl-xml", _exchange),
    ],
)
def test_the_text_of_trees_chains_and_exchanges_is_as_recorded(name, target, make):
    program = make(target)
    assert check_program(program) == []
    assert target_named(target).emit(program) == (GOLDEN / f"{name}.xml").read_bytes().decode()


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
