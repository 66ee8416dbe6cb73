"""Packed trees as a schedule: every tree streams its part of a shard over the links behind its arcs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.forest.network import trees_on_links
from chorale.synth.forest.split.split_network import SplitNetwork
from chorale.synth.forest.tree_rows import split_over_shards, tree_transfers
from chorale.synth.forest.trees import Trees
from chorale.synth.schedule.schedule import Parameter, Schedule
from chorale.synth.schedule.transfers import ColumnBounds
from chorale.synth.topology.topology import Topology


def tree_schedule(
    topology: Topology,
    collective: Collective,
    trees_per_bandwidth: Fraction,
    split: SplitNetwork,
    trees: Trees,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the pipelined allgather, or broadcast, that sends along `trees`.

    split: `forest_network(topology, trees_per_bandwidth, ...)` without its switches; `trees` are trees of
    `split.network`. With k trees per root (weights added up), a shard is cut into k parts, one for each; the trees
    of one root take them in their order. An arc hands out its paths in their order, so that a transfer of
    several parts may become several transfers. Not verified. O(trees * ranks + hops of all paths).
    """
    if collective.name not in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        known = "allgather or broadcast"
        raise InvalidInput(f"trees spread data: they make {known}", collective.name.value, f"choose {known}")
    carried = trees_on_links(topology, trees_per_bandwidth)
    rows = tree_transfers(topology, carried, split, trees)
    k = rows.units
    columns: tuple[NDArray[np.integer], ...]
    if collective == ALLGATHER:
        chunks, columns = k, (rows.depth, rows.route, rows.root, rows.lo, rows.hi)
    else:
        chunks, (row, *intervals) = split_over_shards(rows.lo, rows.hi, topology.compute_count, k)
        columns = (rows.depth[row], rows.route[row], *intervals)
    bounds = ColumnBounds(rows.height, len(rows.routes), topology.compute_count, chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    return Schedule(
        topology, collective, "pipelined", rows.height, chunks, transfers, rows.routes, method, parameters,
        certificate, k,
    )  # fmt: skip
