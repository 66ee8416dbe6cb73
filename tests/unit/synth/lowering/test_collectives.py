"""Every collective and kind of schedule becomes a right program; random damage is refused or harmless; golden texts."""

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings, library_call_text
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, Wait
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift, lift_code, read_checked
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import TARGETS, target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from tests.conformance import example_programs as examples
from tests.properties import random_cases
from tests.strategies import strongly_connected_topologies
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import (
    exchange_schedule,
    hopping_alltoall,
    instructions,
    lowered,
    trees,
    verified,
    with_block,
)

ROOTED, FROM_1 = (parse_collective("broadcast", 2), parse_collective("reduce", 1)), parse_collective("broadcast", 1)


def double_tree(spec: str, collective: Collective, chunks: int | None = None) -> VerifiedSchedule:
    return verify(double_binary_tree(parse_topology(spec), collective).schedule(chunks))


def is_right(program: Program, depth: int = 2) -> None:
    """Assert that the program passes the checker, and calculates what it should on numbers."""
    assert check_program(program) == []
    for piece in (1, 71):
        got, wanted = result_of(program, seed=piece, piece=piece, depth=depth)
        assert got == wanted


def alltoall(spec: str) -> VerifiedSchedule:
    return verify(alltoall_schedule(parse_topology(spec)))


def of_trees(collective: Collective, kind: str = "pipelined") -> VerifiedSchedule:
    return trees("torus:2x3", collective, kind)


@pytest.mark.parametrize(
    ("schedule", "target", "options"),
    [
        (of_trees(ALLGATHER), "msccl-xml", {}),
        (of_trees(ALLGATHER, "stepped"), "oneccl-xml", {"in_place": False, "fuse": True}),
        (of_trees(REDUCE_SCATTER), "msccl-executor-xml", {"in_place": False, "fuse": True}),
        (of_trees(REDUCE_SCATTER, "stepped"), "msccl-xml", {}),
        (of_trees(ALLREDUCE), "oneccl-xml", {"fuse": True}),
        (of_trees(ALLREDUCE, "stepped"), "msccl-executor-xml", {"in_place": False}),
        (of_trees(ROOTED[0]), "msccl-executor-xml", {"in_place": False}),
        (of_trees(ROOTED[0], "stepped"), "msccl-xml", {"fuse": True}),
        (of_trees(ROOTED[1]), "msccl-xml", {}),
        (of_trees(ROOTED[1], "stepped"), "oneccl-xml", {"in_place": False, "fuse": True}),
        (double_tree("a100:1", ROOTED[0], 8), "oneccl-xml", {"in_place": False}),
        (double_tree("dbt:7", ALLREDUCE, 8), "msccl-executor-xml", {}),
        (double_tree("dbt:7", ROOTED[1], 8), "msccl-xml", {"in_place": False, "fuse": True}),
        (double_tree("dbt:8", ALLREDUCE, 8), "msccl-xml", {"in_place": False, "fuse": True}),
        (double_tree("dbt:8", ROOTED[0], 8), "msccl-xml", {"fuse": True}),
        (alltoall("ring:4"), "oneccl-xml", {"channels": 2}),
        (alltoall("uniring:1,3"), "msccl-xml", {"channels": 2, "in_place": False}),
        (alltoall("hypercube:3"), "msccl-executor-xml", {"channels": 2}),
        (alltoall("a100:1"), "msccl-executor-xml", {"channels": 2, "in_place": False}),
        (hopping_alltoall("ring:4", 0), "oneccl-xml", {"instances": 2}),
        (hopping_alltoall("torus:2x3", 1), "oneccl-xml", {"instances": 2, "in_place": False}),
        (hopping_alltoall("torus:2x3", 2), "oneccl-xml", {"instances": 2}),
    ],
    ids=lambda value: f"{value.schedule.method} {value.schedule.collective}" if hasattr(value, "schedule") else None,
)
def test_programs_are_right_after_a_journey_through_their_text(schedule, target, options):
    program = lower(schedule, LoweringOptions(target, **options))
    assert read_checked(target_named(target).emit(program).encode(), schedule.schedule.topology) == program
    is_right(program)
    if "fuse" in options and schedule.schedule.topology.spec.startswith("dbt"):
        assert {"rcs", "rrs"} & set(ops(program))


