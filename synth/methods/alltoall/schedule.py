"""All-to-all schedules: flows added up by source become paths from source to target, in whole chunks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLTOALL
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.kernels import native
from chorale.synth.methods.alltoall import linear_program
from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, approximate, choose_method, upper_bound
from chorale.synth.methods.alltoall.balance import IntegralFlows, Router, SharedFlows, best_of, chosen_flows
from chorale.synth.methods.alltoall.linear_program import (
    ApproximateSolution,
    Commodities,
    Reduction,
    commodities_of,
    reduced_problem,
)
from chorale.synth.methods.alltoall.rate import BoundsListener, RateMethod
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.topology.topology import Topology

_START, _TARGET, _FIRST, _AMOUNT = range(4)


@dataclass(frozen=True, slots=True, eq=False)
class FlowPaths:
    """Row i carries chunks `lo[i]` to `lo[i] + amount[i] - 1` from `source[i]` to `target[i]`, all int64.

    Its path is links `links[offsets[i]:offsets[i + 1]]` of the problem, in travel order.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    lo: NDArray[np.int64]
    amount: NDArray[np.int64]
    offsets: NDArray[np.int64]
    links: NDArray[np.int32]


def flow_paths_of(problem: Commodities, block: slice, flows: IntegralFlows) -> FlowPaths:
    """Return paths that add up to `flows`, int64[block, links]: acyclic, bringing equal multiples of all needs.

    At most one path per rank and link of each source. O(sources * (ranks + links) * longest path * degree).
    """
    sources = problem.sources[block]
    most = int(np.count_nonzero(problem.demand, axis=1).max()) + problem.link_count
    rows = np.empty((most, 4), dtype=np.int64)
    links = np.empty(most * problem.node_count, dtype=np.int32)
    demand = np.broadcast_to(problem.demand_of(block), (len(sources), problem.node_count))
    parts = [
        _of_source(problem, int(source), wanted.copy(), flow.copy(), rows, links)
        for source, wanted, flow in zip(sources, demand, flows, strict=True)
    ]
    table = np.concatenate([part[0] for part in parts])
    lengths = np.concatenate([np.diff(part[0][:, _START], append=len(part[1])) for part in parts])
    return FlowPaths(
        source=np.repeat(sources, [len(part[0]) for part in parts]).astype(np.int64),
        target=table[:, _TARGET],
        lo=table[:, _FIRST],
        amount=table[:, _AMOUNT],
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        links=np.concatenate([part[1] for part in parts]),
    )


def _of_source(
    problem: Commodities,
    source: int,
    wanted: NDArray[np.int64],
    flow: NDArray[np.int64],
    rows: NDArray[np.int64],
    links: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    leaving = problem.outgoing_links[problem.outgoing[source] : problem.outgoing[source + 1]]
    wanted[source] = 0
    units = int(flow[leaving].sum()) // max(1, int(wanted.sum()))
    count, used = native.peel(problem.incoming, problem.src, wanted, source, units, flow, rows, links)
    return rows[:count].copy(), links[:used].copy()


MAX_RANKS = 512
MAX_CELLS = 2**22
MAX_CHUNKS = 4096


def alltoall_schedule(
    topology: Topology,
    chunks: int | None = None,
    gap: Fraction = DEFAULT_GAP,
    method: RateMethod | None = None,
    report: BoundsListener | None = None,
) -> Schedule:
    """Return a pipelined all-to-all of `topology`: one transfer per path, all of them streaming at once.

    Shard source * N + target starts at source and must end at target. Transfers lead over paths of several links;
    `steps` is the number of links of the longest. chunks: chunks per shard, None for the fewest of a list that come
    within half a percent of the best of it (`chosen_flows`). `gap` and `method` as for `alltoall_rate`. The certificate
    holds link prices that bound the rate from above; `chorale.synth.bounds.certificate` checks it.

    Raises InvalidInput beyond 512 ranks or 2^22 pairs of a rank and a link.
    """
    require_schedule_size(topology, chunks)
    reduction = reduced_problem(topology, commodities_of(topology, symmetric=False))
    chosen = choose_method(reduction, method)
    solution = approximate(reduction, chosen, gap, report)
    upper, prices = upper_bound(reduction, solution)
    starts = [SharedFlows(reduction, solution.class_flow)]
    if chosen == "lp":  # many flows are optimal: take one that lets the least data pass through other ranks
        starts = [SharedFlows(reduction, shortened(reduction, solution)), *starts]
    count, flows = chosen_flows(starts, upper) if chunks is None else (chunks, best_of(starts, chunks, upper)[1])
    certificate = _certificate(topology, reduction, upper, prices)
    parameters = {"chunks": chunks, "solver": chosen}
    paths = list(_all_paths(flows, count))
    return _schedule(topology, reduction, paths, count, parameters, certificate)


def require_schedule_size(topology: Topology, chunks: int | None) -> None:
    """Refuse what `alltoall_schedule` would refuse, before anything is computed."""
    if chunks is not None and not 1 <= chunks <= MAX_CHUNKS:
        raise InvalidInput(f"chunks per shard must be 1 to {MAX_CHUNKS}", chunks, "choose a number in that range")
    cells = topology.compute_count * len(topology.links)
    if topology.compute_count > MAX_RANKS or cells > MAX_CELLS:
        rule = f"an all-to-all schedule must have at most {MAX_RANKS} ranks and {MAX_CELLS} pairs of a rank and a link"
        value = f"{topology.compute_count} ranks, {cells} pairs in {topology.spec}"
        raise InvalidInput(rule, value, "choose a smaller network; the rate alone can be had for larger ones")


def shortened(reduction: Reduction, solution: ApproximateSolution) -> NDArray[np.float64]:
    """Return class flows as good, which let the least data pass through other ranks; the same where that fails."""
    try:
        return linear_program.shorten(reduction, solution).class_flow
    except Unavailable:  # numerical trouble: longer paths will do
        return solution.class_flow


def _all_paths(flows: SharedFlows, count: int) -> Iterator[FlowPaths]:
    problem = flows.reduction.full
    router = Router(problem, count)
    for block, of_block in flows.blocks():
        yield flow_paths_of(problem, block, router.route(of_block, block))


def _schedule(
    topology: Topology,
    reduction: Reduction,
    parts: list[FlowPaths],
    chunks: int,
    parameters: Mapping[str, Any],
    certificate: Mapping[str, Any],
) -> Schedule:
    ranks = topology.compute_count
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    links = reduction.full.link_ids[np.concatenate([part.links for part in parts])]
    routes = Routes(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), links)
    shard = np.concatenate([part.source * ranks + part.target for part in parts])
    lo = np.concatenate([part.lo for part in parts])
    hi = lo + np.concatenate([part.amount for part in parts])
    at_once = np.zeros(len(shard), dtype=np.uint8)
    steps = int(lengths.max())
    bounds = ColumnBounds(steps, len(routes), ranks * ranks, chunks)
    transfers = bounds.pack((at_once, np.arange(len(shard)), shard, lo, hi, at_once))
    return Schedule(
        topology, ALLTOALL, "pipelined", steps, chunks, transfers, routes, "alltoall", parameters, certificate
    )


def _certificate(
    topology: Topology, reduction: Reduction, upper: Fraction, prices: NDArray[np.int64]
) -> Mapping[str, Any]:
    of_link = np.zeros(len(topology.links), dtype=np.int64)
    of_link[reduction.full.link_ids] = prices[reduction.full.link_class]
    return {"kind": "alltoall-prices", "rate_upper": str(upper), "prices": of_link.tolist()}
