"""Scores from views at nodes of bases against scores of the built networks."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.finder.bfb_score import BfbScore, bfb_score
from chorale.synth.finder.score_cache import bfb_score_of, score_from_parts
from chorale.synth.finder.views.expansion_tree import expansion_of
from chorale.synth.finder.views.node_view import views_of_topology
from chorale.synth.finder.views.view_merging import distinct_views
from chorale.synth.finder.views.view_scores import NotFromPartsError, loads_from_parts
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

SPECS = [
    "line(complete:4;2)",
    "line(uniring:2,2;4)",  # parallel links
    "line(uniring:1,5)",  # degree 1: its own line graph
    "line(debruijn:2,3;2)",  # links from a node to itself
    "line(genkautz:3,8;2)",
    "line(diamond;3)",  # no two nodes alike
    "degree(complete:3;2)",
    "degree(uniring:1,4;4)",
    "degree(uniring:2,3;2)",
    "degree(degree(line(uniring:2,2);2);2)",
    "degree(line(dbjmod:2,3);3)",
    "degree(line(complete:3);6)",  # degree 12
    "line(degree(degree(uniring:1,4;2);2))",
    "line(degree(line(uniring:2,2;2);2);2)",
    "line(degree(line(degree(line(ring:4);2));2))",
    "degree(line(degree(dicirculant:2;2);2);2)",
    "product(line(complete:3);uniring:1,3)",
    "power(debruijn:2,3;2)",
    "power(line(bipartite:2);2)",
    "line(power(debruijn:2,2;2))",
    "line(product(ring:4;uniring:1,4);2)",
    "degree(product(ring:3;line(ring:3));2)",
    "line(degree(product(uniring:1,2;uniring:1,3);2);2)",
    "line(bidirectional(kautz:2,2))",
]


@pytest.mark.parametrize("spec", SPECS)
def test_scores_are_those_of_the_built_network(spec: str) -> None:
    assert score_from_parts(spec) == bfb_score(parse_topology(spec))


BASES = ("ring:3", "ring:4", "uniring:1,3", "uniring:2,2", "complete:3", "genkautz:2,5", "kautz:2,2", "bipartite:2")


@st.composite
def expansions(draw: st.DrawFn) -> str:
    """Return an expansion of an expansion of …, of at most 600 nodes and degree 6."""
    spec = draw(st.sampled_from(BASES))
    for _ in range(draw(st.integers(1, 4))):
        other = draw(st.sampled_from(BASES))
        choices = (f"line({spec})", f"degree({spec};2)", f"power({spec};2)", f"product({other};{spec})")
        larger = draw(st.sampled_from(choices))
        network = expansion_of(larger)
        has_loops = "genkautz" in larger and "degree(" in larger
        if network.nodes <= 600 and network.degree <= 6 and not has_loops:
            spec = larger
    return spec if expansion_of(spec).parts else f"line({spec})"


@given(expansions())
def test_nested_expansions(spec: str) -> None:
    topology = parse_topology(spec)
    network = expansion_of(spec)
    assert (network.nodes, network.degree) == (topology.node_count, topology.degree)
    assert score_from_parts(spec) == bfb_score(topology)


def test_loads_are_those_of_every_step() -> None:
    assert loads_from_parts(expansion_of("line(complete:4)")) == [1, 3]
    loads = loads_from_parts(expansion_of("degree(uniring:1,4;2)"))
    assert loads == [1, 1, 1, Fraction(1, 2)]


def test_views_of_nodes_that_are_alike_are_kept_once() -> None:
    """Symmetries are taken away, so that every node is looked at."""
    whole = parse_topology("hypercube:3")
    bare = Topology(whole.spec, whole.node_ids, whole.compute_count, whole.links, whole.bandwidth_unit)
    views = views_of_topology(bare, depth=2)
    assert len(views) == 8
    [view] = distinct_views(views)
    assert view.counts.tolist() == [1] * 8
    assert view.around >> view.degree == 2
    assert len(distinct_views(views_of_topology(parse_topology("genkautz:2,5"), depth=1))) > 1


def test_positions_hold_every_node_once() -> None:
    for view in views_of_topology(parse_topology("genkautz:3,20"), depth=0):
        assert view.counts.sum() == 20
        assert np.all(np.diff(view.positions) > 0)


@pytest.mark.parametrize("spec", ["genkautz:4,20", "ring:5", "bidirectional(uniring:1,5)", "power(hypercube:3;3)"])
def test_what_has_no_score_from_parts(spec: str) -> None:
    """Bases, other functions, and more than 8 links a node."""
    assert score_from_parts(spec) is None
    with pytest.raises(NotFromPartsError):
        loads_from_parts(expansion_of(spec))


def test_copies_of_nodes_with_links_to_themselves_do_not_exist() -> None:
    assert score_from_parts("degree(debruijn:2,2;2)") is None
    assert score_from_parts("degree(line(debruijn:2,2);2)") is None


def test_large_networks_without_symmetries_have_scores() -> None:
    """The first was computed once on the built network, too."""
    assert bfb_score_of("line(degree(line(base:cayley-128-4);2);2)") == BfbScore(7, Fraction(8193, 8192))
    assert bfb_score_of("line(bipartite:8;4)") == BfbScore(6, Fraction(8265, 8192))
