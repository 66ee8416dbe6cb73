"""Lower bounds on the all-to-all rate: integral flows that deliver every unit, made from approximate ones."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled
from chorale.synth.kernels.heap import drop_first, push
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.alltoall.commodities import Commodities
from chorale.synth.methods.alltoall.flow_kernels import cancel_cycles

Flows = NDArray[np.float64]
IntegralFlows = NDArray[np.int64]

_TRACE = 1e-15
"""Flow that every link has at least, so that a node without any inflow still finds a way."""
_LEAST_SHARE = 1e-6
"""Units of which a link must get at least this share to be rounded up."""


class Router:
    """Turns approximate flows into whole ones, block by block of sources, and adds up exact loads.

    units: how many units every source sends to every rank
    loads: int64[C], units over all links of a class and all sources of all classes
    debt:  what was asked of each link so far minus what it got; rounding prefers links whose time grows the least
           beyond what was asked, which are those that are owed much or carry much at once
    """

    def __init__(self, problem: Commodities, units: int) -> None:
        self.problem = problem
        self.units = units
        self.loads = np.zeros(len(problem.class_size), dtype=np.int64)
        self._debt = np.zeros(problem.link_count, dtype=np.float64)
        self._capacity = problem.class_capacity[problem.link_class].astype(np.float64)

    def route(self, flows: Flows, block: slice) -> IntegralFlows:
        """Return int64[block, links]: acyclic flows that bring `units` to every rank, close to `flows`.

        O(links * log links) per source.
        """
        problem = self.problem
        sources = problem.sources[block]
        whole = np.zeros((len(sources), problem.link_count), dtype=np.int64)
        _route(
            problem.incoming, problem.outgoing, problem.outgoing_links, problem.src, problem.dst,
            problem.demand_of(block), sources, flows, self.units, self._capacity, self._debt, whole,
        )  # fmt: skip
        totals = whole.T @ problem.weights[block]
        np.add.at(self.loads, problem.link_class, totals)
        return whole

    def rate(self) -> Fraction:
        """Return the exact rate at which the flows routed so far fit on the links; all blocks must have been routed."""
        problem = self.problem
        columns = zip(self.loads, problem.class_size, problem.class_capacity, strict=True)
        longest = max(Fraction(int(load), int(size) * int(capacity)) for load, size, capacity in columns)
        return Fraction(self.units, problem.scale) / longest


def fine_units(node_count: int, denominator: int = 1) -> int:
    """Return many units, so that rounding loses little: a multiple of `denominator`, and of 1 to 16 by default.

    Loads stay within 64 bits: fewer than node_count ** 3 * units, for up to 2^14 nodes.
    """
    most = 720720 if node_count <= 2**13 else 5040
    return most if most % denominator == 0 else denominator * max(1, most // denominator)


@compiled
def _route(
    incoming: NDArray[np.int64],
    outgoing: NDArray[np.int64],
    outgoing_links: NDArray[np.int32],
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    demand: Matrix[np.int64],
    sources: NDArray[np.int32],
    flows: Matrix[np.float64],
    units: int,
    capacity: NDArray[np.float64],
    debt: NDArray[np.float64],
    whole: Matrix[np.int64],
) -> None:
    """Take the cycles out, order the nodes along the flow, and hand what nodes need back against that order."""
    node_count = demand.shape[1]
    position = np.empty(node_count, dtype=np.int64)
    order = np.empty(node_count, dtype=np.int32)
    inflow = np.empty(node_count, dtype=np.float64)
    covered = np.empty(node_count, dtype=np.float64)
    need = np.empty(node_count, dtype=np.int64)
    keys = np.empty(len(src) + 1, dtype=np.float64)
    nodes = np.empty(len(src) + 1, dtype=np.int32)
    for index in range(len(sources)):
        flow = np.maximum(flows[index], 0.0)
        cancel_cycles(outgoing, outgoing_links, src, dst, _TRACE, flow)
        flow += _TRACE
        for node in range(node_count):
            inflow[node] = flow[incoming[node] : incoming[node + 1]].sum()
        count = _order_along(
            outgoing, outgoing_links, dst, sources[index], flow, inflow, covered, position, order, keys, nodes
        )
        need[:] = demand[index % len(demand)] * units
        for step in range(count - 1, 0, -1):
            node = order[step]
            if need[node] > 0:
                _split(
                    incoming[node],
                    incoming[node + 1],
                    src,
                    position,
                    step,
                    need[node],
                    flow,
                    capacity,
                    debt,
                    whole[index],
                    need,
                )


@compiled
def _order_along(
    outgoing: NDArray[np.int64],
    outgoing_links: NDArray[np.int32],
    dst: NDArray[np.int32],
    source: int,
    flow: NDArray[np.float64],
    inflow: NDArray[np.float64],
    covered: NDArray[np.float64],
    position: NDArray[np.int64],
    order: NDArray[np.int32],
    keys: NDArray[np.float64],
    nodes: NDArray[np.int32],
) -> int:
    """Fill `order`, and `position` in it (-1: not reached); return how many nodes were reached.

    A node is next when the largest part of its inflow is from ordered nodes: all of it, but for rounding errors.
    Links against the order are dropped later, so the result is acyclic whatever the flow was.
    """
    position[:] = -1
    covered[:] = 0.0
    size = push(keys, nodes, 0, -1.0, source)
    count = 0
    while size > 0:
        node = nodes[0]
        size = drop_first(keys, nodes, size)
        if position[node] >= 0:
            continue
        position[node] = count
        order[count] = node
        count += 1
        for position_in_row in range(outgoing[node], outgoing[node + 1]):
            link = outgoing_links[position_in_row]
            head = dst[link]
            if position[head] < 0:
                covered[head] += flow[link]
                size = push(keys, nodes, size, -covered[head] / inflow[head], head)
    return count


@compiled
def _split(
    first: int,
    last: int,
    src: NDArray[np.int32],
    position: NDArray[np.int64],
    step: int,
    needed: int,
    flow: Flows,
    capacity: NDArray[np.float64],
    debt: NDArray[np.float64],
    whole: NDArray[np.int64],
    need: NDArray[np.int64],
) -> None:
    """Share what the node at `step` needs among its in-links from earlier nodes, in proportion to flow."""
    total = 0.0
    for link in range(first, last):
        if position[src[link]] < step:
            total += flow[link]
    left = needed
    for link in range(first, last):
        if position[src[link]] < step:
            share = needed * (flow[link] / total)
            whole[link] = np.int64(share)
            debt[link] += share - whole[link]
            left -= whole[link]
    while left > 0:
        best, least = -1, 0.0
        for link in range(first, last):
            eligible = position[src[link]] < step and needed * flow[link] > _LEAST_SHARE * total
            beyond = (1.0 - debt[link]) / capacity[link]
            if eligible and (best < 0 or beyond < least):
                best, least = link, beyond
        whole[best] += 1
        debt[best] -= 1.0
        left -= 1
    for link in range(first, last):
        need[src[link]] += whole[link]
