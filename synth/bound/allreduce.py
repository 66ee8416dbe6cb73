"""Lower bounds on allreduce; its optimum is open in general.

Whatever the schedule, the whole vector crosses every cut, each way (bandwidth-optimal pipeline, theorem 16), and p
groups of ranks receive 2 (p - 1) vectors in all (theorem 17 for single ranks). Where the groups are bottlenecks of
allgather, the second bound is twice the time of allgather: reduce_scatter followed by allgather is then the best
allreduce (theorem 19 has the cases of two groups and of single ranks).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from chorale.synth.bound.cut import Bound
from chorale.synth.bound.cut_search import CutSearch, Nodes
from chorale.synth.bound.optimum import improving_cuts, node_set, optimum, search_for
from chorale.synth.bound.partition import group_time, single_rank_cuts, tight_parts
from chorale.synth.collective import ALLGATHER, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.topology.topology import Topology

_WAYS = (
    ("received", "into", ALLGATHER, CollectiveName.BROADCAST),
    ("sent", "out-of", REDUCE_SCATTER, CollectiveName.REDUCE),
)


def allreduce_bounds(topology: Topology) -> Iterator[Bound]:
    """Yield bounds on allreduce, the cheapest first; the largest is the best one known.

    Ranks by themselves; groups that are bottlenecks of allgather; single cuts; ranks with the switches that
    narrow them. Each for what comes in and, on one-way networks, also for what goes out.
    """
    ways = _WAYS[:1] if topology.is_eulerian else _WAYS
    searches = [(kind, search_for(topology, spread)) for kind, _, spread, _ in ways]
    yield from (_of_groups(kind, search, []) for kind, search in searches)
    yield from (_of_groups(kind, search, tight_parts(search)) for kind, search in searches)
    for _, kind, _, rooted in ways:
        for time, cut in improving_cuts(search_for(topology, Collective(rooted, 0))):
            yield Bound(kind, node_set(cut), time)
    yield from (_of_groups(kind, search, single_rank_cuts(search)) for kind, search in searches)


def reduce_scatter_allgather_time(topology: Topology) -> Fraction:
    """Return the time per byte of the best reduce_scatter followed by the best allgather."""
    gather = optimum(topology, ALLGATHER).time_per_byte
    return 2 * gather if topology.is_eulerian else gather + optimum(topology, REDUCE_SCATTER).time_per_byte


def _of_groups(kind: str, search: CutSearch, parts: Sequence[Nodes]) -> Bound:
    return Bound(kind, (), group_time(search, parts), parts=tuple(node_set(part) for part in parts))
