"""Schedules of optimal trees for tests: bound, network, removal, packing, expansion in a row."""

import numpy as np

from chorale.synth.bounds.optimum import Optimum, optimum
from chorale.synth.collective import ALLGATHER, Collective
from chorale.synth.methods.forest.forest import tree_schedule
from chorale.synth.methods.forest.network import forest_network
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology


def trees_on(topology: Topology, collective: Collective = ALLGATHER, best: Optimum | None = None) -> Schedule:
    """Return the allgather or broadcast of `topology` by trees at `best`, its optimum unless given; not verified."""
    best = best or optimum(topology, collective)
    supply = np.zeros(topology.compute_count, dtype=np.int64)
    supply[collective.root if collective.is_rooted else slice(None)] = best.k
    split = remove_switches(forest_network(topology, best.trees_per_bandwidth, supply))
    return tree_schedule(
        topology, collective, best.trees_per_bandwidth, split, pack_trees(split.network),
        method="forest", parameters={}, certificate={},
    )  # fmt: skip
