"""Programs and plans in which switches add and multicast, and of collectives of given sizes: right and read back."""

import json
from dataclasses import replace

import numpy as np
import pytest

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.build.build import build_program, build_switch_plan
from chorale.synth.collective import ALLREDUCE, CollectiveName, uneven_collective
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import schedule_of_processes, switch_plan
from chorale.synth.lowering.vector_layout import rechunked
from chorale.synth.methods.forest.forest import uneven_forest
from chorale.synth.methods.traffic.copies import plan_dispatch
from chorale.synth.methods.traffic.matrix import traffic_matrix
from chorale.synth.methods.traffic.plan import traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.methods.traffic.tokens import TokenBatch, route_tokens
from chorale.synth.programs.memory import collective_of_ranks, rank_count, with_idle_switches
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.program import Op, Program
from chorale.synth.targets.judge import check_program, judge
from chorale.synth.targets.lift import lift_with_findings, read_checked
from chorale.synth.targets.mscclpp_text import parse_plan, plan_text
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.costs.pricing import program_time_per_byte
from chorale.tuner.files.collective_files import collective_file_text, parse_collective_file
from tests.unit.synth.lowering.programs import edited, instructions, stars
from tests.unit.synth.programs.plans.examples import operations
from tests.unit.synth.programs.plans.weak import WeakRun

PLANS = LoweringOptions("mscclpp-json")


def made(spec: str, **options: object) -> ExecutionPlan:
    plan = switch_plan(stars(spec), replace(PLANS, **options))  # type: ignore[arg-type]
    return parse_plan(plan_text(plan).encode())


@pytest.mark.parametrize(("group", "in_place"), [(1, True), (2, False), (2, True)])
def test_plans_are_right(group, in_place):
    plan = made("h100:1", block_group=group, in_place=in_place)
    assert check_program(plan) == []
    sums = [spot for spot in operations(plan) if spot[3].action is Action.GROUP_LOAD_REDUCE_STORE]
    assert len(sums) == 8 * group
    for seed in range(2):
        assert WeakRun(json.loads(plan_text(plan)), 2, seed).is_right() or not in_place


def test_many_peers_take_blocks_enough_for_a_channel_with_each():
    plan = made("able(switch:18,450)")
    assert check_program(plan) == []
    assert {len(body.blocks) for body in plan.ranks} == {2}
    assert {len(body.blocks) for body in made("nvl72:1").ranks} == {5}


def test_the_switch_takes_and_gives_each_chunk_once():
    """Each GPU sends its chunk for every sum and its own sum, 9/8 of the vector, at 450 GB/s."""
    topology = parse_topology("h100:1")
    assert 1 / program_time_per_byte(made("h100:1"), topology) == 400


def test_what_is_synthesized_for_a_box_has_a_plan_and_for_two_has_none():
    """Over two boxes each switch adds for one rank only, an operation that no release of MSCCL++ reads."""
    box = synthesized("in-network", "h100:1", ALLREDUCE)
    _, read_back = build_switch_plan(box, PLANS)
    assert read_back.origin == box.schedule.id
    boxes = synthesized("in-network", "h100:2", ALLREDUCE)
    with pytest.raises(InvalidInput, match="stars around one switch"):
        build_switch_plan(boxes, PLANS)


@pytest.mark.parametrize(
    "options", [{"target": "msccl-xml"}, {"protocol": "LL"}, {"reads": True}, {"max_bytes": 2**40}], ids=str
)
def test_what_does_not_fit_is_refused(options):
    with pytest.raises(InvalidInput):
        made("h100:1", **options)


OPTIONS = LoweringOptions("oneccl-xml")
STAR, TWO_LEVELS = "able(switch:4,1)", "able(fattree:2)"


@pytest.mark.parametrize(
    ("collective", "options"),
    [
        ("allreduce", {"fuse": True}),
        ("allgather", {}),
        ("reduce_scatter", {"channels": 2, "instances": 2}),
        ("broadcast", {"fuse": True}),
        ("reduce", {"channels": 2, "instances": 2}),
    ],
)
def test_programs_of_a_star_are_right(collective, options):
    made = synthesized("in-network", STAR, collective)
    built = build_program(made, replace(OPTIONS, **options))
    assert isinstance(built.read_back, Program)
    assert built.read_back.switches == built.program.switches == (4,)
    assert (rank_count(built.program), str(collective_of_ranks(built.program)).split("(")[0]) == (4, collective)
    assert program_time_per_byte(built.program, made.schedule.topology) == made.cost.time_per_byte


