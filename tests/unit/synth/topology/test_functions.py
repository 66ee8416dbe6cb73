"""Specs and their functions against definitions, one-line errors with the way out, and what switches can do."""

import dataclasses
import json
import tracemalloc
from collections import Counter
from fractions import Fraction
from io import BytesIO
from itertools import product
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology import expansions, spec as specs
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph
from chorale.synth.topology.failures import LostLink, scaled, single_failures, without
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.formats.json_document import from_json, to_json
from chorale.synth.topology.formats.networkx_graph import to_networkx
from chorale.synth.topology.registry import (
    FamilyCall,
    FileCall,
    FunctionCall,
    Number,
    Option,
    SpecTree,
    TopologyPlan,
    parse_spec,
)
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS, parse_topology
from chorale.synth.topology.symmetry_search import isomorphism
from chorale.synth.topology.topology import (
    NVSWITCH,
    Link,
    Links,
    SwitchAbility,
    Topology,
    automorphisms_are_transitive,
    is_automorphism,
    transpose,
    transpose_with_links,
)
from tests.dumps import cpu, gpu, nvlink, system
from tests.links import both, links_of, network, rates_of, topology_document
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies

NETWORKS = strongly_connected_topologies(bandwidths=MIXED, latencies_s=MIXED[:2], switches=2)
SMALL = strongly_connected_topologies(
    max_nodes=4, max_extra_links=4, bandwidths=MIXED, latencies_s=(MIXED[0], MIXED[3])
)


def in_order(topology: Topology) -> list[Link]:
    return sorted(topology.links, key=lambda link: (link.dst, link.src, -link.bandwidth, link.latency_s))


@st.composite
def with_self_loops(draw: st.DrawFn) -> Topology:
    topology = draw(strongly_connected_topologies(max_nodes=5, max_extra_links=6))
    loops = draw(st.lists(st.integers(0, topology.node_count - 1), max_size=3))
    links = Links.build([*topology.links, *(Link(node, node) for node in loops)])
    return dataclasses.replace(topology, links=links)


