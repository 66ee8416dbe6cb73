"""From flows added up by source to paths: who takes which way to whom, in whole chunks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.alltoall.commodities import Commodities
from chorale.synth.alltoall.routing import IntegralFlows
from chorale.synth.compiled import compiled

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
    """Return paths that add up to `flows`, int64[block, links]: acyclic, bringing equally much to every rank.

    At most one path per rank and link of each source. O(sources * (ranks + links) * longest path * degree).
    """
    sources = problem.sources[block]
    most = int(problem.demand.sum()) + problem.link_count
    rows = np.empty((most, 4), dtype=np.int64)
    links = np.empty(most * problem.node_count, dtype=np.int32)
    parts = [
        _of_source(problem, int(source), flow.copy(), rows, links) for source, flow in zip(sources, flows, strict=True)
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
    problem: Commodities, source: int, flow: NDArray[np.int64], rows: NDArray[np.int64], links: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    leaving = problem.outgoing_links[problem.outgoing[source] : problem.outgoing[source + 1]]
    units = int(flow[leaving].sum()) // (int(problem.demand.sum()) - 1)
    count, used = _peel(problem.incoming, problem.src, problem.demand, source, units, flow, rows, links)
    return rows[:count].copy(), links[:used].copy()


@compiled
def _peel(
    incoming: NDArray[np.int64],
    src: NDArray[np.int32],
    demand: NDArray[np.int64],
    source: int,
    units: int,
    flow: NDArray[np.int64],
    rows: NDArray[np.int64],
    links: NDArray[np.int32],
) -> tuple[int, int]:
    """Walk back from every rank along the widest links that are left, until its `units` are all explained.

    Fills `rows` (start in `links`, target, first chunk, chunks) and `links`; returns how much of both.
    """
    count = used = 0
    for target in range(len(demand)):
        missing = units * demand[target] if target != source else 0
        first = 0
        while missing > 0:
            node, start, amount = target, used, missing
            while node != source:
                widest = incoming[node]
                for link in range(incoming[node], incoming[node + 1]):
                    if flow[link] > flow[widest]:
                        widest = link
                amount = min(amount, flow[widest])
                links[used] = widest
                used += 1
                node = src[widest]
            links[start:used] = links[start:used][::-1].copy()
            flow[links[start:used]] -= amount
            rows[count] = np.array([start, target, first, amount])
            count += 1
            first += amount
            missing -= amount
    return count, used
