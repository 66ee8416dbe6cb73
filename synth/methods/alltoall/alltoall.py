"""Computes exact bounds on the all-to-all rate. The rate of a Cartesian product follows from its factors' rates.

rate(G1 x G2) = min(rate(G1) / N2, rate(G2) / N1), where N1 and N2 are the factors' numbers of ranks. This rate is
reached if data move along the first dimension to the target's first coordinate, then along the second dimension: links
along the first dimension carry N2 times as much data as in G1 alone, and links along the second carry N1 times as much
as in G2 alone. No schedule is faster, because the prices that prove a factor's rate also prove this bound for the
product: if only links along one dimension have prices, a path costs as much as its part in that factor.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput, Unavailable, name_among
from chorale.synth.identity import common_denominator
from chorale.synth.methods.alltoall import linear_program
from chorale.synth.methods.alltoall.balance import SharedFlows, balanced, fine_units
from chorale.synth.methods.alltoall.linear_program import (
    ApproximateSolution,
    Reduction,
    commodities_of,
    reduced_problem,
)
from chorale.synth.methods.alltoall.price_descent import priced_solution
from chorale.synth.methods.alltoall.rate import (
    AllToAllRate,
    BoundsListener,
    RateMethod,
    distance_bound,
    fine_prices,
    integer_prices,
)
from chorale.synth.topology.expansions import cartesian_product
from chorale.synth.topology.registry import FunctionCall, Number, parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import symmetries_of
from chorale.synth.topology.topology import Topology, automorphisms_are_transitive


def factors_of(topology: Topology) -> list[Topology]:
    """Return, in order, the factors of a topology whose spec is a product or a power; [] for other topologies.

    The spec is only a hint: the product of the factors is built and must have the topology's id. O(L log L).
    """
    specs: list[str] = []
    try:
        tree = parse_spec(topology.spec)
        if isinstance(tree, FunctionCall) and tree.name == "product":
            specs = list(map(str, tree.arguments))
        elif (
            isinstance(tree, FunctionCall) and tree.name == "power" and isinstance(times := tree.arguments[-1], Number)
        ):
            specs = [str(tree.arguments[0])] * int(times.text)
        built = {spec: parse_topology(spec) for spec in set(specs)}
        factors = [built[spec] for spec in specs]
        is_product = len(factors) > 1 and cartesian_product(factors, topology.spec).id == topology.id
    except InvalidInput:  # the name is not a spec, or a part is read from a file
        return []
    return factors if is_product else []


METHODS: tuple[RateMethod, ...] = get_args(RateMethod)
DEFAULT_GAP = Fraction(1, 200)
MAX_PROGRAM_VARIABLES = 50_000
"""Up to this number of variables, the linear program is solved directly, without trying a price descent first."""
MAX_SLOW_PROGRAM_VARIABLES = 2**18
"""Up to this number of variables, the linear program is solved if the price descent stalls."""
MAX_FLOWS = 2**26
"""Maximum number of flow variables to store. Each takes 40 bytes."""
MIN_SEARCHED_CELLS = 2**20
"""With at least this number of (source, link) pairs, searching for symmetries saves time."""
_LARGEST_DENOMINATOR = 2**20
_WIDE = 100
"""If the largest capacity is more than this many times the smallest, prices in finer units are tried as well."""


def alltoall_rate(
    topology: Topology,
    gap: Fraction = DEFAULT_GAP,
    method: RateMethod | None = None,
    report: BoundsListener | None = None,
) -> AllToAllRate:
    """Return bounds on the rate at which all ranks can send to all others at the same time, over any routes.

    Data may pass through ranks and switches. The rate of a product follows from its factors' rates. Symmetries and
    colour refinement shrink the linear program. If it then has at most 50000 variables, it is solved directly ("lp").
    For larger programs, a descent in link prices ("prices") runs until the relative difference of the bounds is at most
    `gap`. If the descent stalls, programs with up to 2^18 variables are solved directly after all. The bounds are
    computed in whole numbers on the original network, so they hold even if the solver was inaccurate.

    Args:
        topology: the network.
        gap: maximum acceptable relative difference between the bounds.
        method: "lp" or "prices"; None chooses one by the size of the problem.
        report: function that is called with the bounds of a price descent as they improve.

    Raises:
        InvalidInput: if the network is too large or `gap` is negative.
    """
    if gap < 0:
        raise InvalidInput("the gap of an all-to-all rate must not be negative", gap, "choose for example 0.005")
    factors = factors_of(topology)
    if factors:
        rates = {factor.id: alltoall_rate(factor, gap, method, report) for factor in factors}
        shares = [(rates[factor.id], topology.compute_count // factor.compute_count) for factor in factors]
        lower, upper = (min(getattr(rate, end) / others for rate, others in shares) for end in ("lower", "upper"))
        return AllToAllRate(lower, upper, min((rate.method for rate in rates.values()), key=("prices", "lp").index))
    cells = topology.compute_count * len(topology.links)
    if cells >= MIN_SEARCHED_CELLS and not topology.switch_count and not automorphisms_are_transitive(topology):
        topology = replace(topology, automorphisms=(*topology.automorphisms, *symmetries_of(topology)))
    reduction = reduced_problem(topology, commodities_of(topology))
    if method == "prices" or (method is None and reduction.has_columns_above(MAX_PROGRAM_VARIABLES)):
        solution = priced_solution(reduction.small, gap, report)
        is_enough = method == "prices" or solution.gap <= gap
        if is_enough or reduction.has_columns_above(MAX_SLOW_PROGRAM_VARIABLES):
            flows = solution.flows.on(reduction.full, reduction.merged)
            upper = _best_bound(reduction, [integer_prices(solution.prices)])[0]
            return AllToAllRate(flows.rate(), upper, "prices")
    if reduction.small.cells > MAX_FLOWS:
        rule = f"a method that stores flows needs at most {MAX_FLOWS} pairs of a source and a link"
        raise InvalidInput(rule, f"{reduction.small.cells} in {topology.spec}", "choose the method prices")
    return certify(reduction, approximate(reduction, "lp", gap, report), "lp")


def parse_method(text: str | None) -> RateMethod | None:
    """Convert `text` to the name of a method; None stays None. Raises InvalidInput for unknown names."""
    if text is None:
        return None
    return cast(RateMethod, name_among("all-to-all method", text, METHODS))


def choose_method(reduction: Reduction, requested: RateMethod | None) -> RateMethod:
    """Return the `requested` method or, if it is None, the method that suits the size of the reduced problem."""
    if requested is not None:
        return requested
    return "lp" if reduction.column_count <= MAX_PROGRAM_VARIABLES else "prices"


def approximate(
    reduction: Reduction, method: RateMethod, gap: Fraction, report: BoundsListener | None
) -> ApproximateSolution:
    """Return near-optimal flows and link prices, found with `method`. If "lp" fails, "prices" is used instead."""
    if method == "lp":
        with suppress(Unavailable):  # only numerical errors lead here, because every network has an optimum
            return linear_program.solve(reduction)
    solution = priced_solution(reduction.small, gap, report)
    return ApproximateSolution(reduction.class_means(solution.flows.of_sources()), solution.prices)


def certify(reduction: Reduction, solution: ApproximateSolution, method: RateMethod) -> AllToAllRate:
    """Return exact bounds on the rate of the original network, computed from the approximate `solution`."""
    denominator = common_denominator(solution.class_flow, _LARGEST_DENOMINATOR)
    upper = upper_bound(reduction, solution)[0]
    flows = SharedFlows(reduction, solution.class_flow)
    units = fine_units(reduction.full.node_count, denominator)
    return AllToAllRate(balanced(flows, units, upper)[0], upper, method)


def upper_bound(reduction: Reduction, solution: ApproximateSolution) -> tuple[Fraction, NDArray[np.int64]]:
    """Return (exact upper bound on the rate, int64[C]: prices of link classes that prove it).

    Tries the solver's prices (in finer units as well if capacities differ widely) and equal prices, and chooses those
    that prove the smallest bound.
    """
    candidates = [integer_prices(solution.prices), np.ones(len(solution.prices), dtype=np.int64)]
    capacity = reduction.full.class_capacity
    if int(capacity.max()) > _WIDE * int(capacity.min()):
        candidates.append(fine_prices(solution.prices, reduction.full.node_count))
    return _best_bound(reduction, candidates)


def _best_bound(reduction: Reduction, candidates: Sequence[NDArray[np.int64]]) -> tuple[Fraction, NDArray[np.int64]]:
    """Return (smallest bound that any of the `candidates` proves, int64[C]: prices of link classes that prove it).

    candidates: arrays with one price per merged link class
    """
    spread = [prices[reduction.merged] for prices in candidates]
    bounds = ((distance_bound(reduction.full, prices), prices) for prices in spread)
    return min(((bound, prices) for bound, prices in bounds if bound is not None), key=lambda pair: pair[0])
