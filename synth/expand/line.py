"""The schedule of a line graph from that of the graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.expand.columns import allgather_from_columns, repeat_rows, require_expandable, require_size
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.expansions.line import line_order
from chorale.synth.topology.topology import Topology

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class _Numbering:
    """Where things of G are in L(G). The out-links of node w are ranks `first_out[w]` to `first_out[w + 1] - 1`, and
    link e into w, followed by the link of rank r, is link `first_into[r] + e - first_in[w]` of L(G)."""

    rank: Ids
    first_out: Ids
    fan_out: Ids
    first_in: Ids
    fan_in: Ids
    first_into: Ids


def line_schedule(base: Schedule, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the line graph L(G) of the network G of `base`.

    A new first step sends every shard to all neighbours. Then, where `base` sends from u to w what started at v, all
    links into v have their shards sent from node uw to all out-links of w, except to the shard's own node. Chunks stay
    as they are. One more step; steps that turn out empty (only if a node has a single link) are left out.
    O(new rows); d^2 for each row of `base` on a d-regular network.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 1.
    """
    require_expandable(base)
    at = _numbering(base.topology)
    rows, links = base.transfers, base.topology.links
    link = rows.route.astype(np.int32)
    through = links.dst[link]
    transfers = np.dot(at.fan_out[through].astype(np.int64), at.fan_in[rows.shard])
    require_size(len(topology.links) + int(transfers), topology)
    row, out_number = repeat_rows(at.fan_out[through])
    receiver = at.first_out[through][row] + out_number
    route = at.first_into[receiver] + (link - at.first_in[through])[row]
    copy, in_number = repeat_rows(at.fan_in[rows.shard][row])
    row, receiver, route = row[copy], receiver[copy], route[copy]
    shard = at.rank[at.first_in[rows.shard][row] + in_number]
    needed = shard != receiver
    row, route, shard = row[needed], route[needed], shard[needed]
    first = np.flatnonzero(topology.links.src != topology.links.dst)
    later_steps, step = _without_gaps(rows.step[row])
    zeros, full = np.zeros(len(first), dtype=np.int32), np.full(len(first), base.chunks_per_shard)
    parts = (
        (zeros, step + 1),
        (first, route),
        (topology.links.src[first], shard),
        (zeros, rows.lo[row]),
        (full, rows.hi[row]),
    )
    columns = [np.concatenate(part) for part in parts]
    return allgather_from_columns(base, topology, 1 + later_steps, base.chunks_per_shard, columns)


def _numbering(topology: Topology) -> _Numbering:
    links, nodes = topology.links, np.arange(topology.node_count + 1)
    order = line_order(topology)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    source = links.src[order]
    first_out = np.searchsorted(source, nodes).astype(np.int32)
    first_in = links.incoming_offsets(topology.node_count).astype(np.int32)
    fan_in = np.diff(first_in)
    into = fan_in[source]
    first_into = (np.cumsum(into) - into).astype(np.int32)
    return _Numbering(rank, first_out, np.diff(first_out), first_in, fan_in, first_into)


def _without_gaps(step: NDArray[np.unsignedinteger]) -> tuple[int, Ids]:
    """Return how many steps are in use, and `step` numbered by these alone."""
    used = np.bincount(step) > 0
    number = np.cumsum(used).astype(np.int32) - 1
    return int(np.count_nonzero(used)), number[step]
