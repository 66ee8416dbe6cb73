"""The all-to-all rate of a network between exact bounds, and that of Cartesian products from their factors.

rate(G1 x G2) = min(rate(G1) / N2, rate(G2) / N1). At least: send along the first dimension to the node that lies in
line with the target, N2 times as much as to one node, then along the second. At most: put prices on the links of
one dimension only; all pairs pay for it what they pay in that factor.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.identity import common_denominator
from chorale.synth.methods.alltoall import linear_program
from chorale.synth.methods.alltoall.balance import SharedFlows, balanced, fine_units
from chorale.synth.methods.alltoall.linear_program import (
    ApproximateSolution,
    Commodities,
    MergedProblem,
    Reduction,
    commodities_of,
    merged_problem,
)
from chorale.synth.methods.alltoall.price_descent import PricedSolution, priced_solution
from chorale.synth.methods.alltoall.rate import (
    AllToAllRate,
    BoundsListener,
    RateMethod,
    distance_bound,
    fine_prices,
    integer_prices,
)
from chorale.synth.names import name_among
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.expansions import cartesian_product
from chorale.synth.topology.grammar import FunctionCall, Number, SpecTree, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import symmetries_of
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
    method = min((rate.method for rate in rates), key=("prices", "lp").index)
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


METHODS: tuple[RateMethod, ...] = get_args(RateMethod)
DEFAULT_GAP = Fraction(1, 200)
MAX_PROGRAM_VARIABLES = 50_000
"""Variables up to which the linear program is solved before anything else."""
MAX_SLOW_PROGRAM_VARIABLES = 2**18
"""Variables up to which it is solved where prices come to no more."""
MAX_FLOWS = 2**26
"""Flow variables that methods store which store them, 40 bytes each."""
MIN_SEARCHED_CELLS = 2**20
"""Pairs of a source and a link from which on symmetries are searched for."""
_LARGEST_DENOMINATOR = 2**20
_WIDE = 100
"""Capacities that differ by more than this factor have prices that need finer units."""


def alltoall_rate(
    topology: Topology,
    gap: Fraction = DEFAULT_GAP,
    method: RateMethod | None = None,
    report: BoundsListener | None = None,
) -> AllToAllRate:
    """Return bounds on the rate at which every rank can send to every other, over any routes, all at once.

    Products take the rates of their factors. Symmetries and colour refinement shrink the linear program; up to
    50000 variables it is solved as such ("lp"), beyond that by a descent in link prices ("prices") until the bounds
    differ by at most the fraction `gap`; where this stalls, a program of up to 2^18 variables is solved all the same.
    `method` chooses one of them. The bounds are computed in whole numbers on the network itself, whatever the solver
    did. Data may pass through ranks and switches. Raises InvalidInput for too large a network.
    """
    if gap < 0:
        raise InvalidInput("the gap of an all-to-all rate must not be negative", gap, "choose 0.005 or so")
    factors = factors_of(topology)
    if factors:
        rates = {factor.id: alltoall_rate(factor, gap, method, report) for factor in factors}
        return rate_of_product(topology, factors, [rates[factor.id] for factor in factors])
    topology = _with_symmetries(topology)
    merged = merged_problem(topology, commodities_of(topology))
    if method == "prices" or (method is None and _has_columns_above(merged, MAX_PROGRAM_VARIABLES)):
        solution = priced_solution(merged.small, gap, report)
        is_enough = method == "prices" or solution.gap <= gap
        if is_enough or _has_columns_above(merged, MAX_SLOW_PROGRAM_VARIABLES):
            return certify_prices(merged, solution)
    if merged.small.cells > MAX_FLOWS:
        rule = f"a method that stores flows needs at most {MAX_FLOWS} pairs of a source and a link"
        raise InvalidInput(rule, f"{merged.small.cells} in {topology.spec}", "choose the method prices")
    reduction = merged.reduction()
    return certify(reduction, approximate(reduction, "lp", gap, report), "lp")


def _has_columns_above(merged: MergedProblem, most: int) -> bool:
    """Whether the linear program has more than `most` variables."""
    return merged.least_columns() > most or (merged.small.cells > most and merged.reduction().column_count > most)


def _with_symmetries(topology: Topology) -> Topology:
    """Return `topology` with symmetries searched for where it is large and its own leave several sources."""
    cells = topology.compute_count * len(topology.links)
    if topology.switch_count or cells < MIN_SEARCHED_CELLS or automorphisms_are_transitive(topology):
        return topology
    return replace(topology, automorphisms=(*topology.automorphisms, *symmetries_of(topology)))


def parse_method(text: str | None) -> RateMethod | None:
    """Return the method called `text`, None for None. Raises InvalidInput for an unknown one."""
    if text is None:
        return None
    return cast(RateMethod, name_among("all-to-all method", text, METHODS))


def choose_method(reduction: Reduction, requested: RateMethod | None) -> RateMethod:
    """Return the method for the size of the reduced problem, unless one is wanted."""
    if requested is not None:
        return requested
    return "lp" if reduction.column_count <= MAX_PROGRAM_VARIABLES else "prices"


def approximate(
    reduction: Reduction, method: RateMethod, gap: Fraction, report: BoundsListener | None
) -> ApproximateSolution:
    """Return near-optimal class flows and prices by `method`; by prices where the solver of the program gives up."""
    if method == "lp":
        with suppress(Unavailable):  # numerical trouble: every network has an optimum
            return linear_program.solve(reduction)
    solution = priced_solution(reduction.small, gap, report)
    return ApproximateSolution(reduction.class_means(solution.flows.of_sources()), solution.prices)


def certify(reduction: Reduction, solution: ApproximateSolution, method: RateMethod) -> AllToAllRate:
    """Return exact bounds from flows and prices that need not be exact, on the full problem."""
    full = reduction.full
    denominator = common_denominator(solution.class_flow, _LARGEST_DENOMINATOR)
    upper = upper_bound(reduction, solution)[0]
    flows = SharedFlows(reduction, solution.class_flow)
    return AllToAllRate(balanced(flows, fine_units(full.node_count, denominator), upper)[0], upper, method)


def certify_prices(merged: MergedProblem, solution: PricedSolution) -> AllToAllRate:
    """Return exact bounds on the full problem from flows that follow prices. O(sources * links * log links)."""
    full = merged.full
    flows = solution.flows.on(full, merged.merged)
    upper = _best_bound(full, merged.merged, [integer_prices(solution.prices)])[0]
    return AllToAllRate(flows.rate(), upper, "prices")


def upper_bound(reduction: Reduction, solution: ApproximateSolution) -> tuple[Fraction, NDArray[np.int64]]:
    """Return the exact bound by the solver's prices, or by equal ones if these are better, and int64[C] prices."""
    candidates = [integer_prices(solution.prices), np.ones(len(solution.prices), dtype=np.int64)]
    capacity = reduction.full.class_capacity
    if int(capacity.max()) > _WIDE * int(capacity.min()):
        candidates.append(fine_prices(solution.prices, reduction.full.node_count))
    return _best_bound(reduction.full, reduction.merged, candidates)


def _best_bound(
    full: Commodities, merged: NDArray[np.int32], candidates: Sequence[NDArray[np.int64]]
) -> tuple[Fraction, NDArray[np.int64]]:
    bounds: list[tuple[Fraction, NDArray[np.int64]]] = []
    for prices in candidates:
        whole = prices[merged]
        bound = distance_bound(full, whole)
        if bound is not None:
            bounds.append((bound, whole))
    return min(bounds, key=lambda pair: pair[0])
