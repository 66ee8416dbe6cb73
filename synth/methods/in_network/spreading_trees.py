"""Trees that spread or add up in one direction only, over switches that multicast or add as inner nodes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from chorale.synth.bounds.cut_search import CutSearch
from chorale.synth.bounds.fewest_trees import fewest_trees
from chorale.synth.bounds.optimum import improving_cuts
from chorale.synth.collective import Collective
from chorale.synth.methods.forest.network import trees_on_links
from chorale.synth.methods.in_network.reversible_trees import ReversibleTrees, without_leaf_switches
from chorale.synth.methods.in_network.tree_packing import WholeUnits, packed_trees
from chorale.synth.methods.method import Options
from chorale.synth.topology.relabelling import promoted
from chorale.synth.topology.topology import Topology

_FINE = 64


def spreading_trees(
    topology: Topology, collective: Collective, switches: Sequence[int], options: Options
) -> tuple[ReversibleTrees, Fraction]:
    """Return out-trees of allgather or broadcast that span ranks and these switches, and their time per byte.

    They are as fast as any that visit all those switches. Reversed, on links as wide both ways, they are in-trees.
    Raises InvalidInput as `packed_trees` does.
    """
    relabelled = promoted(topology, switches)
    supply = np.zeros(relabelled.network.compute_count, dtype=np.int64)
    supply[slice(topology.compute_count) if collective.root is None else collective.root] = 1
    search = CutSearch.of(relabelled.network, supply)
    *_, (time, cut) = improving_cuts(search)
    k = options.k or fewest_trees(search, time, cut).k
    scale = k * time
    while options.k and _refuses(search, scale, k):
        scale += time / _FINE
    whole = WholeUnits(supply * k, trees_on_links(relabelled.network, scale))
    trees = packed_trees(topology, relabelled, whole, options)
    return without_leaf_switches(topology, trees), scale / (k * int(supply.sum()))


def _refuses(search: CutSearch, rate: Fraction, k: int) -> bool:
    """Whether some cut does not carry k trees per root at `rate` trees per bandwidth."""
    search.settled[:] = False
    return search.violated_cut(rate, k) is not None