@given(with_self_loops())
def test_definition_of_line(topology):
    """Nodes by (source, target, parallel index); a link wherever one link ends and another begins."""
    arcs = sorted(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    expected = Counter(
        (first, second)
        for first, (_, middle) in enumerate(arcs)
        for second, (start, _) in enumerate(arcs)
        if middle == start
    )
    expanded = line_graph(topology, "line(random)")
    assert links_of(expanded) == expected
    assert expanded.node_count == len(arcs)
    assert list(expanded.links) == in_order(expanded)


def test_unbalanced_networks_are_counted_before_they_are_expanded(monkeypatch):
    """All links into one node and all out of it: the line graph has more links than the average says."""

    def refuse_more_than_50_links(spec: str, nodes: int, links: int) -> None:
        if links > 50:
            raise InvalidInput("at most 50 links", f"{spec} of {nodes} nodes, {links} links", "choose another")

    monkeypatch.setattr(expansions, "require_size", refuse_more_than_50_links)
    with pytest.raises(InvalidInput, match="56 links"):
        line_graph(network(8, 0, both(*((0, leaf, 1) for leaf in range(1, 8)))), "line(star)")
    halved = parse_topology("line(scaled(uniring:1,3;link=0-1;link=1-2;link=2-0;factor=1/2))")
    assert halved.links.bandwidths == (Fraction(1, 2),)  # links that are equal keep it


@given(strongly_connected_topologies(max_nodes=5, max_extra_links=6, bandwidths=MIXED), st.integers(1, 3))
def test_definition_of_degree(topology, copies):
    expanded = degree_expansion(topology, copies, "degree(random)")
    expected = Counter(
        (link.src * copies + i, link.dst * copies + j, link.bandwidth)
        for link in topology.links
        for i, j in product(range(copies), repeat=2)
    )
    assert Counter((link.src, link.dst, link.bandwidth) for link in expanded.links) == expected
    assert list(expanded.links) == in_order(expanded)


@given(st.lists(SMALL, min_size=1, max_size=3))
def test_definition_of_product(factors):
    """A link changes one coordinate, along a link of that factor."""
    sizes = [factor.node_count for factor in factors]
    expected = Counter()
    for place in product(*map(range, sizes)):
        for axis, factor in enumerate(factors):
            for link in factor.links:
                if link.src == place[axis]:
                    other = (*place[:axis], link.dst, *place[axis + 1 :])
                    ends = (int(np.ravel_multi_index(point, sizes)) for point in (place, other))
                    expected[(*ends, link.bandwidth, link.latency_s)] += 1
    expanded = cartesian_product(factors, "product(random)")
    assert Counter(map(tuple, expanded.links)) == expected
    assert list(expanded.links) == in_order(expanded)
    assert diameter(expanded) == sum(diameter(factor) for factor in factors)


@given(NETWORKS)
def test_definition_of_bidirectional(topology):
    there = [tuple(link) for link in topology.links]
    back = [(link.dst, link.src, *link[2:]) for link in topology.links]
    both = bidirectional(topology)
    assert Counter(map(tuple, both.links)) == Counter(there + back)
    assert transpose(both).id == both.id
    assert both.node_ids == topology.node_ids


@given(NETWORKS)
def test_definition_of_transpose(topology):
    turned, origin = transpose_with_links(topology)
    assert sorted(origin.tolist()) == list(range(len(topology.links)))
    for link, old in zip(turned.links, origin.tolist(), strict=True):
        original = topology.links[old]
        assert tuple(link) == (original.dst, original.src, *original[2:])
    assert list(turned.links) == in_order(turned)
    assert turned.spec == f"transpose({topology.spec})"
    again, back = transpose_with_links(turned)
    assert again.id == topology.id
    assert np.array_equal(origin[back], np.arange(len(topology.links)))


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("line(bipartite:2;3)", "line(line(line(bipartite:2)))"),
        ("line(bipartite:2)", "line(bipartite:2;1)"),
        ("degree(complete:2;4)", "bipartite:4"),
        ("product(ring:3;complete:2;ring:4)", "torus:3x2x4"),
        ("power(ring:5;1)", "ring:5"),
        ("power(uniring:1,4;3)", "product(uniring:1,4;power(uniring:1,4;2))"),
        ("bidirectional(uniring:2,7)", "biring:4,7"),
        ("without(complete:5;node=1;node=2)", "complete:3"),
        ("without(without(complete:5;node=1);node=1)", "complete:3"),
        ("scaled(scaled(torus:3x3;link=0-1;factor=1/2);link=0-1;factor=2)", "torus:3x3"),
        ("scaled(ring:4;link=0-1;link=1-0;link=0>1;factor=1/3)", "scaled(ring:4;link=0-1;factor=1/3)"),
        ("scaled(ring:4;link=0-1;factor=2/3;link=0-1;factor=3/4)", "scaled(ring:4;link=0-1;factor=1/2)"),
        ("scaled(ring:4;factor=1/2;link=0-1)", "scaled(ring:4;link=0-1;factor=1/2)"),
        (
            "scaled(ring:5;link=0-1;link=1>2;factor=1/3;link=3-4;factor=5/2)",
            "scaled(scaled(ring:5;link=0-1;link=1>2;factor=1/3);link=3-4;factor=5/2)",
        ),
    ],
)
def test_networks_that_are_others(spec, other):
    assert parse_topology(spec).id == parse_topology(other).id


def test_products_need_one_unit_and_no_switches():
    content = json.dumps(topology_document("ab", [("a", "b", 1)])).encode()
    with pytest.raises(InvalidInput, match="the same bandwidth unit, not GB/s and link; convert the bandwidths"):
        parse_topology("product(ring:4;file:x.json)", {"x.json": content}.__getitem__)
    assert parse_topology("power(file:x.json;2)", {"x.json": content}.__getitem__).bandwidth_unit == "GB/s"
    with pytest.raises(InvalidInput, match="power must be given a network without switches"):
        parse_topology("power(hxmesh:2,2x2;2)")


def plan_of(tree: SpecTree) -> TopologyPlan:
    if isinstance(tree, FunctionCall):
        return FUNCTIONS[tree.name].plan(tree, plan_of)
    assert isinstance(tree, FamilyCall)
    return FAMILIES[tree.name].plan(tree)


