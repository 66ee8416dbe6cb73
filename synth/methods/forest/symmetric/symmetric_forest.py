"""Optimal trees of large symmetric fabrics: made for one block, or one rank, and moved to all others by translations.

Tree packing treats every root by itself; where boxes are alike that repeats one box's work. Here it is done once,
and the result is held and verified in that form (`chorale.synth.schedule.symmetric_trees`). Nothing is assumed about
optimality: what does not fit into the trees per link that the optimum allows is refused, and the general way remains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from chorale.synth.bounds.optimum import optimum
from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.collective import ALLGATHER, Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.forest.network import network_of_links, trees_on_links
from chorale.synth.methods.forest.symmetric.base_rows import BaseRows
from chorale.synth.methods.forest.symmetric.block_rows import block_rows
from chorale.synth.methods.forest.symmetric.shortest import shortest_path_rows
from chorale.synth.methods.forest.symmetric.two_switches import two_switch_rows
from chorale.synth.schedule.schedule import ColumnBounds, Parameter
from chorale.synth.schedule.symmetric import SymmetricSchedule, symmetric_parts
from chorale.synth.schedule.symmetric_trees import SymmetricTrees
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.topology import Topology, transpose_with_links
from chorale.synth.topology.translations import TranslatedLinks, Translations

MAX_GENERATORS = 4
"""So many symmetries are tried together and one by one, more only together."""


def symmetric_forest(
    topology: Topology, collective: Collective, method: str, parameters: Mapping[str, Parameter]
) -> SymmetricSchedule | None:
    """Return the schedule of `collective` (allgather, reduce_scatter, allreduce) whose trees reach the optimum.

    None where `topology` carries no translations, or none under which such trees are found in the ways known here.
    Cost: that of the optimum, then O(roots of a block * links + base rows * log links). Raises InvalidInput as
    `optimum` does. Not verified.
    """
    has_scatter, has_gather = symmetric_parts(collective)
    scatter = gather = None
    if has_scatter:
        turned = transpose_with_links(topology)[0]
        scatter = symmetric_trees(turned)
        if scatter is None:
            return None
    if has_gather:
        gather = symmetric_trees(topology)
        if gather is None:
            return None
    return SymmetricSchedule(topology, collective, scatter, gather, method, parameters)


def symmetric_trees(topology: Topology) -> SymmetricTrees | None:
    """Return trees of an allgather that take the optimum's time, None where these ways find none."""
    candidates = list(_groups(topology))
    if not candidates:
        return None
    best = optimum(topology, ALLGATHER)
    carried = trees_on_links(topology, best.trees_per_bandwidth)
    moved = [(generators, TranslatedLinks.of(topology, generators, group)) for generators, group in candidates]
    for make, (generators, moves) in product((_rows, two_switch_rows), moved):
        rows = make(topology, moves, carried, best.k)
        if rows is not None and np.all(moves.totals(rows.loads(topology)) <= carried):
            bounds = ColumnBounds(rows.steps, len(rows.routes), topology.compute_count, best.k)
            base = bounds.pack((*rows[:5], np.zeros(len(rows.step), dtype=np.uint8)))
            certificate = best.bound.to_json(topology)
            return SymmetricTrees(
                topology, generators, rows.steps, best.k, base, rows.routes, certificate, trees_per_root=best.k
            )
    return None


def _groups(topology: Topology) -> Iterator[tuple[tuple[int, ...], Translations]]:
    """Yield sets of known symmetries that generate translations, large ones first."""
    known = [index for index, move in enumerate(topology.automorphisms) if is_automorphism(topology, move)]
    sets = [tuple(known)] if known else []
    if 1 < len(known) <= MAX_GENERATORS:
        sets += [(index,) for index in known]
    for generators in sets:
        try:
            yield generators, Translations.of(topology, generators)
        except InvalidInput:  # these do not commute, or keep a rank in its place
            continue


def _rows(topology: Topology, moves: TranslatedLinks, carried: Integers, k: int) -> BaseRows | None:
    supply = np.full(topology.compute_count, k, dtype=np.int64)
    if topology.switch_count == 0:
        network = network_of_links(topology, carried, supply)
        rows = shortest_path_rows(topology, network, moves)
        if rows is not None:
            return rows
    return block_rows(topology, moves, carried, k)
