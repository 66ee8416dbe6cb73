"""Expansions: right on any network, as good as published, and refused where they do not apply."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods import expand as schedules
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.methods.expand import (
    base_allgather,
    base_schedule,
    base_schedule_builder,
    bidirectional_schedule,
    degree_schedule,
    expand_allgather,
    expanded_schedule,
    line_schedule,
    power_schedule,
)
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph
from chorale.synth.topology.families.bases import base_entry
from chorale.synth.topology.registry import parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology, transpose
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.strategies import MIXED, strongly_connected_topologies

SERIAL = SerialExecutor()


@st.composite
def regular_networks(draw: st.DrawFn, max_nodes: int, max_degree: int = 3) -> Topology:
    """Strongly connected networks with d links into and out of every node: parallel ones, no self-loops."""
    nodes = draw(st.integers(2, max_nodes))
    cycle = draw(st.permutations(range(nodes)))
    links = [Link(cycle[place - 1], cycle[place]) for place in range(nodes)]
    for _ in range(draw(st.integers(0, max_degree - 1))):
        turn = draw(st.permutations(range(nodes)))
        if any(turn[node] == node for node in range(nodes)):
            links += [Link(turn[place - 1], turn[place]) for place in range(nodes)]
        else:
            links += [Link(node, turn[node]) for node in range(nodes)]
    return Topology("random", tuple(map(str, range(nodes))), nodes, Links.build(links))


def breadth_first(topology: Topology) -> Schedule:
    """Return a BFB allgather in two chunks per shard."""
    return bfb_allgather(topology, SERIAL, chunks=2)


ANY_DEGREE = strongly_connected_topologies(2, 5, max_extra_links=6)
UNEQUAL_LINKS = strongly_connected_topologies(2, 4, max_extra_links=4, bandwidths=MIXED)


@random_cases(50)
@given(st.one_of(regular_networks(4), ANY_DEGREE), st.integers(1, 3))
def test_expansions_verify_and_deliver_nothing_twice(network, count):
    base = breadth_first(network)
    times = min(count, 2) if network.node_count > 3 else count
    for expanded in (
        line_schedule(base, line_graph(network, "line")),
        degree_schedule(base, count, degree_expansion(network, count, "degree")),
        power_schedule(base, times, cartesian_product([network] * times, "power")),
        bidirectional_schedule(base, breadth_first(transpose(network)), bidirectional(network)),
    ):
        assert verify(expanded).link_loads.duplicate_deliveries == 0


@given(UNEQUAL_LINKS, st.integers(2, 3))
def test_unequal_parallel_links_keep_their_loads(network, count):
    base = breadth_first(network)
    nodes, before = network.node_count, verify(base).cost.time_per_byte
    power = power_schedule(base, count, cartesian_product([network] * count, "power"))
    in_all = Fraction(nodes**count - 1, nodes - 1)
    assert verify(power).cost.time_per_byte == before * nodes * in_all / (count * nodes**count)
    degree = degree_schedule(base, count, degree_expansion(network, count, "degree"))
    fan_in = np.bincount(network.links.dst)
    last = max(Fraction(count - 1, count * int(fan_in[link.dst])) / link.bandwidth for link in network.links)
    assert verify(degree).cost.time_per_byte == (before * nodes + last) / (count * nodes)


MOST_LINKS = 1500


@st.composite
def recipes(draw: st.DrawFn, network: Topology) -> str:
    """Up to three expansions of `network`, as long as the result stays small; there is a transpose now and then."""
    nodes, degree = network.node_count, network.degree
    recipe = "random:0"
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            recipe = f"transpose({recipe})"
        kind, count = draw(st.sampled_from(["line", "degree", "power", "bidirectional"])), draw(st.integers(1, 3))
        grown, larger = {
            "line": ((nodes * degree, degree), f"line({recipe})"),
            "degree": ((nodes * count, degree * count), f"degree({recipe};{count})"),
            "power": ((nodes**count, degree * count), f"power({recipe};{count})"),
            "bidirectional": ((nodes, 2 * degree), f"bidirectional({recipe})"),
        }[kind]
        if grown[0] * grown[1] <= MOST_LINKS:
            (nodes, degree), recipe = grown, larger
    return recipe


@given(st.data(), regular_networks(5))
def test_any_expansions_of_random_networks(data, network):
    def schedule_of_base(_spec: str, transposed: bool) -> Schedule:
        return breadth_first(transpose(network) if transposed else network)

    schedule = expanded_schedule(parse_spec(data.draw(recipes(network))), schedule_of_base)
    assert verify(schedule).link_loads.duplicate_deliveries == 0


@pytest.mark.parametrize(
    ("spec", "steps", "factor"),
    [
        ("line(degree(uniring:2,2;1))", 2, "3/4"),  # expansions that leave everything as it was
        ("line(uniring:2,2;3)", 4, "9/8"),  # a walk that comes back to its first link saves nothing twice
        ("bidirectional(genkautz:2,9)", 3, "14/9"),  # the transpose has less to do in the last step
        ("transpose(transpose(line(uniring:1,7)))", 6, "6/7"),  # its own line graph; theorem 7 says 1
        ("transpose(transpose(line(uniring:2,2)))", 2, "3/4"),  # what comes after a link is where its shard began
        ("transpose(transpose(line(complete:3)))", 2, "1"),  # one of the two ways on leads elsewhere
    ],
)
def test_special_cases(spec, steps, factor):
    cost = verify(expanded_schedule(parse_spec(spec), base_schedule_builder(SERIAL))).cost
    assert (cost.steps, cost.bandwidth_factor) == (steps, Fraction(factor))


PUBLISHED = [  # tables 5 and 7 of the paper, and theorem 12
    ("diamond", 3, "7/8"),
    ("product(biring:2,8;power(uniring:1,4;2))", 10, "127/128"),
    ("line(dbjmod:4,2;2)", 5, "65/64"),
    ("line(bipartite:4;3)", 5, "133/128"),
    ("line(power(diamond;2);2)", 8, "257/256"),
    ("power(product(uniring:1,4;uniring:1,8);2)", 20, "1023/1024"),
    ("degree(complete:3;2)", 2, "5/6"),
    ("degree(biring:2,5;2)", 3, "9/10"),  # table 5 prints 2 steps, which BFB on the expanded network takes
]


@pytest.mark.parametrize(("spec", "steps", "factor"), PUBLISHED)
def test_published_results(spec, steps, factor):
    verified = synthesized("expand", spec)
    assert (verified.cost.steps, verified.cost.bandwidth_factor) == (steps, Fraction(factor))
    assert verified.link_loads.duplicate_deliveries == 0


EXPANSIONS = [
    "dbjmod:2,3",
    "power(diamond;2)",
    "transpose(degree(line(transpose(kautz:2,2));2))",
    "line(bidirectional(line(kautz:2,2)))",
    "power(bidirectional(line(transpose(dbjmod:2,3)));1)",
    "transpose(line(without(torus:3x3;node=4)))",
    "degree(without(ring:5;link=0>1);3)",
]


@pytest.mark.parametrize("spec", EXPANSIONS)
def test_an_allreduce_of_nested_expansions_costs_its_two_phases(spec):
    topology = parse_topology(spec)
    gather, scatter, both = (synthesized("expand", topology, each) for each in (ALLGATHER, REDUCE_SCATTER, ALLREDUCE))
    assert scatter.cost == synthesized("expand", transpose(topology)).cost
    assert both.schedule.topology.id == topology.id
    assert both.cost.steps == gather.cost.steps + scatter.cost.steps
    assert both.cost.time_per_byte == gather.cost.time_per_byte + scatter.cost.time_per_byte


def test_bases_use_their_own_schedule_its_mirror_image_or_bfb():
    def base_method(spec):
        schedule = expand_allgather(parse_topology(spec), SERIAL)
        return schedule.parameters["base_method"], verify(schedule).cost.bandwidth_factor

    assert base_method("line(base:diamond)") == ("own", 1)
    assert base_method("transpose(dbjmod:2,3)") == ("mirrored", Fraction(7, 8))
    assert base_method("transpose(diamond)") == ("own", Fraction(7, 8))
    assert base_method("line(base:d3)") == ("bfb", 1)
    # The diamond is recognised whatever its spec says.
    diamond = parse_topology("diamond")
    again = Topology("file:fabric.json", diamond.node_ids, 8, diamond.links)
    assert verify(base_allgather(again, SERIAL, None)).cost.bandwidth_factor == Fraction(7, 8)


def test_chunks_are_cut_on_request():
    topology = parse_topology("power(diamond;2)")
    natural, finer = (synthesized("expand", topology, ALLGATHER, chunks=chunks) for chunks in (None, 12))
    assert (natural.schedule.chunks_per_shard, finer.schedule.chunks_per_shard) == (4, 12)
    assert natural.cost == finer.cost
    assert finer.schedule.parameters["chunks"] == 12


@pytest.mark.parametrize(
    ("spec", "chunks", "message"),
    [
        ("torus:4x4", None, "expand needs an expansion or a base with a schedule, not"),
        ("without(line(ring:4);node=0)", None, "expand needs an expansion or a base with a schedule, not"),
        ("power(diamond;2)", 6, "must be a multiple of 4"),
        ("power(diamond;2)", 0, "must be a multiple of 4"),
        ("line(ring:4;12)", None, "must have at most 134217728 transfers, got 268419072 on "),
    ],
)
def test_what_is_refused(spec, chunks, message):
    with pytest.raises(InvalidInput, match=message):
        synthesized("expand", spec, chunks=chunks)
    scatter = synthesized("bfb", "ring:4", REDUCE_SCATTER).schedule
    with pytest.raises(InvalidInput, match="only stepped allgathers over direct links can be expanded, not a"):
        line_schedule(scatter, parse_topology("line(ring:4)"))


@pytest.mark.parametrize("spec", ["line(diamond)", "degree(diamond;3)", "power(diamond;2)"])
def test_nothing_too_large_is_made(spec, monkeypatch):
    needed = len(expand_allgather(parse_topology(spec), SERIAL).transfers)
    recipe = parse_spec(spec)
    monkeypatch.setattr(schedules, "MAX_TRANSFERS", needed - 1)
    with pytest.raises(InvalidInput, match=f"must have at most {needed - 1} transfers"):
        expanded_schedule(recipe, base_schedule_builder(SERIAL))
    monkeypatch.setattr(schedules, "MAX_TRANSFERS", 2 * needed)
    assert len(expanded_schedule(recipe, base_schedule_builder(SERIAL)).transfers) == needed


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("line(file:fabric.json)", "expand needs a base of the database, not"),
        ("line(ring:4)", "the network is not what its spec says"),
        ("degree(ring:4)", "must be a whole number"),
        ("power(3;3)", "must be a topology spec"),
        ("line(nonsense:3)", "unknown topology family 'nonsense'"),
    ],
)
def test_networks_with_a_spec_that_is_not_theirs(spec, message):
    diamond = parse_topology("diamond")
    with pytest.raises(InvalidInput, match=message):
        expand_allgather(Topology(spec, diamond.node_ids, 8, diamond.links), SERIAL)


@pytest.mark.parametrize("name", ["diamond", "dbjmod-4-2"])
def test_the_claim_holds_for_the_transpose_too(name):
    schedule, claim = base_schedule(name, transposed=True), base_entry(name).claim
    cost = verify(schedule).cost
    assert schedule.topology.id == transpose(base_schedule(name).topology).id
    assert (cost.steps, cost.bandwidth_factor) == (claim.steps, claim.bandwidth_factor)
    assert cost == verify(base_schedule(name)).cost


@pytest.mark.parametrize(
    ("name", "spec", "transposed", "message"),
    [
        ("dbjmod-2-3", None, True, "the transpose of the base has no stored schedule: dbjmod-2-3"),
        ("diamond", "diamond", True, "must be the transpose of the base diamond, got diamond"),
        ("d3", None, False, "the base d3 has no schedule that could be expanded"),
        ("diamond", "dbjmod:2,3", False, "must be that of the base diamond, got dbjmod:2,3"),
    ],
)
def test_stored_schedules_are_refused_where_they_do_not_belong(name, spec, transposed, message):
    with pytest.raises(InvalidInput, match=message):
        base_schedule(name, None if spec is None else parse_topology(spec), transposed=transposed)