nested = st.recursive(
    regular_topologies(max_nodes=7),
    lambda inner: st.one_of(
        *(inner.map(form.format) for form in ("line({})", "degree({};2)", "power({};2)", "transpose({})")),
        inner.map("bidirectional({})".format),
        st.tuples(inner, inner).map(lambda pair: f"product({pair[0]};{pair[1]})"),
    ),
    max_leaves=3,
)


@given(nested)
def test_plans_and_symmetries_of_regular_networks(spec):
    plan = plan_of(parse_spec(spec))
    if plan.links > 50_000:
        return
    topology = parse_topology(spec)
    assert (plan.nodes, plan.links) == (topology.node_count, len(topology.links))
    assert topology.spec == spec
    assert topology.degree is not None
    assert topology.is_eulerian
    assert topology.automorphisms
    assert all(is_automorphism(topology, symmetry) for symmetry in topology.automorphisms)
    assert "line(" in spec or automorphisms_are_transitive(topology)


def test_a_power_builds_its_base_once(monkeypatch):
    built = []
    family = FAMILIES["ring"]

    def plan(call):
        inner = family.plan(call)
        return TopologyPlan(inner.spec, inner.nodes, inner.links, lambda: (built.append(call), inner.build())[1])

    monkeypatch.setattr(specs, "FAMILIES", {"ring": dataclasses.replace(family, plan=plan)})
    assert parse_topology("power(ring:3;3)").compute_count == 27
    assert len(built) == 1


def test_a_part_of_a_link_may_be_lost():
    """One of 18 NVLinks of a GPU, while another GPU is lost altogether."""
    left = parse_topology("without(h100:1;node=0;link=0.1-nvswitch:0;part=1/18)")
    rates = rates_of(left)
    assert (left.compute_count, rates["0.1", "nvswitch:0"], rates["0.2", "nvswitch:0"]) == (7, 17 * 25, 18 * 25)
    for spec in ("without(h100:1;part=1/2)", "without(h100:1;link=0.1-nvswitch:0;part=1)"):
        with pytest.raises(InvalidInput, match=r"part .*must"):
            parse_topology(spec)


def fabric() -> Topology:
    """Four GPUs on two leaf switches under two spines; the second spine hangs on a chain of two."""
    nodes = [NamedNode(f"gpu{i}", "compute") for i in range(4)]
    nodes += [NamedNode(name, "switch") for name in ("leaf:0", "leaf:1", "spine.0", "spine.1", "relay")]
    pairs = [(f"gpu{i}", f"leaf:{i // 2}") for i in range(4)] + [("leaf:0", "spine.0"), ("leaf:1", "spine.0")]
    pairs += [("leaf:0", "spine.1"), ("spine.1", "relay"), ("relay", "leaf:1")]
    return assemble_topology("fabric", "link", nodes, [NamedLink(a, b, 1, bidirectional=True) for a, b in pairs])


def test_switches_with_fewer_than_two_neighbours_go_repeatedly():
    rest = without(fabric(), [], [LostLink("relay", "leaf:1", one_way=False)], "x")
    assert rest.node_ids == ("gpu0", "gpu1", "gpu2", "gpu3", "leaf:0", "leaf:1", "spine.0")
    assert len(rest.links) == 12


def test_a_switch_with_two_links_to_one_neighbour_goes_and_named_nodes_keep_their_names():
    doubled = network(2, 1, both((0, 1, 1), (0, 2, 1), (0, 2, 1), (1, 2, 1)))
    assert without(doubled, [], [LostLink("1", "2", one_way=False)], "y").node_ids == ("0", "1")
    rest = without(fabric(), ["spine.0", "gpu1"], [], "x")
    assert rest.node_ids == ("gpu0", "gpu2", "gpu3", "leaf:0", "leaf:1", "spine.1", "relay")
    assert rest.compute_count == 3


def test_a_number_that_means_two_nodes_is_refused():
    swapped = Topology("x", ("1", "0", "2"), 3, parse_topology("complete:3").links)
    with pytest.raises(InvalidInput, match="rank of one node and the id of another"):
        without(swapped, ["1"], [], "y")
    assert without(swapped, ["2"], [], "y").node_ids == ("1", "0")
    assert without(fabric(), ["1"], [], "x").id == without(fabric(), ["gpu1"], [], "x").id


