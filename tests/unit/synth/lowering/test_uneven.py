"""Programs of collectives of given sizes: they do what was asked for, chunk by chunk, and nothing else does."""

import numpy as np
import pytest

from chorale.synth.build.build import build_program
from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.vector_layout import rechunked
from chorale.synth.methods.forest.forest import uneven_forest
from chorale.synth.methods.traffic.copies import plan_dispatch
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.methods.traffic.tokens import TokenBatch, route_tokens
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
        verify(
            uneven_forest(parse_topology("ring:4"), uneven_collective(CollectiveName.REDUCE_SCATTERV, [3, 0, 1, 2]))
        ),
    ):
        custom = build_program(schedule, LoweringOptions("msccl-xml")).program.collective.custom
        assert parse_collective_file(collective_file_text(custom)) == custom


TOKENS = {
    # Rank 0 relays for rank 3 or the other way round; a rank that sends to itself; one target and many
    "ring:4": ([[2, 3], [0, 1], [0, 1, 2, 3], [1], [3]], [0, 3, 1, 2, 0]),
    "h100:2": ([[8, 9, 10], [8], [0, 8, 15], [1, 9], [12, 13, 14, 15]], [0, 0, 7, 9, 8]),
    "mi300x:2": ([[8, 9, 10], [8], [0, 8, 15], [1, 9], [12, 13, 14, 15]], [0, 0, 7, 9, 8]),
}


@pytest.mark.parametrize(
    ("spec", "target"),
    [("ring:4", "msccl-xml"), ("ring:4", "mscclpp-json"), ("h100:2", "oneccl-xml"), ("mi300x:2", "mscclpp-json")],
)
def test_tokens_are_copied_and_results_are_summed(spec, target):
    topology = parse_topology(spec)
    (targets, sources), ranks = TOKENS[spec], topology.compute_count
    rows = np.array([row + [-1] * (4 - len(row)) for row in targets])
    batch = TokenBatch("tokens", rows, np.array(sources), np.arange(ranks)[:, None], 4)
    plan = plan_dispatch(topology, route_tokens(batch, ranks))
    for combine in (False, True):
        program = build_program(verify(plan.schedule(combine)), LoweringOptions(target)).program
        members = [(source, sorted(row)) for source, row in zip(sources, targets, strict=True) if row != [source]]
        for rank in range(ranks):
            got = [[peer for peer, _ in each.sources] for each in program.collective.custom.required_of(rank)]
            tokens = [(source, row) for source, row in members if rank in ([source] if combine else row)]
            expected = sorted(row if combine else [source] for source, row in tokens)
            assert sorted(map(list, {tuple(peers) for peers in got})) == sorted(map(list, {tuple(e) for e in expected}))


def test_a_program_for_other_sizes_is_refused(verified):
    built = build_program(verified, LoweringOptions("msccl-xml"))
    other = plan_traffic(verified.schedule.topology, traffic_matrix("m", np.array(AMOUNTS).T))
    custom = build_program(verify(traffic_schedule(other)), LoweringOptions("msccl-xml")).program.collective.custom
    with pytest.raises(CheckFailed):
        read_checked(built.text.encode(), verified.schedule.topology, custom)
    with pytest.raises(InvalidInput, match="collective-file"):
        read_checked(built.text.encode(), verified.schedule.topology)


def test_targets_that_take_collectives_by_name_alone_and_several_instances_are_refused(verified):
    with pytest.raises(InvalidInput, match="have a standard name"):
        build_program(verified, LoweringOptions("msccl-executor-xml"))
    with pytest.raises(InvalidInput, match="a collective of given sizes cannot be lowered to"):
        build_program(verified, LoweringOptions("msccl-xml", instances=2))
