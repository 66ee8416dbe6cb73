"""Claims of optimality on random fabrics at the edges: a few here, many in the slow suite."""

import pytest

from chorale.synth.topology.registry import TopologyPlan
from chorale.synth.topology.spec import parse_topology, plan_topology
from tests.reference.claims import METHODS, run


@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_reference_beats_a_claim(method: str) -> None:
    counts, wrong = run(method, 6, seed=4)
    assert not wrong
    assert counts["checked"] > 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_no_reference_beats_ten_thousand_claims(method: str) -> None:
    counts, wrong = run(method, 10_000, seed=2)
    assert not wrong
    assert counts["checked"] > 5_000


@pytest.mark.parametrize("spec", ["line(mesh:3)", "line(mesh:3;2)", "line(mesh:3x4)", "line(torus:4x4)", "line(dbt:7)"])
def test_lines_are_planned_as_large_as_they_are_built(spec: str) -> None:
    plan: TopologyPlan = plan_topology(spec)
    assert (plan.nodes, plan.links) == (parse_topology(spec).node_count, len(parse_topology(spec).links))