@given(strongly_connected_topologies(min_nodes=4, bandwidths=MIXED), st.data())
def test_definition_of_without(topology, data):
    count, identity = topology.compute_count, np.arange(topology.node_count, dtype=np.int32)
    topology = dataclasses.replace(topology, automorphisms=(identity,))
    nodes = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 2))
    lost = [topology.links[link] for link in data.draw(st.sets(st.integers(0, len(topology.links) - 1)))]
    links = [LostLink(str(u), str(v), data.draw(st.booleans())) for u, v, *_ in lost]
    rest = without(topology, map(str, nodes), links, "x")
    rank = {node: number for number, node in enumerate(set(range(count)) - nodes)}
    gone = {(u, v) for u, v, *_ in lost}
    gone |= {(v, u) for (u, v, *_), link in zip(lost, links, strict=True) if not link.one_way}
    expected = [
        link._replace(src=rank[link.src], dst=rank[link.dst])
        for link in topology.links
        if link.src in rank and link.dst in rank and (link.src, link.dst) not in gone
    ]
    assert list(rest.links) == expected
    assert (rest.links.bandwidths, rest.automorphisms) == (Links.build(expected).bandwidths, ())
    assert rest.id == Topology("y", tuple(map(str, range(len(rank)))), len(rank), Links.build(expected)).id


@given(strongly_connected_topologies(bandwidths=MIXED, switches=1), st.data())
def test_definition_of_scaled(topology, data):
    identity = np.arange(topology.node_count, dtype=np.int32)
    topology = dataclasses.replace(topology, automorphisms=(identity,))
    chosen = [topology.links[i] for i in data.draw(st.sets(st.integers(0, len(topology.links) - 1), min_size=1))]
    one_way = data.draw(st.booleans())
    factor = data.draw(st.sampled_from(MIXED))
    ids = topology.node_ids
    pairs = [LostLink(ids[link.src], ids[link.dst], one_way) for link in chosen]
    hit = {(u, v) for u, v, *_ in chosen} | {(v, u) for u, v, *_ in chosen if not one_way}
    expected = Links.build(
        link._replace(bandwidth=link.bandwidth * factor) if (link.src, link.dst) in hit else link
        for link in topology.links
    )
    found = scaled(topology, pairs, factor, "scaled(random)")
    assert list(found.links) == list(expected)
    assert (found.links.bandwidths, found.automorphisms) == (expected.bandwidths, ())


def test_failures_are_listed_once_for_each_orbit():
    ring = [(str(failure), failure.copies) for failure in single_failures(parse_topology("ring:5"))]
    assert ring == [("node=0", 5), ("link=0-1", 5)]
    mesh = list(single_failures(parse_topology("mesh:2x3")))
    assert list(map(str, mesh[:6])) == [f"node={rank}" for rank in range(6)]
    assert len(mesh) == 6 + 7
    assert {failure.copies for failure in mesh} == {1}


@pytest.mark.parametrize("spec", ["a100:2", "mi250:2", "torus:3x4"])
def test_copies_add_up_to_all_nodes_and_links_and_survivors_are_what_their_spec_says(spec):
    topology = parse_topology(spec)
    found = list(single_failures(topology))
    pairs = {tuple(sorted(pair)) for pair in links_of(topology)}
    assert sum(failure.copies for failure in found if failure.kind == "node") == topology.compute_count
    assert sum(failure.copies for failure in found if failure.kind == "link") == len(pairs)
    assert all(failure.survivor(topology).id == parse_topology(failure.spec(topology)).id for failure in found)


@pytest.mark.parametrize(("spec", "rule"), [("complete:2", "two compute nodes"), ("uniring:1,4", "path")])
def test_failures_that_leave_too_little_are_refused(spec, rule):
    topology = parse_topology(spec)
    with pytest.raises(InvalidInput, match=rule):
        next(single_failures(topology)).survivor(topology)


def test_nesting_and_length_have_limits():
    deep = "transpose(" * 17 + "ring:4" + ")" * 17
    with pytest.raises(InvalidInput, match="nest at most 16 deep"):
        parse_topology(deep)
    assert parse_topology(deep[10:-1]).node_count == 4
    for spec, rule in (("(" * 10**6, "at most 65536 characters"), ("", "a family or function is missing in the spec")):
        with pytest.raises(InvalidInput, match=rule):
            parse_topology(spec)