@pytest.mark.parametrize("spec", ["railclos:2,2,1,2", TWO_LEVELS, "scaled(h100:1;link=0-nvswitch:0;factor=1/2)"])
def test_programs_of_several_switches_are_right(spec):
    made = synthesized("in-network", spec, ALLREDUCE)
    assert made.schedule.is_in_network
    assert build_program(made, OPTIONS).program.switches == tuple(sorted(made.schedule.topology.abilities))


def test_a_switch_adds_what_ranks_send_and_nothing_else():
    program = lower(synthesized("in-network", STAR, ALLREDUCE), OPTIONS)
    of_switch = [place for place in instructions(program) if place[0] == 4]
    assert {item.op for *_, item in of_switch} == {Op.RECV, Op.RECV_REDUCE_COPY, Op.SEND}
    for *place, item in of_switch:
        if item.op is Op.RECV:
            program = edited(program, (*place, replace(item, op=Op.RECV_REDUCE_COPY, src=item.dst)))
    assert check_program(program)[0].rule == "reduction"  # it has nothing of its own to add to


def test_switches_in_a_row_get_steps_of_their_own():
    schedule = synthesized("in-network", TWO_LEVELS, ALLREDUCE).schedule.expand()
    processes = schedule_of_processes(schedule)
    assert processes.steps > schedule.steps
    assert len(processes.transfers) == len(schedule.transfers)
    received: dict[tuple[int, int, int], int] = {}
    columns = processes.src, processes.dst, *processes.transfers.columns
    for src, dst, step, _, shard, low, high, _ in zip(*(column.tolist() for column in columns), strict=True):
        for chunk in range(low, high):
            if src >= processes.rank_count:
                assert received[src, shard, chunk] < step
            received[dst, shard, chunk] = max(step, received.get((dst, shard, chunk), 0))


@pytest.mark.parametrize("collective", ["allreduce", "allgather"])
def test_ranks_alone_are_compared_beside_idle_switches(collective):
    alone = lower(synthesized("forest", STAR, collective), OPTIONS)
    acting = lower(synthesized("in-network", STAR, collective), OPTIONS)
    beside = with_idle_switches(alone, acting.switches)
    assert beside.collective == acting.collective
    assert check_program(beside) == []
    with pytest.raises(InvalidInput, match="in place"):
        with_idle_switches(lower(synthesized("forest", STAR, collective), replace(OPTIONS, in_place=False)), (4,))


@pytest.mark.parametrize(("target", "in_place"), [("msccl-xml", True), ("oneccl-xml", False)])
def test_other_programs_are_refused(target, in_place):
    with pytest.raises(InvalidInput, match=r"programs with switches that add must be in place|must be for oneccl-xml"):
        lower(synthesized("in-network", STAR, ALLREDUCE), LoweringOptions(target, in_place=in_place))


def test_programs_name_the_switches_that_can_act():
    built = build_program(synthesized("in-network", STAR, ALLREDUCE), OPTIONS)
    reading = lift_with_findings(built.text.encode())
    rules = {each.rule for each in judge(reading, parse_topology("switch:4,1")).violations}
    assert rules == {"switches"}
    copies_only = judge(reading, parse_topology("able(switch:4,1;reduce=no)")).violations
    assert [each.message for each in copies_only if each.rule == "switches"] == ["rank 4: switch:0 adds, but cannot"]
    none, *wrong = (
        built.text.replace('switches="4"', f'switches="{each}"').encode() for each in ("", "4 x", "0 1 2 3 4")
    )
    assert judge(lift_with_findings(none), parse_topology(STAR)).violations[0].rule == "ranks"
    for text in wrong:
        with pytest.raises(InvalidInput, match="switches of"):
            lift_with_findings(text)


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
