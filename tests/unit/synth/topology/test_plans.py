"""Functions in specs: sizes known before anything is built, errors in one line, nesting."""

import time
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology import spec as specs
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.topology.registry import TopologyPlan
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS, parse_topology
from tests.strategies import regular_topologies

NODES = "a topology must have at most 1048576 nodes; got {}; choose a smaller network"
LINKS = "a topology must have at most 134217728 links; got {}; choose a smaller network"


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


GOLDEN_ERRORS = {
    "line(ring:4;0)": "the number of line must lie between 1 and 20; got {}; choose another number",
    "line(ring:4;21)": "the number of line must lie between 1 and 20; got {}; choose another number",
    "line(ring:4;ring:4)": "line must have a spec and at most one whole number; "
    "got {}; write line(spec) or line(spec;n)",
    "line(3)": "the first argument of line must be a topology spec; got 3; write line(spec) or line(spec;n)",
    "degree(ring:4)": "degree must have a spec and a whole number; got {}; write degree(spec;n)",
    "degree(ring:4;2;2)": "degree must have a spec and a whole number; got {}; write degree(spec;n)",
    "power(ring:4;n=2)": "power must have a spec and a whole number; got {}; write power(spec;n)",
    "power(ring:4;0)": "the number of power must lie between 1 and 20; got {}; choose another number",
    "product(ring:4)": "product must have at least two arguments; got {}; write product(spec;spec;…)",
    "product(ring:4;3)": "every argument of product must be a topology spec; got 3; write product(spec;spec;…)",
    "bidirectional(ring:4;2)": "bidirectional must have exactly one argument; got {}; write bidirectional(spec)",
    "line(uniring:2,1000;20)": NODES,
    "line(complete:1000;2)": LINKS,
    "degree(ring:4;1000000)": NODES,
    "degree(ring:4;9999999999999999999999)": "the number of degree must lie between 1 and 1048576; "
    "got {}; choose another number",
    "power(complete:1000;2)": LINKS,
    "power(ring:4;20)": NODES,
    "product(ring:99999;ring:99999)": NODES,
    "bidirectional(complete:11000)": LINKS,
    "power(line(power(uniring:1,9;3));3)": NODES,
}


@pytest.mark.parametrize("spec", GOLDEN_ERRORS)
def test_errors_come_at_once_and_without_memory(spec):
    tracemalloc.start()
    start_s = time.process_time()
    with pytest.raises(InvalidInput) as caught:
        parse_topology(spec)
    elapsed_s = time.process_time() - start_s
    memory_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value) == GOLDEN_ERRORS[spec].format(spec)
    assert elapsed_s < 0.5
    assert memory_bytes < 2**20


def test_a_power_builds_its_base_once(monkeypatch):
    built = []
    family = FAMILIES["ring"]

    def plan(call):
        inner = family.plan(call)
        return TopologyPlan(inner.spec, inner.nodes, inner.links, lambda: (built.append(call), inner.build())[1])

    monkeypatch.setattr(specs, "FAMILIES", {"ring": replace(family, plan=plan)})
    assert parse_topology("power(ring:3;3)").compute_count == 27
    assert len(built) == 1
