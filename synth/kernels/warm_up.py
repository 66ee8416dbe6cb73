"""Compile every kernel into its on-disk cache: `python -m chorale.synth.kernels.warm_up`."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.bfb_score import loads_of_low_diameter
from chorale.synth.finder.cayley_search import CayleySearch, search_cayley_graphs
from chorale.synth.kernels.compiled import compilations, machine_code_only
from chorale.synth.kernels.ready import compile_groups, groups_of_method
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.timetable import timetable_of
from chorale.synth.methods.alltoall.alltoall import METHODS, alltoall_rate
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.forest.forest import tree_schedule
from chorale.synth.methods.forest.network import forest_network
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.cut_table import cut_table
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.method import Options
from chorale.synth.methods.swing import swing_latency
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.simulation.simulate import as_fidelity, simulate
from chorale.synth.targets.lift import check_program
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.distance import diameter, largest_distance
from chorale.synth.topology.isomorphism import isomorphism
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify


@machine_code_only()
def warm() -> int:
    """Run every kernel once on tiny networks; return how many had to be compiled because no copy was on disk."""
    before = compilations()
    for slowest in (Fraction(1), Fraction(1, 2)):
        # Equal and unequal links take different paths through the kernels.
        links = Links.build(
            Link(node, (node + way) % 4, slowest if node else Fraction(1)) for node in range(4) for way in (1, 3)
        )
        ring = Topology("ring:4", ("0", "1", "2", "3"), 4, links)
        is_automorphism(ring, np.arange(4))
        isomorphism(ring, ring)
        diameter(ring)
        largest_distance(ring, np.arange(4))
        synthesize("bfb", ring, ALLREDUCE, Options(chunks=1), SerialExecutor())
        synthesize("bfb", ring, ALLREDUCE, None, SerialExecutor())
    return compilations() - before


@machine_code_only()
def warm_alltoall() -> int:
    """Run the kernels of all-to-all rates and schedules once; return how many had to be compiled."""
    before = compilations()
    links = Links.build([Link(node, (node + 1) % 4) for node in range(4)] + [Link(2, 0), Link(1, 1)])
    network = Topology("warm", ("0", "1", "2", "3"), 4, links)
    for method in METHODS:
        alltoall_rate(network, Fraction(1, 10), method)
    verify(alltoall_schedule(network))
    return compilations() - before


@machine_code_only()
def warm_bounds() -> int:
    """Run the kernels of bounds once; return how many had to be compiled."""
    before = compilations()
    links = Links.build(Link(node, (node + way) % 4) for node in range(4) for way in (1, 3))
    optimum(Topology("warm", ("0", "1", "2", "3"), 4, links), ALLGATHER)
    return compilations() - before


@machine_code_only()
def warm_packing() -> int:
    """Pack trees in batches and exactly once; return how many kernels had to be compiled."""
    before = compilations()
    network = forest_network(parse_topology("torus:3x3"), Fraction(8), np.full(9, 4, dtype=np.int64))
    pack_trees(network)
    for rollbacks in (1, 0):
        pack_trees(network, "trees", rollbacks=rollbacks)
    # One tree in all makes columns of other layouts than several.
    pack_trees(forest_network(parse_topology("ring:3"), Fraction(1), np.array([1, 0, 0])))
    return compilations() - before


@machine_code_only()
def warm_trees() -> int:
    """Remove two switches and make a schedule of the trees once; return how many had to be compiled."""
    before = compilations()
    wires = ((0, 4), (1, 4), (2, 5), (3, 5), (4, 5))
    links = Links.build(Link(*ends) for wire in wires for ends in (wire, wire[::-1]))
    network = Topology("warm", tuple("012345"), 4, links)
    fabric = forest_network(network, Fraction(3), np.ones(4, dtype=np.int64))
    cut_table(fabric, np.arange(6)[None] < 1)
    split = remove_switches(fabric)
    trees = pack_trees(split.network)
    tree_schedule(network, ALLGATHER, Fraction(3), split, trees, method="forest", parameters={}, certificate={})
    return compilations() - before


def warm_method(method: str) -> int:
    """Run the kernels that `chorale synth` needs for `method` once; return how many had to be compiled."""
    return compile_groups(*groups_of_method(method))


@machine_code_only()
def warm_finder() -> int:
    """Run the kernels of the topology finder once; return how many had to be compiled."""
    before = compilations()
    loads_of_low_diameter(np.array([[2], [0], [1]], dtype=np.int32), np.arange(3), 3)
    search_cayley_graphs(CayleySearch(4, 2), [0], SerialExecutor())
    return compilations() - before


@machine_code_only()
def warm_exchange() -> int:
    """Run the replay of sets once, which exchanges need; return how many kernels had to be compiled."""
    before = compilations()
    links = Links.build([Link(0, 1), Link(1, 0)])
    verify(swing_latency(Topology("pair", ("0", "1"), 2, links), ALLREDUCE).schedule())
    return compilations() - before


@machine_code_only()
def warm_simulation() -> int:
    """Run the kernels of both network models once; return how many had to be compiled."""
    before = compilations()
    links = Links.build([Link(node, (node + way) % 3) for node in range(3) for way in (1, 2)])
    ring = synthesize("ring", Topology("warm", ("0", "1", "2"), 3, links), ALLREDUCE, None, SerialExecutor())
    traffic = traffic_of(ring.schedule)
    for fidelity in ("step", "flow"):
        simulate(traffic, NetworkModel.of(link_gbps=1), [1], as_fidelity(fidelity))
    return compilations() - before


@machine_code_only()
def warm_lowering() -> int:
    """Lower one schedule and check its program, and order the transfers of trees; return how many kernels had to be
    compiled."""
    before = compilations()
    links = Links.build([Link(0, 1), Link(1, 0)])
    pair = Topology("warm", ("0", "1"), 2, links)
    verified = synthesize("bfb", pair, ALLREDUCE, Options(chunks=1), SerialExecutor())
    check_program(lower(verified, LoweringOptions("oneccl-xml", fuse=True)))
    trees = synthesize(
        "double-binary-tree", parse_topology("ring:3"), ALLREDUCE, None, SerialExecutor()
    ).schedule.expand()
    timetable_of(trees, trees.transfers)
    return compilations() - before


_GROUPS = (
    warm,
    warm_alltoall,
    warm_bounds,
    warm_packing,
    warm_trees,
    warm_finder,
    warm_exchange,
    warm_simulation,
    warm_lowering,
)

if __name__ == "__main__":
    compile_groups(*(group.__name__ for group in _GROUPS))
