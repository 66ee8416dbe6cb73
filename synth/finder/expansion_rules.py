"""What expansions make of a candidate: its spec, size, traits and predicted cost.

For the base's own schedule, expanded, the costs are exact (theorems 7.1, 11, 12 of the full paper). For
breadth-first broadcast on the expanded topology they are what the paper's formulas say, which may be above the real
cost: the line graph of an optimal graph can be optimal again, and a copy of a node may be heard before the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from chorale.synth.finder.candidate import TopologyCandidate, Traits, least_bandwidth_factor, least_steps
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, Number, SpecTree, parse_spec


def line_of(base: TopologyCandidate) -> TopologyCandidate:
    """Line graph: degree * N nodes, T_L + 1, T_B + 1 / N (theorem 7.1; for BFB an upper bound).

    In the BFB problem of step t + 1 at a link from u to w stand degree copies of every shard that reaches u in step t,
    less at most one, since the link needs no copy of itself. So T_B falls by at most T_L / N from there. Needs a degree
    of 2 or more: a one-way ring is its own line graph.
    """
    traits = base.traits
    factor = base.bandwidth_factor + Fraction(1, base.nodes)
    slack = Fraction(base.steps, base.nodes) if base.method == "bfb" else Fraction(0)
    least = base.least_factor + Fraction(1, base.nodes) - slack
    return TopologyCandidate(
        spec=_line_spec(base.spec),
        method=base.method,
        nodes=base.nodes * base.degree,
        degree=base.degree,
        steps=base.steps + 1,
        bandwidth_factor=factor,
        exact=base.exact and base.method == "expand",
        # Two links follow one another in one way only, so that there are no parallel links.
        traits=Traits(not traits.self_loops, traits.self_loops, False, traits.reverse_symmetric),
        least_steps=base.least_steps + 1,
        least_factor=max(least, least_bandwidth_factor(base.nodes * base.degree)),
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def degree_of(base: TopologyCandidate, copies: int) -> TopologyCandidate:
    """Degree expansion of a network without self-loops: copies * N nodes of copies * degree.

    T_L + 1 and T_B + (copies - 1) / (copies * N) (theorem 11). BFB takes one step less if a node can hear from itself
    within T_L steps, as the copies of a node do from each other: two suffice where every link has its reverse. Its
    problems are those of the base, every shard and link copies times, and those shards of copies on top.
    """
    nodes = base.nodes * copies
    factor = base.bandwidth_factor + Fraction(copies - 1, nodes)
    lowest = max(base.least_factor, least_bandwidth_factor(nodes)) if base.method == "bfb" else factor
    steps, least = base.steps + 1, base.steps + 1
    if base.method == "bfb":
        least = max(base.least_steps, 2)
        steps = max(base.steps, 2) if base.traits.bidirectional else steps
    return TopologyCandidate(
        spec=f"degree({base.spec};{copies})",
        method=base.method,
        nodes=nodes,
        degree=base.degree * copies,
        steps=steps,
        bandwidth_factor=factor,
        exact=base.exact and base.method == "expand",
        traits=base.traits,
        least_steps=least,
        least_factor=lowest,
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def power_of(base: TopologyCandidate, times: int) -> TopologyCandidate:
    """Cartesian power: N^n nodes of n * degree, n * T_L, T_B as far above its bound as before (theorem 12)."""
    nodes = base.nodes**times
    factor = base.bandwidth_factor / least_bandwidth_factor(base.nodes) * least_bandwidth_factor(nodes)
    return TopologyCandidate(
        spec=_power_spec(base.spec, times),
        method=base.method,
        nodes=nodes,
        degree=base.degree * times,
        steps=base.steps * times,
        bandwidth_factor=factor,
        exact=base.exact and base.method == "expand",
        traits=base.traits,
        least_steps=base.least_steps * times,
        least_factor=factor if base.method == "expand" else least_bandwidth_factor(nodes),
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def product_of(parts: Sequence[TopologyCandidate]) -> TopologyCandidate:
    """Cartesian product of simple topologies on which BFB is bandwidth-optimal, and so it is on the product.

    Numbers of nodes multiply, degrees and steps add up (theorem 13).
    """
    nodes = 1
    for part in parts:
        nodes *= part.nodes
    steps = sum(part.steps for part in parts)
    return TopologyCandidate(
        spec=_product_spec([part.spec for part in parts]),
        method="bfb",
        nodes=nodes,
        degree=sum(part.degree for part in parts),
        steps=steps,
        bandwidth_factor=least_bandwidth_factor(nodes),
        exact=all(part.exact for part in parts),
        traits=Traits(
            simple=True,
            self_loops=False,
            bidirectional=all(part.traits.bidirectional for part in parts),
            reverse_symmetric=all(part.traits.reverse_symmetric for part in parts),
        ),
        least_steps=steps,
        least_factor=least_bandwidth_factor(nodes),
        expansions=max(part.expansions for part in parts) + 1,
        origin=tuple(dict.fromkeys(name for part in parts for name in part.origin)),
    )


def bidirectional_of(base: TopologyCandidate) -> TopologyCandidate:
    """The network together with its transpose: twice the degree, the cost at most the same (appendix A.6).

    For BFB that is a guess: shorter paths through reversed links change its steps and its balance.
    """
    is_stored = base.method == "expand"
    return TopologyCandidate(
        spec=f"bidirectional({base.spec})",
        method=base.method,
        nodes=base.nodes,
        degree=2 * base.degree,
        steps=base.steps,
        bandwidth_factor=base.bandwidth_factor,
        exact=base.exact and is_stored,
        traits=Traits(False, base.traits.self_loops, True, True),
        least_steps=base.steps if is_stored else least_steps(base.nodes, 2 * base.degree, bidirectional=True),
        least_factor=base.bandwidth_factor if is_stored else least_bandwidth_factor(base.nodes),
        expansions=base.expansions + 1,
        origin=base.origin,
    )


def _line_spec(spec: str) -> str:
    tree = parse_spec(spec)
    if isinstance(tree, FunctionCall) and tree.name == "line":
        inner, *times = tree.arguments
        count = int(str(times[0])) if times else 1
        return f"line({inner};{count + 1})"
    return f"line({spec})"


def _power_spec(spec: str, times: int) -> str:
    tree = parse_spec(spec)
    if isinstance(tree, FamilyCall) and tree.name == "ring":
        return "torus:" + "x".join([tree.text] * times)
    if isinstance(tree, FamilyCall) and tree.name == "torus":
        return "torus:" + "x".join([tree.text] * times)
    if isinstance(tree, FunctionCall) and tree.name == "power":
        inner, earlier = tree.arguments
        return f"power({inner};{int(str(earlier)) * times})"
    return f"power({spec};{times})"


def _product_spec(specs: Sequence[str]) -> str:
    """Write a product of products as one, and a product of rings as a torus."""
    flat = [part for spec in specs for part in _factors(parse_spec(spec))]
    if all(isinstance(part, FamilyCall) and part.name in ("ring", "torus") for part in flat):
        return "torus:" + "x".join(part.text for part in flat if isinstance(part, FamilyCall))
    return f"product({';'.join(map(str, flat))})"


def _factors(tree: SpecTree) -> list[SpecTree]:
    if isinstance(tree, FunctionCall) and tree.name == "product":
        return [argument for argument in tree.arguments if not isinstance(argument, Number)]  # type: ignore[misc]
    return [tree]
