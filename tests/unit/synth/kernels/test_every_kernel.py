"""Every kernel, on small networks: machine code and text do the same, to the byte.

`pytest -p tests.conformance.kernel_comparison tests/unit/synth` compares all calls of the other tests.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np
import pytest

from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.finder.bfb_score import loads_of_low_diameter
from chorale.synth.finder.cayley_search import multiplication_table
from chorale.synth.finder.cayley_trials import best_generators
from chorale.synth.finder.kautz_kernels import kautz_loads
from chorale.synth.kernels.compiled import KERNELS
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.timetable import timetable_of
from chorale.synth.methods.alltoall.alltoall import METHODS, alltoall_rate
from chorale.synth.methods.alltoall.colour_refinement import ColourTable
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.forest.forest import tree_schedule
from chorale.synth.methods.forest.network import forest_network
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.residual_network import arc_table_of
from chorale.synth.methods.forest.rooted_trees import rooted_trees
from chorale.synth.methods.forest.split.cut_table import cut_table
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.symmetric.symmetric_forest import symmetric_trees
from chorale.synth.methods.forest.warm_start import reused_trees
from chorale.synth.methods.grid.algorithms import swing_latency
from chorale.synth.methods.method import Options
from chorale.synth.methods.traffic.matrix import zipf_matrix
from chorale.synth.methods.traffic.planner import plan_traffic
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.simulation.simulate import as_fidelity, simulate
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.lift import lift
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.abilities import SwitchAbility
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.distance import diameter, hops_between_all
from chorale.synth.topology.families.directed import SemidirectProduct
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import isomorphism, transitive_symmetries
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from tests.conformance.kernel_comparison import comparing

SERIAL = SerialExecutor()


def ring(nodes: int, slowest: Fraction = Fraction(1)) -> Topology:
    ways = (1, nodes - 1)
    links = Links.build(
        Link(node, (node + way) % nodes, slowest if node else Fraction(1)) for node in range(nodes) for way in ways
    )
    return Topology("small", tuple(map(str, range(nodes))), nodes, links)


def networks() -> None:
    for slowest in (Fraction(1), Fraction(1, 2)):
        topology = ring(4, slowest)
        is_automorphism(topology, np.arange(4))
        isomorphism(topology, topology)
        diameter(topology)
        optimum(topology, ALLGATHER)
        for options in (Options(chunks=1), None):
            synthesize("bfb", topology, ALLREDUCE, options, SERIAL)
    transitive_symmetries(ring(6))
    links = ring(6).links
    hops_between_all(links.incoming_offsets(6), links.src)


def exchanges() -> None:
    links = Links.build([Link(node, (node + 1) % 4) for node in range(4)] + [Link(2, 0), Link(1, 1)])
    network = Topology("small", ("0", "1", "2", "3"), 4, links)
    for method in METHODS:
        alltoall_rate(network, Fraction(1, 10), method)
    alltoall_rate(parse_topology("torus:3x3"), Fraction(1, 10))
    verify(alltoall_schedule(network))
    plan_traffic(network, zipf_matrix(4, 1.0, seed=0))
    ColourTable(1).number(np.arange(40, dtype=np.uint64) % np.uint64(7))


def trees() -> None:
    network = forest_network(parse_topology("torus:3x3"), Fraction(8), np.full(9, 4, dtype=np.int64))
    pack_trees(network)
    for rollbacks in (1, 0):
        pack_trees(network, "trees", rollbacks=rollbacks)
    rooted_trees(arc_table_of(network), network.capacity.copy(), np.where(np.arange(9) == 4, 4, 0))
    wires = ((0, 4), (1, 4), (2, 5), (3, 5), (4, 5))
    switched = Topology(
        "small", tuple("012345"), 4, Links.build(Link(*ends) for wire in wires for ends in (wire, wire[::-1]))
    )
    fabric = forest_network(switched, Fraction(3), np.ones(4, dtype=np.int64))
    cut_table(fabric, np.arange(6)[None] < 1)
    split = remove_switches(fabric)
    packed = pack_trees(split.network)
    old = synthesize("forest", parse_topology("torus:3x3"), ALLGATHER, Options(k=2), SERIAL).schedule
    reused_trees(old, parse_topology("torus:3x3"), network)
    tree_schedule(switched, ALLGATHER, Fraction(3), split, packed, method="forest", parameters={}, certificate={})


def switches_that_add() -> None:
    pair = ((0, 2), (1, 2))
    links = Links.build(Link(*ends, latency_s=Fraction(1)) for wire in pair for ends in (wire, wire[::-1]))
    able = {2: SwitchAbility(multicast=True, reduce=True)}
    synthesize("in-network", Topology("small", ("0", "1", "s"), 2, links, abilities=able), ALLREDUCE, None, SERIAL)


def trees_of_a_block() -> None:
    for spec in ("a100:3", "mi250:4", "dragonfly:3,2,1"):
        symmetric_trees(parse_topology(spec))


def finder() -> None:
    loads_of_low_diameter(np.array([[2], [0], [1]], dtype=np.int32), np.arange(3), 3)
    for degree, nodes in ((2, 7), (4, 10)):
        kautz_loads(degree, nodes, gcd(degree, nodes))
    table = multiplication_table(SemidirectProduct(3, 2, 2))
    best_generators(table, 2, False, 4, 64, 1)


def programs() -> None:
    pair = Topology("small", ("0", "1"), 2, Links.build([Link(0, 1), Link(1, 0)]))
    verify(swing_latency(pair, ALLREDUCE).schedule())
    for target in ("oneccl-xml", "msccl-xml", "mscclpp-json"):
        check_program(lower(synthesize("bfb", ring(4), ALLREDUCE, None, SERIAL), LoweringOptions(target, fuse=True)))
    for protocol in ("Simple", "LL"):
        options = LoweringOptions("mscclpp-json", protocol=protocol, ranks_per_box=2)
        check_program(plan_of(lower(synthesize("bfb", ring(4), ALLREDUCE, None, SERIAL), options)))
    for target in ("oneccl-xml", "msccl-xml"):
        program = lower(synthesize("bfb", ring(4), ALLREDUCE, None, SERIAL), LoweringOptions(target, in_place=False))
        lift(target_named(target).emit(program).encode())
    expanded = synthesize("double-binary-tree", ring(5), ALLREDUCE, None, SERIAL).schedule.expand()
    timetable_of(expanded, expanded.transfers)
    traffic = traffic_of(synthesize("ring", ring(3), ALLREDUCE, None, SERIAL).schedule)
    for fidelity in ("step", "flow"):
        simulate(traffic, NetworkModel.of(link_gbps=1), [1], as_fidelity(fidelity))


@pytest.mark.timeout(300)
def test_machine_code_and_text_of_every_kernel_do_the_same():
    with comparing() as compared:
        for work in (networks, exchanges, trees, switches_that_add, trees_of_a_block, finder, programs):
            work()
    assert {kernel.__qualname__ for kernel in KERNELS} - compared == set()
