"""Programs of collectives of given sizes: they do what was asked for, chunk by chunk, and nothing else does."""

import numpy as np
import pytest

from chorale.synth.build.build import build_program
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.vector_layout import rechunked
from chorale.synth.methods.forest.forest import uneven_forest
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.targets.lift import read_checked
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.collective_files import collective_file_text, parse_collective_file

AMOUNTS = [[1, 3, 0, 7], [2, 0, 4, 1], [0, 3, 0, 0], [9, 0, 5, 0]]


@pytest.fixture(scope="module")
def verified():
    return verify(traffic_schedule(plan_traffic(parse_topology("ring:4"), traffic_matrix("m", AMOUNTS))))


@pytest.mark.parametrize("target", ["msccl-xml", "oneccl-xml", "mscclpp-json"])
def test_inputs_and_outputs_are_laid_out_as_in_mpi(verified, target):
    program = build_program(verified, LoweringOptions(target)).program
    custom = program.collective.custom
    assert not program.in_place
    assert (custom.input_chunks, custom.output_chunks) == (14, 12)
    for rank in range(4):
        expected = []
        for source in range(4):
            first = sum(AMOUNTS[source][:rank])
            expected += [((source, first + chunk),) for chunk in range(AMOUNTS[source][rank])]
        assert [each.sources for each in custom.required_of(rank)] == expected


def test_parts_of_chunks(verified):
    program = build_program(
        verified, LoweringOptions("msccl-xml", chunks=2 * verified.schedule.chunks_per_shard)
    ).program
    assert program.collective.custom.input_chunks == 28
    finer = rechunked(verified.schedule, 2 * verified.schedule.chunks_per_shard)
    assert verify(finer).cost == verified.cost


def test_files_of_collectives_say_the_same(verified):
    for schedule in (
        verified,
        verify(uneven_forest(parse_topology("ring:4"), CollectiveName.REDUCE_SCATTER, [3, 0, 1, 2])),
    ):
        custom = build_program(schedule, LoweringOptions("msccl-xml")).program.collective.custom
        assert parse_collective_file(collective_file_text(custom)) == custom


def test_a_program_for_other_sizes_is_refused(verified):
    built = build_program(verified, LoweringOptions("msccl-xml"))
    other = plan_traffic(verified.schedule.topology, traffic_matrix("m", np.array(AMOUNTS).T))
    custom = build_program(verify(traffic_schedule(other)), LoweringOptions("msccl-xml")).program.collective.custom
    with pytest.raises(CheckFailed):
        read_checked(built.text.encode(), verified.schedule.topology, custom)
    with pytest.raises(InvalidInput, match="collective-file"):
        read_checked(built.text.encode(), verified.schedule.topology)


def test_the_executor_of_msccl_takes_collectives_by_name_alone(verified):
    with pytest.raises(InvalidInput, match="knows no other"):
        build_program(verified, LoweringOptions("msccl-executor-xml"))


def test_there_is_one_instance(verified):
    with pytest.raises(InvalidInput, match="a collective of given sizes cannot be lowered to"):
        build_program(verified, LoweringOptions("msccl-xml", instances=2))
