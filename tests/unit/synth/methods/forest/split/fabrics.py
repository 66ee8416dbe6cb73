"""Random switched fabrics, and the networks that carry their trees with nothing to spare."""

from collections import defaultdict
from fractions import Fraction

import numpy as np

from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER
from chorale.synth.methods.forest.network import ForestNetwork, forest_network
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology
from tests.reference.crossing_cuts import Arc, violated_sink_sides


def random_fabric(seed: int) -> Topology:
    """Return 2 to 6 ranks and up to 4 switches, strongly connected, every node with as much bandwidth in as out."""
    random = np.random.default_rng(seed)
    ranks, switches = int(random.integers(2, 7)), int(random.integers(0, 5))
    nodes = ranks + switches
    one_way = bool(random.integers(0, 2))
    rates: dict[tuple[int, int], Fraction] = defaultdict(Fraction)
    for number in range(int(random.integers(1, 2 + nodes))):
        length = nodes if number == 0 else int(random.integers(2, nodes + 1))
        cycle = random.permutation(nodes)[:length].tolist()
        rate = Fraction(int(random.integers(1, 7)), int(random.integers(1, 3)))
        for here, there in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            rates[here, there] += rate
            if not one_way:
                rates[there, here] += rate
    links = Links.build(Link(*ends, rate) for ends, rate in rates.items())
    names = tuple(map(str, range(ranks))) + tuple(f"s{switch}" for switch in range(switches))
    return Topology(f"random {seed}", names, ranks, links)


def optimal_network(topology: Topology, k: int | None = None) -> ForestNetwork:
    """Return the network of the bandwidth optimum, with `k` trees per rank if given."""
    best = optimum(topology, ALLGATHER) if k is None else fixed_k_optimum(topology, ALLGATHER, k)
    supply = np.full(topology.compute_count, best.k, dtype=np.int64)
    return forest_network(topology, best.trees_per_bandwidth, supply)


def carries(network: ForestNetwork) -> bool:
    """Whether every cut holds, tried one by one."""
    sinks = range(network.compute_count)
    return next(violated_sink_sides(network.nodes, arcs_of(network), network.supply.tolist(), sinks), None) is None


def arcs_of(network: ForestNetwork) -> list[Arc]:
    return list(zip(network.src.tolist(), network.dst.tolist(), network.capacity.tolist(), strict=True))
