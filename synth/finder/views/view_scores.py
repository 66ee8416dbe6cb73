"""BFB loads of line graphs, degree expansions and products, nested as they may be, from views at nodes of the bases."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from chorale.synth.finder.bfb_score import MAX_DEGREE
from chorale.synth.finder.views.expansion_tree import Expansion, expansion_of
from chorale.synth.finder.views.node_view import NodeView, views_of_topology
from chorale.synth.finder.views.view_expansions import degree_view, line_views, product_view
from chorale.synth.finder.views.view_loads import loads_of_line_graph, loads_of_views
from chorale.synth.finder.views.view_merging import distinct_views
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.spec import parse_topology

_MAX_VIEWS = 2**12
_MAX_POSITIONS = 2**24
_MAX_SEARCHED = 2**27
"""Links that the searches from all chosen nodes of a base pass."""
_KEPT = 256


class NotFromPartsError(Exception):
    """The network is no expansion that has views, or there are too many of them, or too large ones."""


def loads_from_parts(network: Expansion) -> list[Fraction]:
    """Return the BFB load of every step on an expansion, in shards per link, without building it.

    Exactly those of `chorale.synth.finder.bfb_score.bfb_score`, whatever is expanded. Time grows with the numbers of
    different views at nodes of the networks inside, not with the number of nodes. Raises NotFromPartsError.
    """
    if not network.parts:
        raise NotFromPartsError
    copies, line = _copied(network)
    if line.kind == "line" and line.degree > 1:
        views = _views(line.parts[0].spec, 1)
        if copies > 1:
            _require_no_loops(views)
        return loads_of_line_graph(views, line.degree, copies)
    return loads_of_views(_views(network.spec, 0), network.degree)


def _copied(network: Expansion) -> tuple[int, Expansion]:
    """Return how many copies of each node of which network `network` has by degree expansions."""
    copies = 1
    while network.kind == "degree":
        copies *= network.copies
        [network] = network.parts
    return copies, network


@lru_cache(maxsize=_KEPT)
def _views(spec: str, depth: int) -> Sequence[NodeView]:
    """Return the different views at nodes of the network, with walks of `depth` links."""
    network = expansion_of(spec)
    if network.degree > MAX_DEGREE:
        raise NotFromPartsError
    if network.kind == "base":
        return _base_views(spec, depth)
    if network.kind == "line":
        views = _views(network.parts[0].spec, depth + 1)
        _require_few(len(views) * network.degree)
        return distinct_views(line for view in views for line in line_views(view))
    if network.kind == "degree":
        views = _views(network.parts[0].spec, depth)
        _require_no_loops(views)
        return distinct_views(degree_view(view, network.copies) for view in views)
    first, *others = (_views(part.spec, depth) for part in network.parts)
    for other in others:
        first = _products(first, other)
    return first


def _base_views(spec: str, depth: int) -> Sequence[NodeView]:
    topology = parse_topology(spec)
    if topology.degree is None or topology.node_bandwidth is None:
        raise NotFromPartsError
    chosen = len(set(checked_orbits(topology).tolist()))
    if chosen * (topology.degree + 1) * len(topology.links) > _MAX_SEARCHED:
        raise NotFromPartsError
    return distinct_views(views_of_topology(topology, depth))


def _products(first: Sequence[NodeView], second: Sequence[NodeView]) -> Sequence[NodeView]:
    _require_few(len(first) * len(second))
    if sum(len(view.positions) for view in first) * sum(len(view.positions) for view in second) > _MAX_POSITIONS:
        raise NotFromPartsError
    return distinct_views(product_view(one, other) for one in first for other in second)


def _require_no_loops(views: Sequence[NodeView]) -> None:
    """Degree expansion refuses links from a node to itself, also those of a line graph, which are those of its base."""
    if any(view.around >> view.degree == 1 for view in views):
        raise NotFromPartsError


def _require_few(views: int) -> None:
    if views > _MAX_VIEWS:
        raise NotFromPartsError
