"""Hypothesis strategies that several test files use."""

from collections.abc import Sequence
from fractions import Fraction

from hypothesis import strategies as st

from chorale.synth.topology.topology import Link, Links, Topology

UNIT: Sequence[Fraction] = (Fraction(1),)
MIXED: Sequence[Fraction] = (Fraction(1), Fraction(2), Fraction(5), Fraction(1, 2), Fraction(7, 3), Fraction(25, 4))


@st.composite
def strongly_connected_topologies(
    draw: st.DrawFn,
    min_nodes: int = 2,
    max_nodes: int = 8,
    max_extra_links: int = 16,
    parallel: bool = True,
    bandwidths: Sequence[Fraction] = UNIT,
    latencies_s: Sequence[Fraction] = (Fraction(0),),
    switches: int = 0,
) -> Topology:
    """Random directed networks in which every node reaches every other.

    A random Hamiltonian cycle is there, plus up to `max_extra_links` links, parallel ones if `parallel`. Each link
    takes its bandwidth and latency from the given choices. Up to `switches` nodes besides are switches. Shrinks
    towards a small ring of capacity 1.
    """
    compute_count = draw(st.integers(min_nodes, max_nodes))
    node_count = compute_count + draw(st.integers(0, switches))
    cycle = draw(st.permutations(range(node_count)))
    pairs = [(cycle[i], cycle[(i + 1) % node_count]) for i in range(node_count)]
    other_pairs = [(u, v) for u in range(node_count) for v in range(node_count) if u != v]
    unused = [pair for pair in other_pairs if parallel or pair not in pairs]
    if unused:
        pairs += draw(st.lists(st.sampled_from(unused), max_size=max_extra_links, unique=not parallel))
    links = [Link(u, v, draw(st.sampled_from(bandwidths)), draw(st.sampled_from(latencies_s))) for u, v in pairs]
    return Topology(
        spec="random",
        node_ids=tuple(map(str, range(compute_count))) + tuple(f"s{i}" for i in range(node_count - compute_count)),
        compute_count=compute_count,
        links=Links.build(links),
    )


def networks(min_nodes: int, max_nodes: int) -> st.SearchStrategy[Topology]:
    """Random networks, half of them with links of different bandwidths."""
    return st.one_of(
        strongly_connected_topologies(min_nodes, max_nodes),
        strongly_connected_topologies(min_nodes, max_nodes, bandwidths=MIXED),
    )


def regular_topologies(max_nodes: int = 12) -> st.SearchStrategy[str]:
    """Specs of small members of the built-in families, all regular and vertex-transitive."""
    return st.one_of(
        st.integers(3, max_nodes).map(lambda m: f"ring:{m}"),
        st.integers(2, 5).map(lambda m: f"complete:{m}"),
        st.integers(1, 3).map(lambda n: f"hypercube:{n}"),
        st.integers(1, 4).map(lambda d: f"bipartite:{d}"),
        st.tuples(st.integers(1, 3), st.integers(2, 6)).map(lambda dm: f"uniring:{dm[0]},{dm[1]}"),
        st.tuples(st.sampled_from([2, 4]), st.integers(3, 7)).map(lambda dm: f"biring:{dm[0]},{dm[1]}"),
        st.lists(st.integers(2, 4), min_size=1, max_size=2).map(lambda sizes: "torus:" + "x".join(map(str, sizes))),
        st.tuples(st.integers(7, max(7, max_nodes)), st.integers(2, 3)).map(lambda na: f"circulant:{na[0]},1,{na[1]}"),
        st.sampled_from(
            [
                "twisted-torus:3x4,2", "twisted-torus:2x4,1", "twisted-torus:2x2x4", "hamming:2,3", "hyperx:2x4",
                "dicirculant:3", "shiftedring:8", "cayley:3.2.2,5,1", "cayley:2.2.1.3,1,3,6", "distreg:4,10",
                "distreg:4,14", "degree(complete:3;2)", "power(uniring:1,3;2)", "product(uniring:2,3;complete:2)",
                "bidirectional(uniring:1,5)",
            ]
        ),
    )  # fmt: skip
