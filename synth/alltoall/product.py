"""All-to-all rates of Cartesian products from those of their factors, exactly.

rate(G1 x G2) = min(rate(G1) / N2, rate(G2) / N1). At least: send along the first dimension to the node that lies in
line with the target, N2 times as much as to one node, then along the second. At most: put prices on the links of
one dimension only; all pairs pay for it what they pay in that factor.
"""

from __future__ import annotations

from collections.abc import Sequence

from chorale.synth.alltoall.rate import AllToAllRate, RateMethod
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.expansions.product import cartesian_product
from chorale.synth.topology.grammar import FunctionCall, Number, SpecTree, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology


def factors_of(topology: Topology) -> list[Topology]:
    """Return the factors of a topology that was asked for as a product or a power, in order; [] for any other.

    The spec is only a hint: the product of the factors is built again and must have the same id. O(L log L).
    """
    try:
        specs = _factor_specs(parse_spec(topology.spec))
        built = {spec: parse_topology(spec) for spec in set(specs)}
        factors = [built[spec] for spec in specs]
        is_product = len(factors) > 1 and cartesian_product(factors, topology.spec).id == topology.id
    except InvalidInput:  # a name of its own, or a part that is read from a file
        return []
    return factors if is_product else []


def rate_of_product(topology: Topology, factors: Sequence[Topology], rates: Sequence[AllToAllRate]) -> AllToAllRate:
    """Return the rate of the product of `factors` from theirs; exact where theirs are."""
    ranks = topology.compute_count
    shares = [(rate, ranks // factor.compute_count) for factor, rate in zip(factors, rates, strict=True)]
    method: RateMethod = "pdhg" if any(rate.method == "pdhg" for rate in rates) else "lp"
    lower = min(rate.lower / others for rate, others in shares)
    return AllToAllRate(lower, min(rate.upper / others for rate, others in shares), method)


def _factor_specs(tree: SpecTree) -> list[str]:
    if not isinstance(tree, FunctionCall):
        return []
    if tree.name == "product":
        return [str(argument) for argument in tree.arguments]
    if tree.name == "power" and len(tree.arguments) == 2 and isinstance(tree.arguments[1], Number):
        return [str(tree.arguments[0])] * int(tree.arguments[1].text)
    return []