def test_tree():
    spec = " without( transpose(torus:4 x 4) ; node= 3;link=a:b-c.d; link=0>1 )"
    tree = parse_spec(spec)
    inner = FunctionCall("transpose", (FamilyCall("torus", "4x4"),))
    node, there_and_back, one_way = Option("node", "3"), Option("link", "a:b-c.d"), Option("link", "0>1")
    assert tree == FunctionCall("without", (inner, node, there_and_back, one_way))
    assert str(tree) == "without(transpose(torus:4x4);node=3;link=a:b-c.d;link=0>1)"
    assert parse_spec("line(bipartite:4;3)") == FunctionCall("line", (FamilyCall("bipartite", "4"), Number("3")))
    assert parse_spec("diamond") == FamilyCall("diamond", "")


@pytest.mark.parametrize(
    ("spec", "tree"),
    [
        ("file:a b;c).json", FileCall("a b;c).json")),
        ("transpose(file:a (1).json)", FunctionCall("transpose", (FileCall("a (1).json"),))),
        ("without(file:/x/y.json;node=2)", FunctionCall("without", (FileCall("/x/y.json"), Option("node", "2")))),
    ],
)
def test_paths_keep_blanks_and_balanced_parentheses(spec, tree):
    assert parse_spec(spec) == tree
    assert parse_spec(str(tree)) == tree


@given(st.text(alphabet="ring:tous(4x);,=-> 0file.", max_size=40))
def test_any_text_parses_or_gets_one_line(text):
    try:
        topology = parse_topology(text)
    except InvalidInput as error:
        message = str(error)
    else:
        assert parse_topology(topology.spec).id == topology.id
        message = ""
    assert "\n" not in message


@pytest.mark.parametrize("entry", [*FAMILIES.values(), *FUNCTIONS.values()], ids=lambda entry: entry.name)
def test_examples_of_the_catalog_work(entry):
    topology = parse_topology(entry.example)
    assert topology.spec == entry.example
    assert entry.syntax.startswith(entry.name)
    assert entry.plan.__doc__


def test_file_inside_a_function():
    content = str(to_json(parse_topology("ring:5"))).replace("'", '"').encode()
    topology = parse_topology("without(file:x.json;node=0)", {"x.json": content}.__getitem__)
    assert topology.spec == "without(file:x.json;node=0)"
    assert topology.id == parse_topology("without(ring:5;node=0)").id


REFUSED = (Path(__file__).parents[3] / "data" / "refused-specs.txt").read_text(encoding="utf-8").splitlines()
LINES = [line.strip() for line in REFUSED if line and not line.startswith("#")]
CASES = list(zip(LINES[::2], LINES[1::2], strict=True))


@pytest.mark.parametrize(("spec", "error"), CASES)
def test_a_wrong_spec_is_refused_with_its_message(spec: str, error: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_topology(spec)
    assert str(caught.value) == error
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("spec", [spec for spec, error in CASES if error.startswith("a topology must have at most")])
def test_absurd_sizes_are_refused_without_memory(spec: str) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidInput):
        parse_topology(spec)
    memory_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert memory_bytes < 2**20


@pytest.mark.parametrize(
    ("spec", "able"),
    [
        ("h100:2", {"nvswitch:0", "nvswitch:1"}),
        ("b200:2", {"nvswitch:0", "nvswitch:1"}),
        ("nvl72:1", {"nvswitch:0"}),
        ("a100:2", set()),
        ("mi355x:2", set()),
        ("able(h100:2;switch=rail)", {"nvswitch:0", "nvswitch:1", *(f"rail:{i}" for i in range(8))}),
        ("able(h100:2;multicast=no;reduce=no)", set()),
        ("able(h100:2;switch=nvswitch:1;multicast=no;reduce=no)", {"nvswitch:0"}),
        ("without(h100:2;node=nvswitch:0)", {"nvswitch:1"}),
        ("scaled(h100:2;link=0-nvswitch:0;factor=1/2)", {"nvswitch:0", "nvswitch:1"}),
        ("bidirectional(h100:1)", {"nvswitch:0"}),
        ("transpose(h100:1)", {"nvswitch:0"}),
    ],
)
def test_who_is_able(spec, able):
    topology = parse_topology(spec)
    assert {topology.node_ids[node] for node in topology.abilities} == able


