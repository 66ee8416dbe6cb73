"""Functions in specs: sizes known before anything is built, errors in one line, nesting."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology import spec as specs
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.topology.registry import TopologyPlan
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS, parse_topology
from tests.strategies import regular_topologies


def plan_of(tree: SpecTree) -> TopologyPlan:
    if isinstance(tree, FunctionCall):
        return FUNCTIONS[tree.name].plan(tree, plan_of)
    assert isinstance(tree, FamilyCall)
    return FAMILIES[tree.name].plan(tree)


nested = st.recursive(
    regular_topologies(max_nodes=7),
    lambda inner: st.one_of(
        inner.map("line({})".format),
        inner.map("degree({};2)".format),
        inner.map("power({};2)".format),
        inner.map("bidirectional({})".format),
        inner.map("transpose({})".format),
        st.tuples(inner, inner).map(lambda pair: f"product({pair[0]};{pair[1]})"),
    ),
    max_leaves=3,
)


@given(nested)
def test_plans_of_regular_networks_are_exact(spec):
    plan = plan_of(parse_spec(spec))
    if plan.links > 50_000:
        return
    topology = parse_topology(spec)
    assert (plan.nodes, plan.links) == (topology.node_count, len(topology.links))
    assert topology.spec == spec
    assert topology.degree is not None
    assert topology.is_eulerian


def test_a_power_builds_its_base_once(monkeypatch):
    built = []
    family = FAMILIES["ring"]

    def plan(call):
        inner = family.plan(call)
        return TopologyPlan(inner.spec, inner.nodes, inner.links, lambda: (built.append(call), inner.build())[1])

    monkeypatch.setattr(specs, "FAMILIES", {"ring": replace(family, plan=plan)})
    assert parse_topology("power(ring:3;3)").compute_count == 27
    assert len(built) == 1
