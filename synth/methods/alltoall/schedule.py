"""Makes all-to-all schedules: decomposes the flow of each source into paths to all targets, in whole chunks."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLTOALL, Collective
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
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule
from chorale.synth.topology.topology import Topology

_START, _TARGET, _FIRST, _AMOUNT = range(4)
MAX_RANKS = 512
MAX_CELLS = 2**22
MAX_CHUNKS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class FlowPaths:
    """Paths of chunks: path i carries chunks `lo[i]` to `lo[i] + amount[i] - 1` from `source[i]` to `target[i]`.

    Path i consists of the links `links[offsets[i]:offsets[i + 1]]`, in travel order. Links are ids in the topology.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    lo: NDArray[np.int64]
    amount: NDArray[np.int64]
    offsets: NDArray[np.int64]
    links: NDArray[np.int32]


def flow_paths_of(problem: Commodities, block: slice, flows: IntegralFlows) -> FlowPaths:
    """Decompose `flows` into paths. The flows must be acyclic and deliver the same multiple of every demand.

    Each source has at most ranks + links paths. O(sources * (ranks + links) * longest path * degree).

    Args:
        problem: the flow problem, which contains the sources and links.
        block: indices of the sources in `problem`.
        flows: int64[sources of the block, links of the problem].
    """
    sources = problem.sources[block]
    most = int(np.count_nonzero(problem.demand, axis=1).max()) + problem.link_count
    rows = np.empty((most, 4), dtype=np.int64)  # columns _START, _TARGET, _FIRST and _AMOUNT
    links = np.empty(most * problem.node_count, dtype=np.int32)
    demand = np.broadcast_to(problem.demand_of(block), (len(sources), problem.node_count))
    tables, paths = [], []
    for source, row, flow in zip(sources.tolist(), demand, flows, strict=True):
        leaving = problem.outgoing_links[problem.outgoing[source] : problem.outgoing[source + 1]]
        wanted = row.copy()
        wanted[source] = 0
        units = int(flow[leaving].sum()) // max(1, int(wanted.sum()))
        count, used = native.peel(problem.incoming, problem.src, wanted, source, units, flow.copy(), rows, links)
        tables.append(rows[:count].copy())
        paths.append(links[:used].copy())
    table = np.concatenate(tables)
    pairs = zip(tables, paths, strict=True)
    lengths = np.concatenate([np.diff(rows[:, _START], append=len(path)) for rows, path in pairs])
    return FlowPaths(
        source=np.repeat(sources, list(map(len, tables))).astype(np.int64),
        target=table[:, _TARGET],
        lo=table[:, _FIRST],
        amount=table[:, _AMOUNT],
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        links=problem.link_ids[np.concatenate(paths)],
    )


def alltoall_schedule(
    topology: Topology,
    chunks: int | None = None,
    gap: Fraction = DEFAULT_GAP,
    method: RateMethod | None = None,
    report: BoundsListener | None = None,
) -> Schedule:
    """Return a pipelined all-to-all on `topology` with one transfer per path. All transfers run at the same time.

    Shard source * N + target starts at source and must arrive at target. A transfer's path may have several links;
    `steps` is the number of links of the longest path. The certificate contains link prices that prove an upper bound
    on the rate; `chorale.synth.bounds.certificate` checks it.

    Args:
        topology: a network with at most 512 ranks and 2^22 (rank, link) pairs.
        chunks: chunks per shard; by default, several numbers are tried, and the smallest one whose rate is within 0.5 %
            of the best is chosen.
        gap: as in `alltoall_rate`.
        method: as in `alltoall_rate`.
        report: function that is called with the bounds of a price descent as they improve.

    Raises:
        InvalidInput: if the network is too large or there are too many chunks.
    """
    require_schedule_size(topology, chunks)
    reduction = reduced_problem(topology, commodities_of(topology, symmetric=False))
    full = reduction.full
    chosen = choose_method(reduction, method)
    solution = approximate(reduction, chosen, gap, report)
    upper, prices = upper_bound(reduction, solution)
    starts = [SharedFlows(reduction, solution.class_flow)]
    if chosen == "lp":  # many flows are optimal: prefer those that take the shortest paths
        starts = [SharedFlows(reduction, shortened(reduction, solution)), *starts]
    count, flows = chosen_flows(starts, upper) if chunks is None else (chunks, best_of(starts, chunks, upper)[1])
    router = Router(full, count)
    paths = [flow_paths_of(full, block, router.route(of_block, block)) for block, of_block in flows.blocks()]
    of_link = np.zeros(len(topology.links), dtype=np.int64)
    of_link[full.link_ids] = prices[full.link_class]
    certificate = {"kind": "alltoall-prices", "rate_upper": str(upper), "prices": of_link.tolist()}
    parameters: dict[str, Parameter] = {"chunks": chunks, "solver": chosen}
    return schedule_of_paths(topology, ALLTOALL, paths, count, parameters, certificate)


