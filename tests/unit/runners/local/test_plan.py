from __future__ import annotations

import json

import pytest

from runners.local.plan import decode_plan, encode_plan, node_plans
from runners.local.rounds import seconds_per_byte
from synth.lowering.program import Program
from synth.topology.links import Link, Links
from synth.topology.spec import parse_topology
from synth.topology.topology import Topology
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
    ends = [[(topology.links[link].src, topology.links[link].dst) for link in plan.exits.values()] for plan in plans]
    assert ends == [[(0, 1), (0, 1)], [(1, 2)], []]


def test_links_keep_their_proportions_and_the_fastest_gets_the_rate() -> None:
    links = Links.build([Link(0, 1, 300), Link(1, 0, 25)])
    gigabytes = Topology("", ("a", "b"), 2, links, "GB/s")
    paces = dict(zip(links.src.tolist(), seconds_per_byte(gigabytes, 8), strict=True))
    assert paces == {0: pytest.approx(1e-6), 1: pytest.approx(12e-6)}
    in_links = Topology("", ("a", "b"), 2, links, "link")
    assert dict(zip(links.src.tolist(), seconds_per_byte(in_links, 8), strict=True))[0] == pytest.approx(1e-6 / 300)
