"""Check a bound with code that shares nothing with the search for it."""

from __future__ import annotations

from fractions import Fraction

from synth.bound.cut import Bound
from synth.collective import Collective
from synth.errors import CheckFailed
from synth.topology.topology import Topology

_COLLECTIVES = {
    "into": ("allgather",),
    "out-of": ("reduce_scatter",),
    "across-in": ("allreduce",),
    "across-out": ("allreduce",),
    "volume": ("allreduce",),
}


def check_bound(topology: Topology, collective: Collective, bound: Bound) -> None:
    """Recompute what `bound` claims from the definition of its kind; raise CheckFailed if it claims too much.

    O(links), plain Python, exact.
    """
    if collective.name.value not in _COLLECTIVES.get(bound.kind, ()):
        raise CheckFailed(
            "a bound must be of a kind for its collective", f"{bound.kind} for {collective}", "recompute it"
        )
    proved = _proved(topology, bound)
    if proved is None or bound.value > proved:
        raise CheckFailed("a bound must follow from its cut", f"{bound.value} claimed, {proved} proved", "recompute it")


def _proved(topology: Topology, bound: Bound) -> Fraction | None:
    ranks = topology.compute_count
    if bound.kind == "volume":
        capacity = sum(link.bandwidth for link in topology.links if link.src != link.dst and link.dst < ranks)
        return Fraction(2 * (ranks - 1)) / capacity
    inside = set(bound.nodes)
    ranks_inside = len([node for node in inside if 0 <= node < ranks])
    if not inside <= set(range(topology.node_count)) or not 0 < ranks_inside < ranks:
        return None
    outward = bound.kind in ("out-of", "across-out")
    crossing = Fraction(0)
    for link in topology.links:
        near, far = (link.src, link.dst) if outward else (link.dst, link.src)
        if near in inside and far not in inside:
            crossing += link.bandwidth
    moved = Fraction(1) if bound.kind.startswith("across") else Fraction(ranks - ranks_inside, ranks)
    return moved / crossing
