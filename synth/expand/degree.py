"""The schedule of a degree-expanded network from that of the network."""

from __future__ import annotations

from math import lcm

import numpy as np

from chorale.synth.expand.columns import Column, allgather_from_columns, repeat_rows, require_expandable, require_size
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.links import link_ids
from chorale.synth.topology.topology import Topology


def degree_schedule(base: Schedule, copies: int, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the network G of `base` with every node copied `copies` times.

    What `base` sends from u to w, copy j of u sends to all copies of w, for the shard of copy j of the shard's node.
    In one more step every node collects the shards of its own copies, in equal parts over its links. Chunks are cut
    to the least common multiple with the number of links into a node. G has no self-loops. O(new rows); copies^2 for
    each row of `base`.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 2.
    """
    require_expandable(base)
    rows = base.transfers
    require_size(len(rows) * copies**2 + len(topology.links) * (copies - 1), topology)
    last = _among_copies(copies, topology) if copies > 1 else None
    chunks = base.chunks_per_shard if last is None else lcm(base.chunks_per_shard, int(np.lcm.reduce(last[2])))
    factor = chunks // base.chunks_per_shard
    ids = _link_ids(base.topology, copies)
    route = ids[rows.route].ravel()
    row = np.repeat(np.arange(len(rows)), copies**2)
    shard = (rows.shard[:, None].astype(np.int32) * copies + np.repeat(np.arange(copies), copies)).ravel()
    columns: list[Column] = [rows.step[row], route, shard]
    columns += [rows.lo.astype(np.int64)[row] * factor, rows.hi.astype(np.int64)[row] * factor]
    if last is None:
        return allgather_from_columns(base, topology, base.steps, chunks, columns)
    last_route, last_shard, parts, part = last
    size = chunks // parts
    final = (np.full(len(last_route), base.steps), last_route, last_shard, part * size, (part + 1) * size)
    joined = [np.concatenate(pair) for pair in zip(columns, final, strict=True)]
    return allgather_from_columns(base, topology, base.steps + 1, chunks, joined)


def _link_ids(network: Topology, copies: int) -> Column:
    """Return int32[links, copies^2]: for each link u w the links from copy j of u to copy i of w, at j * copies + i."""
    links, copy = network.links, np.arange(copies)
    src = (links.src[:, None] * np.int64(copies) + np.repeat(copy, copies)).ravel()
    dst = (links.dst[:, None] * np.int64(copies) + np.tile(copy, copies)).ravel()
    bandwidth_class, latency_class = (
        np.repeat(column, copies**2) for column in (links.bandwidth_class, links.latency_class)
    )
    return link_ids(src, dst, bandwidth_class, latency_class).reshape(len(links), copies**2)


def _among_copies(copies: int, topology: Topology) -> tuple[Column, Column, Column, Column]:
    """Return route, shard, number of parts, and which part, of the exchange among copies of one node."""
    links = topology.links
    first_in = links.incoming_offsets(topology.node_count)
    link, turn = repeat_rows(np.full(len(links), copies - 1))
    receiver = links.dst[link]
    own_copy = receiver % copies
    shard = receiver - own_copy + (own_copy + 1 + turn) % copies
    parts = np.diff(first_in)[receiver]
    return link, shard, parts, link - first_in[receiver]
