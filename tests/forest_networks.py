"""Networks to pack trees into: random ones whose cuts are as tight as they can be, and large regular ones."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from random import Random

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import Optimum, fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, Collective
from chorale.synth.methods.forest.forest import tree_schedule
from chorale.synth.methods.forest.network import ForestNetwork, network_of_links, trees_on_links
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.switch_removal import remove_switches
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology
from tests.reference.cuts import Arc, violated_sink_sides


def network_of(nodes: int, arcs: Sequence[Arc], supply: Sequence[int]) -> ForestNetwork:
    """Return the network of these arcs; parallel ones are added up, self-loops and empty ones left out."""
    total = Counter[tuple[int, int]]()
    for src, dst, amount in arcs:
        total[dst, src] += amount if src != dst else 0
    kept = sorted(pair for pair, amount in total.items() if amount)
    return ForestNetwork(
        nodes, nodes, np.array([src for _, src in kept], dtype=np.int32), np.array([dst for dst, _ in kept], np.int32),
        np.array([total[pair] for pair in kept], dtype=np.int64), np.array(supply, dtype=np.int64),
    )  # fmt: skip


def can_be_packed(nodes: int, arcs: Sequence[Arc], supply: Sequence[int]) -> bool:
    """Whether all cuts hold, by trying all of them."""
    return next(violated_sink_sides(nodes, arcs, supply, range(nodes)), None) is None


def random_arcs(random: Random, nodes: int) -> list[Arc]:
    """Return arcs of one of three kinds: in pairs of two ways, along cycles (Eulerian, one-way), or any."""
    kind, arcs = random.choice(("pairs", "cycles", "any")), []
    for _ in range(random.randint(nodes, 4 * nodes)):
        amount = random.randint(1, 5)
        ring = random.sample(range(nodes), random.randint(2, nodes) if kind == "cycles" else 2)
        if kind == "any":
            arcs.append((ring[0], ring[1], amount))
        else:
            arcs += [(ring[i - 1], ring[i], amount) for i in range(len(ring))]
    return arcs


def random_supply(random: Random, nodes: int) -> list[int]:
    """Return as many trees everywhere, some here and there, or all from one root."""
    kind = random.choice(("equal", "any", "single"))
    if kind == "equal":
        return [random.randint(1, 3)] * nodes
    if kind == "any":
        return [random.randint(0, 3) for _ in range(nodes)]
    root = random.randrange(nodes)
    return [random.randint(1, 9) if node == root else 0 for node in range(nodes)]


def tight_network(random: Random, most_nodes: int = 6) -> tuple[int, list[Arc], list[int]]:
    """Return nodes, arcs and a supply that is raised until a cut is full, or cannot be packed from the start."""
    nodes = random.randint(2, most_nodes)
    arcs, supply = random_arcs(random, nodes), random_supply(random, nodes)
    for _ in range(20):
        more = list(supply)
        more[random.choice([node for node in range(nodes) if supply[node]] or [0])] += 1
        if not can_be_packed(nodes, arcs, more):
            break
        supply = more
    return nodes, arcs, supply


def boxes(count: int, ranks: int, inside: int, across: int, supply: int = 1) -> ForestNetwork:
    """Return boxes of `ranks` nodes: `inside` units between any two of a box, `across` between equal ranks."""
    arcs = []
    for node in range(count * ranks):
        box, rank = divmod(node, ranks)
        arcs += [(node, box * ranks + other, inside) for other in range(ranks) if other != rank]
        arcs += [(node, other * ranks + rank, across) for other in range(count) if other != box]
    return network_of(count * ranks, arcs, [supply] * (count * ranks))


def torus(rows: int, columns: int) -> ForestNetwork:
    """Return a torus at its optimum: four trees from every node fill all arcs."""
    nodes = rows * columns
    arcs = []
    for node in range(nodes):
        row, column = divmod(node, columns)
        for down, right in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            arcs.append((node, (row + down) % rows * columns + (column + right) % columns, nodes - 1))
    return network_of(nodes, arcs, [4] * nodes)


def forest_network(topology: Topology, trees_per_bandwidth: Fraction, supply: NDArray[np.int64]) -> ForestNetwork:
    """Return the network in which a link of bandwidth b carries floor(U * b) trees, U = `trees_per_bandwidth`."""
    return network_of_links(topology, trees_on_links(topology, trees_per_bandwidth), supply)


def optimal_network(topology: Topology, k: int | None = None) -> ForestNetwork:
    """Return the network of the bandwidth optimum, with `k` trees per rank if given."""
    best = optimum(topology, ALLGATHER) if k is None else fixed_k_optimum(topology, ALLGATHER, k)
    supply = np.full(topology.compute_count, best.k, dtype=np.int64)
    return forest_network(topology, best.trees_per_bandwidth, supply)


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
