from __future__ import annotations

import json

import pytest

from chorale.runners.execution.node_plan import decode_plan, encode_plan, node_plans
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from tests.conformance.example_programs import ring_allgather, scratch_allreduce_of_pair, star_broadcast


@pytest.mark.parametrize(
    ("program", "spec"),
    [
        (ring_allgather(4, in_place=False), "ring:4"),
        (scratch_allreduce_of_pair(), "complete:2"),
        (star_broadcast(5, root=2), "mesh:5"),
    ],
)
def test_a_plan_survives_the_trip_through_json(program: Program, spec: str) -> None:
    for plan in node_plans(program, parse_topology(spec)):
        assert decode_plan(json.loads(json.dumps(encode_plan(plan)))) == plan


def test_forwarding_nodes_know_the_next_link() -> None:
    topology = parse_topology("mesh:3")
    plans = node_plans(star_broadcast(3, root=0), topology)
    ends = [
        [(topology.links[link].src, topology.links[link].dst) for link in plan.outgoing_links.values()]
        for plan in plans
    ]
    assert ends == [[(0, 1), (0, 1)], [(1, 2)], []]
