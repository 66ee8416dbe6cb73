"""Direct networks and fabrics against definitions, formulas and NetworkX; the claims of base graphs, derived anew."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import reduce
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.cayley_search import CayleySearch, search_cayley_graphs
from chorale.synth.identity import content_id
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.expand import base_schedule
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.families import bases as database
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.families.directed import SemidirectProduct
from chorale.synth.topology.families.grids import plan_hxmesh
from chorale.synth.topology.registry import parse_spec
from chorale.synth.topology.spec import FAMILIES, parse_topology
from chorale.synth.topology.topology import (
    Topology,
    automorphisms_are_transitive,
    checked_orbits,
    is_automorphism,
    orbits,
)
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from tests.links import both_directions, graph_of, links_of, order_of
from tests.strategies import regular_topologies


def are_symmetries(topology: Topology) -> bool:
    return all(is_automorphism(topology, symmetry) for symmetry in topology.automorphisms)


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("ring:7", "torus:7"),
        ("ring:7", "biring:2,7"),
        ("hamming:2,3", "hyperx:3x3"),
        ("hxmesh:4,1x1", "mesh:4x4"),
        ("twisted-torus:4x2,0", "torus:4x2"),
        ("cayley:16.8.3,92,101,77,122", "cayley:16.8.3.1,92,101,77,122"),
        ("diamond", "base:diamond"),
        ("dbjmod:4,2", "base:dbjmod-4-2"),
    ],
)
def test_networks_that_are_others(spec, other):
    assert parse_topology(spec).id == parse_topology(other).id
    assert parse_topology(spec).spec == spec


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3), st.booleans())
def test_torus_and_mesh(sizes, periodic):
    topology = parse_topology(("torus:" if periodic else "mesh:") + "x".join(map(str, sizes)))
    graph = nx.grid_graph(dim=sizes[::-1], periodic=periodic)
    ranks = {node: int(np.ravel_multi_index(node, sizes)) for node in graph} if len(sizes) > 1 else {}
    assert links_of(topology) == both_directions(nx.relabel_nodes(graph, ranks).edges)
    assert diameter(topology) == sum(size // 2 if periodic else size - 1 for size in sizes)
    if periodic:
        assert topology.degree == sum(1 if size == 2 else 2 for size in sizes)


@given(st.sampled_from([1, 2, 3, 5]), st.integers(3, 12))
def test_rings_with_parallel_links(d, m):
    uniring = parse_topology(f"uniring:{d},{m}")
    assert links_of(uniring) == Counter({(i, (i + 1) % m): d for i in range(m)})
    assert (uniring.degree, diameter(uniring)) == (d, m - 1)
    assert links_of(parse_topology(f"biring:{2 * d},{m}")) == both_directions([*nx.cycle_graph(m).edges] * d)


@pytest.mark.parametrize(
    ("spec", "graph"),
    [
        ("hypercube:5", nx.hypercube_graph(5)),
        ("complete:7", nx.complete_graph(7)),
        ("bipartite:1", nx.complete_graph(2)),
        ("bipartite:4", nx.complete_bipartite_graph(4, 4)),
    ],
)
def test_graphs_of_networkx(spec, graph):
    topology = parse_topology(spec)
    assert links_of(topology) == both_directions(nx.convert_node_labels_to_integers(graph, ordering="sorted").edges)


@given(st.data())
def test_circulant(data):
    n = data.draw(st.integers(2, 30))
    halves = data.draw(st.sets(st.integers(1, n // 2), min_size=1).filter(lambda a: math.gcd(n, *a) == 1))
    offsets = [data.draw(st.sampled_from([a, n - a])) for a in sorted(halves)]
    topology = parse_topology(f"circulant:{n}," + ",".join(map(str, offsets)))
    assert links_of(topology) == both_directions(nx.circulant_graph(n, sorted(halves)).edges)
    assert topology.degree == sum(1 if 2 * a == n else 2 for a in halves)


@given(regular_topologies().filter(lambda spec: not spec.startswith("distreg")))  # which know all symmetries
def test_known_symmetries_hold_and_act_regularly(spec):
    topology = parse_topology(spec)
    assert are_symmetries(topology)
    assert automorphisms_are_transitive(topology)
    order = order_of(topology.automorphisms, topology.compute_count)
    assert order == topology.compute_count  # transitive and as large as the network, so regular
    assert topology.degree is not None
    assert topology.is_eulerian


@given(st.integers(3, 60))
def test_shiftedring_is_two_rings_over_all_nodes(m):
    topology = parse_topology(f"shiftedring:{m}")
    stride = max(s for s in range(1, m) if 2 * s < m and math.gcd(s, m) == 1)
    assert links_of(topology) == both_directions([(i * s % m, (i + 1) * s % m) for s in (1, stride) for i in range(m)])
    assert topology.degree == 4


def test_double_binary_trees_by_hand():
    first = [(0, 4), (4, 2), (4, 6), (2, 1), (2, 3), (6, 5), (6, 7)]
    mirrored = [(7 - parent, 7 - child) for parent, child in first]
    assert links_of(parse_topology("dbt:8")) == both_directions(first + mirrored)
    first = [(0, 4), (4, 2), (2, 1), (2, 3)]
    shifted = [((parent + 1) % 5, (child + 1) % 5) for parent, child in first]
    assert links_of(parse_topology("dbt:5")) == both_directions(first + shifted)


@given(st.integers(2, 200))
def test_double_binary_tree(m):
    topology = parse_topology(f"dbt:{m}")
    links = links_of(topology)
    assert sum(links.values()) == 4 * (m - 1)
    assert all(links[dst, src] == count for (src, dst), count in links.items())
    assert max(degree for _, degree in graph_of(topology).out_degree()) <= 4
    assert diameter(topology) <= 2 * math.log2(m) + 2


@given(st.lists(st.integers(2, 5), min_size=1, max_size=3))
def test_hyperx(sizes):
    topology = parse_topology("hyperx:" + "x".join(map(str, sizes)))
    graph = reduce(nx.cartesian_product, [nx.complete_graph(size) for size in sizes])
    assert links_of(topology) == both_directions(nx.convert_node_labels_to_integers(graph).edges)
    assert (topology.degree, diameter(topology)) == (sum(sizes) - len(sizes), len(sizes))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
def test_hxmesh_by_the_definition_of_boards(b, x, y):
    if b * x * b * y < 2:
        return
    topology = parse_topology(f"hxmesh:{b},{x}x{y}")
    edges: list[tuple[str, str]] = []
    rows, columns = b * x, b * y
    for row, column in itertools.product(range(rows), range(columns)):
        here = str(row * columns + column)
        for other_row, other_column in ((row, column + 1), (row + 1, column)):
            same_board = (row // b, column // b) == (other_row // b, other_column // b)
            if other_row < rows and other_column < columns and same_board:
                edges.append((here, str(other_row * columns + other_column)))
        for port in (0, b - 1):
            edges += [(here, f"row:{row}")] if y > 1 and column % b == port else []
            edges += [(here, f"column:{column}")] if x > 1 and row % b == port else []
    ids = topology.node_ids
    assert Counter((ids[link.src], ids[link.dst]) for link in topology.links) == both_directions(edges)
    assert topology.compute_count == rows * columns
    assert (x, y) == (1, 1) or 1 in (x, y) or topology.degree == 4
    plan = plan_hxmesh(parse_spec(topology.spec))
    assert (plan.nodes, plan.links) == (topology.node_count, len(topology.links))


@pytest.mark.parametrize(("spec", "moves"), [("2,2x3", 2), ("3,1x4", 1), ("3,4x1", 1), ("4,1x1", 0)])
def test_boards_may_change_places(spec, moves):
    topology = parse_topology(f"hxmesh:{spec}")
    assert len(topology.automorphisms) == moves
    assert are_symmetries(topology)
    kinds = np.unique(orbits(topology.node_count, topology.automorphisms)[: topology.compute_count])
    assert len(kinds) == int(spec[0]) ** 2


@given(st.data())
def test_twisted_torus_of_two_dimensions(data):
    a, b = data.draw(st.integers(2, 6)), data.draw(st.integers(2, 6))
    twist = data.draw(st.integers(0, b - 1))
    topology = parse_topology(f"twisted-torus:{a}x{b},{twist}")
    edges = []
    for x, y in itertools.product(range(a), range(b)):
        down = (x + 1, y) if x + 1 < a else (0, (y + twist) % b)
        if x == 0 or (a, twist) != (2, 0):  # a dimension of 2 is one pair of links, not one there and one on
            edges.append((x * b + y, down[0] * b + down[1]))
        if y == 0 or b != 2:
            edges.append((x * b + y, x * b + (y + 1) % b))
    assert links_of(topology) == both_directions(edges)


@pytest.mark.parametrize("k", [2, 3, 6])
@pytest.mark.parametrize("kind", ["face-centred", "body-centred"])
def test_tpu_v4_forms_are_the_cubic_lattices(k, kind):
    """Nodes are points of Z^3 up to a lattice: two points are linked where they differ by a unit vector."""
    if kind == "face-centred":
        sizes, lattice = (k, k, 2 * k), [(k, 0, k), (0, k, k), (0, 0, 2 * k)]
    else:
        sizes, lattice = (k, 2 * k, 2 * k), [(k, k, k), (0, 2 * k, 0), (0, 0, 2 * k)]
    topology = parse_topology("twisted-torus:" + "x".join(map(str, sizes)))
    edges = []
    for point, axis in itertools.product(np.ndindex(*sizes), range(3)):
        moved = np.array(point)
        moved[axis] += 1
        for place, vector in enumerate(lattice):
            moved -= moved[place] // sizes[place] * np.array(vector)
        edges.append(tuple(int(np.ravel_multi_index(tuple(p), sizes)) for p in (point, moved)))
    assert links_of(topology) == both_directions(edges)
    assert (topology.degree, diameter(topology)) == (6, 3 * k // 2)


@pytest.mark.parametrize("n", [3, 4, 7])
def test_twisted_hypercube(n):
    cube = nx.convert_node_labels_to_integers(nx.hypercube_graph(n), ordering="sorted")
    z = 2**n - 1
    cube.remove_edges_from([(z - 3, z - 2), (z - 1, z)])
    cube.add_edges_from([(z - 3, z), (z - 2, z - 1)])
    topology = parse_topology(f"twisted-hypercube:{n}")
    assert links_of(topology) == both_directions(cube.edges)
    assert (topology.degree, diameter(topology)) == (n, n - 1)


@pytest.mark.parametrize(("d", "n"), [(2, 0), (3, 0), (2, 1), (2, 3), (3, 2)])
def test_kautz_and_debruijn_are_repeated_line_graphs(d, n):
    lines = "line({};{})".format if n else "{}".format
    kautz, debruijn = parse_topology(f"kautz:{d},{n}"), parse_topology(f"debruijn:{d},{n + 1}")
    assert kautz.id == parse_topology(lines(f"complete:{d + 1}", n)).id
    assert links_of(parse_topology(f"debruijn:{d},1")) == Counter(itertools.product(range(d), repeat=2))
    assert debruijn.id == parse_topology(lines(f"debruijn:{d},1", n)).id
    for topology, nodes in ((kautz, d**n * (d + 1)), (debruijn, d ** (n + 1))):
        assert (topology.compute_count, topology.degree, diameter(topology)) == (nodes, d, n + 1)
        assert are_symmetries(topology)


@given(st.data())
def test_genkautz(data):
    d = data.draw(st.integers(2, 5))
    m = data.draw(st.integers(d + 1, 60))
    topology = parse_topology(f"genkautz:{d},{m}")
    assert links_of(topology) == Counter((x, (-d * x - a) % m) for x in range(m) for a in range(1, d + 1))
    assert topology.degree == d
    assert are_symmetries(topology)


GROUPS = st.tuples(st.integers(1, 7), st.integers(1, 4), st.integers(0, 6), st.integers(1, 3)).filter(
    lambda numbers: SemidirectProduct(*numbers).is_group and 1 < numbers[0] * numbers[1] * numbers[3] <= 40
)


@given(GROUPS)
def test_group_axioms(numbers):
    group = SemidirectProduct(*numbers)
    elements = np.arange(group.order)
    table = group.product(elements[:, None], elements[None, :])
    assert np.array_equal(np.sort(table, axis=0), np.repeat(elements[:, None], group.order, axis=1))
    assert np.array_equal(table[0], elements)
    assert np.array_equal(table[:, 0], elements)
    assert np.array_equal(table[table], table[:, table])  # (x y) z = x (y z)


@given(GROUPS, st.data())
def test_links_follow_the_law_by_coordinates(numbers, data):
    m, k, r, l = numbers  # noqa: E741
    wanted = data.draw(st.sets(st.integers(1, m * k * l - 1), min_size=1, max_size=4))
    generators = sorted(wanted | set(SemidirectProduct(*numbers).generating_set))
    topology = parse_topology(f"cayley:{m}.{k}.{r}.{l}," + ",".join(map(str, generators)))
    elements = list(itertools.product(range(m), range(k), range(l)))
    expected = Counter()
    for (rank, (a, b, c)), generator in itertools.product(enumerate(elements), generators):
        a2, b2, c2 = elements[generator]
        expected[rank, elements.index(((a + r**b * a2) % m, (b + b2) % k, (c + c2) % l))] += 1
    assert links_of(topology) == expected
    assert topology.degree == len(generators)
    assert are_symmetries(topology)
    assert automorphisms_are_transitive(topology)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_dicirculant(d):
    topology = parse_topology(f"dicirculant:{d}")
    reference = nx.complement(nx.DiGraph([(i, (i + d + 1) % (d + 2)) for i in range(d + 2)]))
    assert links_of(topology) == Counter(list(reference.edges))
    cost = synthesize("bfb", topology, ALLGATHER, None, SerialExecutor()).cost
    assert cost.bandwidth_factor == 1 - Fraction(1, topology.compute_count)


# Brouwer, Cohen, Neumaier, "Distance-Regular Graphs": {b0, b1, …; c1, c2, …}.
INTERSECTION_ARRAYS = {
    6: ([4, 1], [1, 4]),
    9: ([4, 2], [1, 2]),
    10: ([4, 3, 1], [1, 3, 4]),
    14: ([4, 3, 2], [1, 2, 4]),
    15: ([4, 2, 1], [1, 1, 4]),
    16: ([4, 3, 2, 1], [1, 2, 3, 4]),
    21: ([4, 2, 2], [1, 1, 2]),
    26: ([4, 3, 3], [1, 1, 4]),
    32: ([4, 3, 3, 1], [1, 1, 3, 4]),
    35: ([4, 3, 3], [1, 1, 2]),
    45: ([4, 2, 2, 2], [1, 1, 1, 2]),
    70: ([4, 3, 3, 2, 2, 1, 1], [1, 1, 2, 2, 3, 3, 4]),
    80: ([4, 3, 3, 3], [1, 1, 1, 4]),
    189: ([4, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 2]),
    728: ([4, 3, 3, 3, 3, 3], [1, 1, 1, 1, 1, 4]),
}


@pytest.mark.parametrize("m", INTERSECTION_ARRAYS)
def test_distance_regular_graphs(m):
    topology = parse_topology(f"distreg:4,{m}")
    assert topology.compute_count == m
    assert nx.intersection_array(nx.Graph(graph_of(topology))) == INTERSECTION_ARRAYS[m]
    assert set(links_of(topology).values()) == {1}
    assert are_symmetries(topology)
    assert automorphisms_are_transitive(topology) == (m != 80)
    if m == 80:  # points and lines of GQ(3, 3) differ: W(q) is its own dual for even q only
        assert checked_orbits(topology).tolist() == [0] * 40 + [1] * 40


ENTRIES = list(database.load_bases().values())
SEARCHED = {facts["name"]: database.load_bases()[facts["name"]] for facts in database.base_documents("searched.json")}


def moore_steps(nodes: int, degree: int) -> int:
    """Return the fewest steps in which a node of a directed network of `degree` can be reached by all others."""
    steps, reached = 0, 1
    while reached < nodes:
        steps += 1
        reached += degree**steps
    return steps


def claimed_schedule(entry: database.BaseEntry) -> VerifiedSchedule:
    if entry.claim.method == "own":
        return verify(base_schedule(entry.name))
    assert entry.claim.method == "bfb"
    topology = check_topology(base_topology(entry, f"base:{entry.name}"))
    return synthesize("bfb", topology, ALLGATHER, None, SerialExecutor())


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_claims_of_bases_are_derived_anew(entry):
    topology = base_topology(entry, f"base:{entry.name}")
    assert (topology.compute_count, topology.degree) == (entry.nodes, entry.degree)
    assert are_symmetries(topology)
    if entry.edges is not None:
        assert np.array_equal(np.column_stack([topology.links.src, topology.links.dst]), entry.edges)
    else:
        assert automorphisms_are_transitive(topology)
    cost = claimed_schedule(entry).cost
    assert (cost.steps, cost.bandwidth_factor) == (entry.claim.steps, entry.claim.bandwidth_factor)
    least = Fraction(entry.nodes - 1, entry.nodes)
    assert entry.claim.bandwidth_factor == least or (entry.claim.bandwidth_factor > least and entry.name in SEARCHED)
    assert entry.claim.steps >= moore_steps(entry.nodes, entry.degree)
    assert entry.has_stored_schedule == (entry.claim.method == "own")
    assert entry.source


def test_ids_of_bases_are_those_of_their_content():
    for documents in map(database.base_documents, database.BASE_FILES):
        assert len({facts["name"] for facts in documents}) == len(documents)
        for facts in documents:
            assert facts.pop("id") == content_id(facts), facts["name"]


def test_bases_that_are_there():
    assert list(database.load_bases())[:6] == ["diamond", "dbjmod-2-3", "dbjmod-2-4", "dbjmod-3-2", "dbjmod-4-2", "d3"]
    assert {f"cayley-{nodes}-{degree}" for nodes in range(6, 73) for degree in (2, 3, 4)} < set(database.load_bases())
    assert [entry.name for entry in ENTRIES if entry.has_stored_schedule] == list(database.load_bases())[:5]


def test_no_base_of_the_search_is_dominated():
    """A base may be there for its few steps or its little bandwidth time, never for neither."""
    for entry in SEARCHED.values():
        for other in ENTRIES:
            if other.name != entry.name and (other.nodes, other.degree) == (entry.nodes, entry.degree):
                fewer = other.claim.steps <= entry.claim.steps
                assert not (fewer and other.claim.bandwidth_factor <= entry.claim.bandwidth_factor), entry.name


@pytest.mark.parametrize("name", ["cayley-16-4-2", "cayley-93-2-8"])
def test_the_search_finds_its_bases_again(name):
    entry = SEARCHED[name]
    (seed,) = re.findall(r"seed (\d+);", entry.source)
    found = search_cayley_graphs(CayleySearch(entry.nodes, entry.degree), [int(seed)], SerialExecutor())
    assert (entry.claim.steps, entry.claim.bandwidth_factor) in [(c.steps, c.bandwidth_factor) for c in found]
    (spec,) = [c.spec for c in found if c.steps == entry.claim.steps]
    assert spec == f"cayley:{'.'.join(map(str, entry.group))},{','.join(map(str, entry.generators))}"


def test_an_unknown_base():
    with pytest.raises(InvalidInput, match=r"unknown base 'cayley-32-44'; did you mean .*'cayley-32-4'"):
        database.base_entry("cayley-32-44")


Wires = Counter[tuple[str, str, Fraction]]


def wires_of(topology: Topology) -> Wires:
    ids = topology.node_ids
    return Counter((ids[link.src], ids[link.dst], link.bandwidth) for link in topology.links)


def both_ways(wires: Iterable[tuple[str, str, int | Fraction]]) -> Wires:
    return Counter(
        end for one, other, rate in wires for end in ((one, other, Fraction(rate)), (other, one, Fraction(rate)))
    )


def dgx(boxes: int, nvswitch: int, nic: int | Fraction, joint: Callable[[int], str], gpus: int = 8) -> Wires:
    wires: list[tuple[str, str, int | Fraction]] = []
    for box, gpu in itertools.product(range(boxes), range(gpus)):
        place = f"{box}.{gpu}"
        wires.append((place, f"nvswitch:{box}", nvswitch))
        if boxes > 1:
            wires += [(place, f"nic:{place}", nic), (f"nic:{place}", joint(gpu), nic)]
    return both_ways(wires)


@pytest.mark.parametrize("boxes", [1, 3])
def test_dgx(boxes):
    assert wires_of(parse_topology(f"a100:{boxes}")) == dgx(boxes, 300, 25, lambda gpu: f"ib:{gpu % 2}")
    assert wires_of(parse_topology(f"h100:{boxes}")) == dgx(boxes, 450, 50, lambda gpu: f"rail:{gpu}")


MI250 = """0-1:4 2-3:4 4-5:4 6-7:4 8-9:4 10-11:4 12-13:4 14-15:4 0-4:2 3-7:2 8-12:2 11-15:2 0-8:1 1-5:1 1-9:1 1-10:1
2-6:1 2-9:1 2-10:1 3-11:1 4-6:1 5-6:1 5-7:1 9-13:1 10-14:1 12-14:1 13-14:1 13-15:1"""


@pytest.mark.parametrize("boxes", [1, 3])
@pytest.mark.parametrize(("family", "gpus"), [("mi250", 16), ("mi250half", 8)])
def test_mi250(family, gpus, boxes):
    wires: list[tuple[str, str, int]] = []
    for box in range(boxes):
        for bundle in MI250.split():
            ends, count = bundle.split(":")
            one, other = map(int, ends.split("-"))
            if max(one, other) < gpus:
                wires.append((f"{box}.{one}", f"{box}.{other}", 50 * int(count)))
        wires += [(f"{box}.{gpu}", "ib:0", 16) for gpu in range(gpus) if boxes > 1]
    assert wires_of(parse_topology(f"{family}:{boxes}")) == both_ways(wires)


@pytest.mark.parametrize("boxes", [1, 3])
def test_mi300x(boxes):
    wires: list[tuple[str, str, int]] = []
    for box in range(boxes):
        wires += [(f"{box}.{one}", f"{box}.{other}", 64) for one, other in combinations(range(8), 2)]
        for gpu in range(8 if boxes > 1 else 0):
            wires += [(f"{box}.{gpu}", f"nic:{box}.{gpu}", 50), (f"nic:{box}.{gpu}", "ib:0", 50)]
    assert wires_of(parse_topology(f"mi300x:{boxes}")) == both_ways(wires)


@pytest.mark.parametrize("k", [2, 6])
def test_fattree(k):
    half = k // 2
    wires: list[tuple[str, str, int]] = []
    for pod in range(k):
        for edge in range(half):
            wires += [(f"{pod}.{edge}.{host}", f"edge:{pod}.{edge}", 25) for host in range(half)]
            wires += [(f"edge:{pod}.{edge}", f"agg:{pod}.{up}", 25) for up in range(half)]
            wires += [(f"agg:{pod}.{edge}", f"core:{edge}.{core}", 25) for core in range(half)]
    topology = parse_topology(f"fattree:{k}")
    assert wires_of(topology) == both_ways(wires)
    assert topology.compute_count == k**3 // 4
    ports = Counter(topology.node_ids[link.src] for link in topology.links)
    assert {ports[switch] for switch in topology.node_ids[topology.compute_count :]} == {k}


@pytest.mark.parametrize(("a", "p", "h"), [(4, 2, 2), (2, 3, 1), (1, 2, 4)])
def test_dragonfly(a, p, h):
    topology = parse_topology(f"dragonfly:{a},{p},{h}")
    found = wires_of(topology)
    assert {rate for _, _, rate in found} == {Fraction(25)}
    assert set(found.values()) == {1}
    groups = a * h + 1
    local = both_ways(
        (f"router:{group}.{one}", f"router:{group}.{other}", 25)
        for group in range(groups)
        for one, other in combinations(range(a), 2)
    )
    hosts = both_ways(
        (f"{group}.{router}.{host}", f"router:{group}.{router}", 25)
        for group in range(groups)
        for router in range(a)
        for host in range(p)
    )
    assert local + hosts <= found
    between = found - local - hosts
    group_pairs = Counter(tuple(int(re.findall(r"\d+", end)[0]) for end in wire[:2]) for wire in between)
    assert group_pairs == Counter((one, other) for one in range(groups) for other in range(groups) if one != other)
    assert set(Counter(src for src, _, _ in between).values()) == {h}
    assert all((dst, src, rate) in between for src, dst, rate in between)


@pytest.mark.parametrize(("boxes", "gpus", "nic", "spines"), [(3, 4, "50", 2), (2, 2, "25/3", 5), (4, 8, "12.5", 0)])
def test_railclos(boxes, gpus, nic, spines):
    rate, ends = Fraction(nic), itertools.product(range(gpus), range(spines))
    up = both_ways((f"rail:{gpu}", f"spine:{spine}", boxes * rate / spines) for gpu, spine in ends)
    found = wires_of(parse_topology(f"railclos:{boxes},{gpus},{nic},{spines}"))
    assert found == dgx(boxes, 450, rate, "rail:{}".format, gpus) + up


def test_switches_that_join_nothing_are_left_out():
    assert parse_topology("railclos:4,1,50,3").node_ids[4:] == (*(f"nic:{box}.0" for box in range(4)), "rail:0")
    assert parse_topology("railclos:1,4,50,2").node_ids[4:] == ("nvswitch:0",)


def test_switch():
    wires = both_ways((str(node), "switch:0", Fraction(25, 2)) for node in range(3))
    assert wires_of(parse_topology("switch:3,12.5")) == wires


@pytest.mark.parametrize(
    "spec",
    ["switch:5,3/7", "a100:1", "a100:3", "mi250half:2", "mi300x:2", "fattree:4", "fattree:2", "dragonfly:3,2,2",
     "railclos:3,4,50,2", "railclos:1,2,50,2", "railclos:2,1,50,2"],
)  # fmt: skip
def test_every_fabric(spec):
    topology = parse_topology(spec)
    tree = parse_spec(spec)
    plan = FAMILIES[tree.name].plan(tree)
    assert (plan.nodes, plan.links) == (topology.node_count, len(topology.links))
    assert topology.bandwidth_unit == "GB/s"
    assert topology.is_eulerian
    assert are_symmetries(topology)
    assert all((generator != np.arange(topology.node_count)).any() for generator in topology.automorphisms)
    symmetric = tree.name not in ("mi250", "mi250half", "dragonfly")
    assert automorphisms_are_transitive(topology) == symmetric


def test_boxes_and_their_parts_can_fail():
    for lost, gone in (("link=1.3-nic:1.3", {"nic:1.3"}), ("node=11", {"1.3", "nic:1.3"})):
        left = parse_topology(f"without(a100:2;{lost})")
        assert set(parse_topology("a100:2").node_ids) - set(left.node_ids) == gone
    one_box_left = parse_topology("without(a100:2;" + ";".join(f"node=1.{gpu}" for gpu in range(8)) + ")")
    infiniband = {wire: 1 for wire in wires_of(one_box_left) if "nic:" in wire[0] + wire[1]}
    assert wires_of(one_box_left) - Counter(infiniband) == wires_of(parse_topology("a100:1"))
    assert len(infiniband) == 32
    assert "nvswitch:1" not in one_box_left.node_ids