def require_schedule_size(topology: Topology, chunks: int | None) -> None:
    """Raise InvalidInput if `alltoall_schedule` would reject these arguments. Computes no schedule."""
    if chunks is not None and not 1 <= chunks <= MAX_CHUNKS:
        raise InvalidInput(f"chunks per shard must be 1 to {MAX_CHUNKS}", chunks, "choose a number in that range")
    cells = topology.compute_count * len(topology.links)
    if topology.compute_count > MAX_RANKS or cells > MAX_CELLS:
        rule = f"an all-to-all schedule must have at most {MAX_RANKS} ranks and {MAX_CELLS} pairs of a rank and a link"
        value = f"{topology.compute_count} ranks, {cells} pairs in {topology.spec}"
        raise InvalidInput(rule, value, "choose a smaller network; for larger ones, only the rate can be computed")


def shortened(reduction: Reduction, solution: ApproximateSolution) -> NDArray[np.float64]:
    """Return equally fast flows with the least total load, or the unchanged flows if the solver fails."""
    with suppress(Unavailable):  # if there are numerical errors, longer paths are acceptable
        return linear_program.shorten(reduction, solution).class_flow
    return solution.class_flow


def schedule_of_paths(
    topology: Topology,
    collective: Collective,
    parts: Sequence[FlowPaths],
    chunks: int,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
    relays: bool = False,
) -> Schedule:
    """Return the unverified schedule in which data stream along all paths in `parts` at the same time.

    Args:
        topology: the network whose links the paths use.
        collective: a collective whose shard source * N + target moves from source to target.
        parts: the paths.
        chunks: number of chunks in the largest shard.
        parameters: parameters of the schedule.
        certificate: proof of a bound on the time or on the rate.
        relays: whether the ranks on a path receive the data and send them again, instead of forwarding them like
            switches.
    """
    ranks = topology.compute_count
    columns = [
        (part.source * ranks + part.target, part.lo, part.lo + part.amount, np.diff(part.offsets), part.links)
        for part in parts
    ]
    shard, lo, hi, lengths, links = (np.concatenate(column) for column in zip(*columns, strict=True))
    offsets, step, path = np.concatenate([[0], np.cumsum(lengths)]), np.zeros(len(shard), dtype=np.int64), slice(None)
    if relays:  # one row for each part of a path between consecutive ranks
        ends = topology.links.dst[links] < ranks
        offsets, of_link = np.concatenate([[0], np.flatnonzero(ends) + 1]), np.repeat(np.arange(len(shard)), lengths)
        path = of_link[offsets[1:] - 1]
        step = np.arange(len(path)) - np.searchsorted(path, path)
    routes = Routes(offsets.astype(np.int64), links.astype(np.int32))
    steps = int(step.max()) + 1 if relays else int(lengths.max())
    bounds = ColumnBounds(steps, len(routes), ranks * ranks, chunks)
    order = np.argsort(step, kind="stable")
    rows = step, np.arange(len(step)), shard[path], lo[path], hi[path], np.zeros_like(step)
    transfers = bounds.pack([column[order] for column in rows])
    return Schedule(
        topology, collective, "pipelined", steps, chunks, transfers, routes, "alltoall", parameters, certificate
    )