def test_a_rank_sends_by_depth():
    program = lower(trees("ring:6", ALLGATHER), LoweringOptions("oneccl-xml"))
    for rank, body in enumerate(program.ranks):
        for block in body.blocks:
            distances = [
                min((rank - item.src.offset // 2) % 6, (item.src.offset // 2 - rank) % 6)
                for item in block.instructions
                if item.op == Op.SEND
            ]
            assert distances == sorted(distances)


@pytest.mark.parametrize("in_place", [True, False])
def test_only_the_root_of_a_reduce_writes_its_buffers(in_place):
    program = lower(double_tree("dbt:6", ROOTED[1]), LoweringOptions("oneccl-xml", in_place=in_place))
    for rank, _, _, item in instructions(program):
        if item.op.writes_dst:
            assert (item.dst.buffer == "s") == (rank != 1)
    assert all(body.scratch_chunks == 0 for body in program.ranks[1:2])


def test_alltoall_in_place_takes_scratch_only_for_what_comes_too_early():
    at_once = lower(alltoall("ring:4"), LoweringOptions("oneccl-xml"))
    assert {rank.scratch_chunks for rank in at_once.ranks} == {0}
    late = lower(hopping_alltoall("complete:4", wait=1), LoweringOptions("oneccl-xml"))
    assert {rank.scratch_chunks for rank in late.ranks} == {0}  # a pair starts together, whenever that is
    with pytest.raises(InvalidInput, match=r"must be out of place.*--outofplace"):
        lower(alltoall("ring:4"), LoweringOptions("msccl-xml"))


def ops(made: Program) -> Counter[str]:
    return Counter(item.op.value for *_, item in instructions(made))


@pytest.mark.parametrize(
    ("collective", "target", "in_place"),
    [
        ("allgather", "msccl-xml", False),
        ("reduce_scatter", "msccl-executor-xml", True),
        ("allreduce", "oneccl-xml", True),
        ("allreduce", "msccl-xml", False),
    ],
)
def test_rings_hand_on_in_one_instruction(collective, target, in_place):
    made = lowered("ring:5", collective, target, method="ring", in_place=in_place, fuse=True)
    chains = (5 * (collective != "allgather"), 5 * (collective != "reduce_scatter"))
    expected = Counter(rrs=3 * chains[0], rrc=chains[0], rcs=3 * chains[1], r=chains[1], s=sum(chains))
    expected["cpy"] = 5 * (collective == "allgather" and not in_place)
    assert ops(made) == +expected
    assert all(rank.scratch_chunks == 0 for rank in made.ranks)
    assert lift(target_named(target).emit(made).encode()) == made
    is_right(made)


@pytest.mark.parametrize(
    ("spec", "method", "collective", "in_place"),
    [
        ("ring:6", "biring", "allreduce", True),
        ("torus:2x3", "bfb", "reduce_scatter", False),
        ("torus:3x3", "bucket", "allgather", False),
        ("torus:3x3", "bucket", "allreduce", True),
    ],
)
def test_fused_steps(spec, method, collective, in_place):
    is_right(lowered(spec, collective, method=method, in_place=in_place, channels=2, instances=2, fuse=True))


@random_cases(40)
@given(
    strongly_connected_topologies(max_nodes=5, max_extra_links=6),
    st.sampled_from(["allgather", "reduce_scatter", "allreduce"]),
    st.sampled_from(["ring", "bfb"]),
    st.booleans(),
    st.sampled_from([(1, 1), (3, 1), (2, 2)]),
    st.sampled_from(["Simple", "LL"]),
    st.booleans(),
    st.booleans(),
)
def test_programs_on_random_networks(topology, collective, method, in_place, channels, protocol, fuse, is_small):
    most = 2 * topology.compute_count if is_small and channels == (1, 1) else None
    options = LoweringOptions("oneccl-xml", *channels, protocol, in_place, sm_count=most, fuse=fuse)
    is_right(
        lower(synthesized(method, topology, collective, chunks=2), options), depth=2 if protocol == "Simple" else 8
    )


def test_what_would_hang_is_not_fused():
    """Two chunks around a ring fill both slots of every connection before anyone receives, unless one always does."""
    schedule = verified("ring:4", "allgather", "ring", 2)
    simple = lower(schedule, LoweringOptions("oneccl-xml", fuse=True))
    quick = lower(schedule, LoweringOptions("oneccl-xml", protocol="LL", fuse=True))
    assert (ops(simple)["rcs"], ops(quick)["rcs"]) == (0, 8)
    is_right(simple)
    is_right(quick, depth=8)


@pytest.mark.parametrize("in_place", [True, False])
def test_exchanges_hand_on_to_the_next_partner(in_place):
    made = lower(exchange_schedule(3), LoweringOptions("oneccl-xml", in_place=in_place, fuse=True))
    # Out of place, the first step moves longer pieces than the second, which exchanges what it overwrites.
    assert (ops(made)["rrcs"] > 0) == in_place
    is_right(made)


def most_blocks(program: Program) -> int:
    return max(len(rank.blocks) for rank in program.ranks)


@pytest.mark.parametrize(
    ("schedule", "channels", "sm_count", "in_place"),
    [
        *((verified("hypercube:3", name), 1, most, name != "allgather")
          for name, most in (("allgather", 5), ("reduce_scatter", 3), ("allreduce", 6))),
        *((trees("hypercube:3", each), 2, 6, each != ALLREDUCE) for each in (ALLGATHER, REDUCE_SCATTER, ALLREDUCE)),
        *((exchange_schedule(chunks), 1, 2, chunks != 3) for chunks in (1, 3, 8)),
    ],
    ids=lambda value: value.schedule.method if isinstance(value, VerifiedSchedule) else str(value),
)  # fmt: skip
def test_programs_for_few_multiprocessors(schedule, channels, sm_count, in_place):
    program = lower(schedule, LoweringOptions("oneccl-xml", channels, in_place=in_place, sm_count=sm_count))
    assert most_blocks(program) == sm_count
    is_right(program)


def test_an_alltoall_needs_one_block_a_peer():
    schedule = verify(alltoall_schedule(parse_topology("hypercube:3"), chunks=5))
    program = lower(schedule, LoweringOptions("msccl-executor-xml", sm_count=7))
    assert most_blocks(program) == 7
    assert all(block.send_peer == block.recv_peer for rank in program.ranks for block in rank.blocks)
    is_right(program)


def test_blocks_are_shared_only_as_far_as_needed():
    program = lowered("hypercube:3", "allgather", sm_count=5)
    for rank in program.ranks:
        both = [block for block in rank.blocks if None not in (block.send_peer, block.recv_peer)]
        assert (len(rank.blocks), len(both)) == (5, 1)
        connections = Counter((block.send_peer, block.channel) for block in rank.blocks if block.send_peer is not None)
        assert set(connections.values()) == {1}


def test_fewer_multiprocessors_than_peers_are_refused_with_what_fits():
    schedule = verified("hypercube:3", "allgather")
    with pytest.raises(InvalidInput, match=r"must run at once: 12 is above the limit 4") as caught:
        lower(schedule, LoweringOptions("oneccl-xml", instances=4, sm_count=4))
    assert "instances 1 fits" in caught.value.way_out
    assert most_blocks(lower(schedule, LoweringOptions("oneccl-xml", instances=1, sm_count=4))) == 4


def test_a_large_device_runs_more_blocks_than_the_target_assumes():
    schedule = verified("hypercube:3", "allreduce")
    apart = lower(schedule, LoweringOptions("msccl-xml", instances=20, sm_count=132))
    shared = lower(schedule, LoweringOptions("msccl-xml", instances=20))
    assert (most_blocks(apart), most_blocks(shared)) == (120, 108)


def test_connections_take_channels_by_what_they_carry():
    """A broadcast to the ends of a line: the middle links carry most, so they take the most blocks."""
    program = lower(trees("mesh:6", ALLGATHER), LoweringOptions("oneccl-xml", channels=4))
    blocks, work = Counter(), Counter()
    for rank, body in enumerate(program.ranks):
        for block in body.blocks:
            if block.send_peer is not None:
                blocks[rank, block.send_peer] += 1
                work[rank, block.send_peer] += sum(item.count for item in block.instructions)
    assert blocks[4, 5] == 4  # all but one of six shards cross the last link outwards
    assert blocks[5, 4] == 1  # and one comes back
    assert all(count <= -(-4 * work[pair] // max(work.values())) for pair, count in blocks.items())
    assert len({block.channel for body in program.ranks for block in body.blocks}) == 4
    is_right(program)


def test_groups_of_more_blocks_than_run_at_once_are_refused():
    schedule, options = (
        verified("hypercube:2", "allgather"),
        LoweringOptions("mscclpp-json", block_group=3, sm_count=12),
    )
    assert check_program(plan_of(lower(schedule, options))) == []
    rule = r"must run at once: \d+ is above the limit 5.*use smaller block groups than 3"
    with pytest.raises(InvalidInput, match=rule):
        lower(schedule, replace(options, sm_count=5))


GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.mark.parametrize(
    ("file", "schedule", "options"),
    [
        ("msccl-xml-complete2-allreduce-inplace", verified("complete:2", "allreduce"), {}),
        ("msccl-xml-ring3-allgather-outofplace", verified("ring:3", "allgather"), {"in_place": False}),
        ("oneccl-xml-complete2-allreduce-inplace", verified("complete:2", "allreduce"), {}),
        ("oneccl-xml-ring3-reduce_scatter-outofplace", verified("ring:3", "reduce_scatter"), {"in_place": False}),
        ("msccl-xml-ring3-broadcast-outofplace", double_tree("ring:3", FROM_1), {"in_place": False}),
        ("msccl-executor-xml-ring4-allreduce-fused", verified("ring:4", "allreduce", "ring"), {"fuse": True}),
        ("oneccl-xml-complete3-alltoall-inplace", alltoall("complete:3"), {"sm_count": 2}),
    ],
    ids=str,
)
def test_the_text_is_as_recorded(file, schedule, options):
    """Byte for byte. Regenerate a file only for a wanted change of the dialect."""
    target = file[: file.index("-xml") + 4]
    program = lower(schedule, LoweringOptions(target, **options))
    assert check_program(program) == []
    assert target_named(target).emit(program) == (GOLDEN / f"{file}.xml").read_bytes().decode()


def test_code_of_every_target_and_of_libraries_is_lifted_and_written_again():
    files = [*GOLDEN.glob("*-*.*ml"), *GOLDEN.glob("*.json")]
    for path, program in zip(files, lifted := [lift_code(path.read_bytes()) for path in files], strict=True):
        is_plan = isinstance(program, ExecutionPlan)
        assert (plan_text(program) if is_plan else target_named(program.target).emit(program)) == path.read_text()
    assert {program.target for program in lifted} == {*TARGETS}
    call = LibraryCall(FROM_1, 4, True, LibrarySettings(algorithm="ring"))
    assert lift_code(library_call_text(call).encode()) == call


Draw = st.DataObject


def mutate(program: Program, data: Draw) -> Program:
    """Return `program` with one random change in one block; it may still be right."""
    places = [(r, b) for r, rank in enumerate(program.ranks) for b, at in enumerate(rank.blocks) if at.instructions]
    if not places:
        return program
    rank, index = data.draw(st.sampled_from(places))
    block = program.ranks[rank].blocks[index]
    step = data.draw(st.integers(0, len(block.instructions) - 1))
    items, body, blocks = list(block.instructions), program.ranks[rank], {}
    item = items[step]
    match data.draw(st.sampled_from(CHANGES)):
        case "drop":
            del items[step]
        case "repeat":
            items.insert(step, item)
        case "swap":
            other = (step + 1) % len(items)
            items[step], items[other] = items[other], item
        case "operation":
            items[step] = replace(item, op=data.draw(st.sampled_from(list(Op))))
        case "operand":
            side = data.draw(st.sampled_from(["src", "dst"]))
            place = BufferRef(
                data.draw(st.sampled_from(["i", "o", "s"])), data.draw(st.integers(0, program.chunks - 1))
            )
            items[step] = replace(item, **{side: place})
        case "count":
            items[step] = replace(item, count=item.count + data.draw(st.sampled_from([-1, 1])))
        case "split":
            src, dst = (BufferRef(place.buffer, place.offset + 1) for place in (item.src, item.dst))
            halves = [replace(item, count=1), Instruction(item.op, src, dst, item.count - 1)]
            items[step : step + 1] = halves if item.count > 1 else []
        case "unwait":
            items[step] = replace(item, waits=())
        case "wait":
            other = data.draw(st.integers(0, len(body.blocks) - 1))
            last = max(0, len(body.blocks[other].instructions) - 1)
            items[step] = replace(item, waits=(Wait(other, data.draw(st.integers(0, last))),))
        case "peer":
            side = data.draw(st.sampled_from(["send_peer", "recv_peer"]))
            blocks[side] = data.draw(st.sampled_from([None, *range(len(program.ranks))]))
    return with_block(program, rank, index, replace(block, instructions=tuple(items), **blocks))


CHANGES = ("drop", "repeat", "swap", "operation", "operand", "count", "split", "unwait", "wait", "peer")


MADE = [
    lowered(spec, collective, target, in_place=in_place)
    for spec in ("ring:3", "hypercube:2", "ring:4")
    for collective in ("allgather", "reduce_scatter", "allreduce")
    for in_place in (True, False)
    for target in ("msccl-xml", "oneccl-xml")
]
MADE += [
    examples.ring_allreduce([0, 1, 2]),
    examples.ring_allreduce([0, 2, 1, 3], in_place=False),
    examples.ring_allgather(3, in_place=True),
    examples.ring_allgather(4, in_place=False),
    examples.ring_reduce_scatter(4),
    examples.scratch_allreduce_of_pair(),
    examples.star_broadcast(4, 1),
]


@pytest.mark.parametrize("examples", [400, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_what_passes_the_check_is_right_whatever_the_order_and_the_cut(examples):
    check = given(st.sampled_from(MADE), st.data(), st.integers(1, 3))(is_refused_or_right)
    settings(max_examples=examples, deadline=None)(check)()


def is_refused_or_right(made, data, changes):
    damaged = made
    for _ in range(changes):
        damaged = mutate(damaged, data)
    if check_program(damaged):
        return
    for seed, piece in product(range(2), (1, 2, 100)):
        got, wanted = result_of(damaged, seed, piece)
        assert got == wanted


def test_damage_is_mostly_refused_but_not_always():
    """So that the test above cannot pass by refusing everything, or by changing nothing."""
    verdicts: Counter[bool] = Counter()

    @settings(max_examples=60, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(MADE), st.data())
    def judge(made, data):
        verdicts[not check_program(mutate(made, data))] += 1

    judge()
    assert verdicts[False] > verdicts[True] > 0
