"""Plans of every kind: packets, ports, reads, groups, pipelines, cut blocks, and mixtures of them."""

import json
from collections import Counter

import pytest

from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.topology.spec import parse_topology
from tests.unit.synth.lowering.programs import exchange_schedule, verified
from tests.unit.synth.programs.plans.examples import made
from tests.unit.synth.programs.plans.weak import WeakRun

KINDS = {
    "packets": {"protocol": "LL"},
    "ports": {"ranks_per_box": 2},
    "packets through ports": {"protocol": "LL", "ranks_per_box": 2},
    "reads": {"reads": True},
    "reads and ports": {"reads": True, "ranks_per_box": 2},
    "groups": {"block_group": 2},
    "groups of packets": {"protocol": "LL", "block_group": 2},
    "pipelines": {"pipeline_bytes": 65536},
    "pipelines and ports": {"pipeline_bytes": 65536, "ranks_per_box": 2},
    "reading pipelines": {"pipeline_bytes": 65536, "reads": True},
}
COLLECTIVES = ("allgather", "reduce_scatter", "allreduce")


def actions(plan: ExecutionPlan) -> Counter[str]:
    return Counter(
        f"{each.action.value}{'' if each.kind == 'memory' else f' by {each.kind}'}"
        for body in plan.ranks
        for block in body.blocks
        for each in block.every_operation()
    )


@pytest.mark.parametrize(
    ("in_place", "fuse"), [(True, True), (False, False)], ids=["inplace-fused", "outofplace-apart"]
)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_each_kind_are_right_in_any_order(kind, collective, in_place, fuse):
    """By the check, and on a weakly ordered executor that shares nothing with it."""
    options = {**KINDS[kind], "in_place": in_place, "fuse": fuse}
    if KINDS[kind].get("protocol") == "LL" and collective == "reduce_scatter" and not in_place:
        with pytest.raises(InvalidInput, match=r"with packets a sum .* must be in input or output"):
            made("ring:4", collective, "ring", **options)
        return
    text = made("ring:4", collective, "ring", **options)
    plan = parse_plan(text.encode())
    assert check_program(plan) == []
    assert plan_text(plan) == text
    for seed in range(2):
        assert WeakRun(json.loads(text), 3, seed).is_right()


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize("kind", KINDS)
def test_rooted_collectives(kind, collective):
    """Nothing leads back to a root, so that its next call has to hear that the last one is over."""
    tree = synthesize("forest", parse_topology("ring:4"), parse_collective(collective, 1), None, SerialExecutor())
    options = LoweringOptions("mscclpp-json", **KINDS[kind])
    if options.protocol == "LL" and collective == "reduce":
        with pytest.raises(InvalidInput, match=r"with packets a sum .* use protocol Simple"):
            lower(tree, options)
        return
    assert check_program(plan_of(lower(tree, options))) == []


def test_ports_join_the_boxes_that_the_topology_has():
    plan = plan_of(lower(verified("a100:2", "allgather", "forest"), LoweringOptions("mscclpp-json")))
    for rank, body in enumerate(plan.ranks):
        assert all((peer < 8) == (rank < 8) for peer in body.peers)
        assert all((peer < 8) != (rank < 8) for peer in body.port_peers)
    assert actions(plan)["pws by port"] > 0


def test_reads_are_where_nothing_is_overwritten_before():
    """In an exchange both overwrite what the other needs, so that nobody can read it there."""
    plan = plan_of(lower(exchange_schedule(3), LoweringOptions("mscclpp-json", reads=True)))
    assert check_program(plan) == []
    assert actions(plan)["put"] > 0 == actions(plan)["get"]
    ring = plan_of(lower(verified("ring:4", "reduce_scatter", "ring"), LoweringOptions("mscclpp-json", reads=True)))
    assert actions(ring)["rre"] == 12
    assert max(body.scratch_chunks for body in ring.ranks) == 0


def test_a_source_that_is_overwritten_is_copied_for_the_port():
    plan = plan_of(lower(exchange_schedule(3), LoweringOptions("mscclpp-json", ranks_per_box=1)))
    assert check_program(plan) == []
    assert actions(plan)["pws by port"] == actions(plan)["copy"] > 0


def test_packets_of_a_sum_are_sent_as_it_is_made():
    plan = parse_plan(made("ring:4", "allreduce", "ring", protocol="LL", fuse=True).encode())
    assert actions(plan)["respkt"] == 8
    assert actions(plan)["rppkt"] == 8
    assert actions(plan)["signal"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"protocol": "LL128"}, "protocol Simple or LL"),
        ({"protocol": "LL", "reads": True}, "plans with packets have no option"),
        ({"protocol": "LL", "pipeline_bytes": 64}, "plans with packets have no option"),
        ({"block_group": 2, "pipeline_bytes": 64}, "a plan has either pipelines or block groups, not both"),
        ({"pipeline_bytes": 24}, "multiples of 16 bytes"),
        ({"block_group": 65}, "1 to 64 thread blocks"),
        ({"ranks_per_box": 3}, "do not divide the 4 ranks"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        made("ring:4", "allreduce", "ring", **options)


def test_other_targets_have_no_such_choices():
    with pytest.raises(InvalidInput, match="its runtime sends and receives"):
        lower(verified("ring:4", "allgather"), LoweringOptions("msccl-xml", reads=True))