def test_families_and_options_of_able_state_rates():
    rates = {spec: parse_topology(spec).links.bandwidths for spec in ("h200:2", "b200:2", "nvl72:2", "mi355x:2")}
    assert rates["h200:2"] == (50, 450)
    assert rates["b200:2"] == rates["nvl72:2"] == (50, 900)
    assert rates["mi355x:2"] == (50, Fraction(384, 5))
    rack = parse_topology("nvl72:2")
    assert (rack.compute_count, rack.switch_count) == (144, 2 + 144 + 72)
    able = parse_topology("able(h100:1;switch=nvswitch;reduce-bandwidth=309.5)")
    assert able.abilities[8] == SwitchAbility(True, True, Fraction(619, 2))
    assert not parse_topology("able(fattree:4;multicast=no)").abilities[16].multicast


def test_ids_tell_abilities_apart_and_stay_without_them():
    plain, able = parse_topology("able(h100:2;multicast=no;reduce=no)"), parse_topology("h100:2")
    assert plain.id != able.id
    assert parse_topology("able(h100:2;reduce-bandwidth=300)").id not in (able.id, plain.id)
    assert parse_topology("a100:2").id == "bc77e2a299aa0dc5288b490f0137f0d895cfeb94a00ee6772ab11f60ea93a9f9"
    # What h100:2 was before switches could do more: the same links without abilities.
    assert plain.id == "769161839f37aa9e8ddbe2b87de2758664808b8a07246ea633a25318df003f6a"


def test_symmetries_keep_abilities():
    one = parse_topology("able(h100:2;switch=nvswitch:0;reduce=no)")
    swapped = parse_topology("h100:2").automorphisms[0]
    assert is_automorphism(parse_topology("h100:2"), swapped)
    assert not is_automorphism(one, swapped)
    assert len(one.automorphisms) == 1
    other = parse_topology("able(h100:2;switch=nvswitch:1;reduce=no)")
    renaming = isomorphism(one, other)
    assert renaming is not None
    assert renaming[16:18].tolist() == [17, 16]
    assert isomorphism(one, parse_topology("h100:2")) is None


@pytest.mark.parametrize("spec", ["able(switch:4,10;reduce-bandwidth=25/3)", "h100:1", "a100:2"])
def test_files_keep_abilities(spec):
    topology = parse_topology(spec)
    read = from_json(json.dumps(to_json(topology)).encode())
    assert read.id == topology.id
    assert read.abilities == topology.abilities
    graph = to_networkx(topology)
    for _, data in graph.nodes(data=True):
        if "reduce_bandwidth" in data:
            data["reduce_bandwidth"] = str(data["reduce_bandwidth"])
    buffer = BytesIO()
    nx.write_graphml(graph, buffer)
    assert from_bytes(buffer.getvalue(), "file:x.graphml").abilities == topology.abilities


def document(**attributes):
    return json.dumps(topology_document("ab", [(end, "s", 1) for end in "ab"], {"s": attributes})).encode()


def test_json_attributes_are_checked():
    assert from_json(document(multicast=True)).abilities == {2: SwitchAbility(multicast=True)}
    assert from_json(document(multicast=False, reduce=None)).abilities == {}
    for attributes, message in (
        ({"multicast": 1}, "true or false"),
        ({"reduce_bandwidth": 3}, "must have reduce: true"),
        ({"reduce": True, "reduce_bandwidth": -1}, "positive"),
        ({"reduce": True, "reduce_types": ["a b"]}, "names of letters"),
        ({"reduce": True, "reduce_types": 3}, "a list of names"),
        ({"kind": "compute", "reduce": True}, "must be a switch"),
    ):
        with pytest.raises(InvalidInput, match=message):
            from_json(document(**attributes))


@pytest.mark.parametrize(("sm", "able"), [(80, {}), (90, {4: NVSWITCH})])
def test_dumps_say_where_nvls_is(sm, able):
    gpus = [gpu(f"0000:{i}:00.0", i, nvlink("0000:f0:00.0", 18, "0x068000"), about=f'sm="{sm}"') for i in range(4)]
    assert from_bytes(system(cpu(0, *gpus)), "file:dump.xml").abilities == able
