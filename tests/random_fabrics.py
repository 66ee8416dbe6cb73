"""Small random fabrics by seed: ranks and switches, links both ways or in directed cycles."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from chorale.synth.topology.topology import Link, Links, Topology

WHOLE = tuple(map(Fraction, (1, 2, 3, 4, 10, 25)))
RATIONAL = (Fraction(1), Fraction(1, 2), Fraction(7, 3), Fraction(25, 4), Fraction(10, 3), Fraction(6))


def random_fabric(seed: int) -> Topology:
    """Return 2 to 7 ranks and 0 to 4 switches, strongly connected and Eulerian.

    Odd seeds have links both ways, even ones directed cycles; every second pair of seeds has rational bandwidths.
    """
    random = np.random.default_rng(seed)
    ranks, switches = int(random.integers(2, 8)), int(random.integers(0, 5))
    bandwidths = RATIONAL if seed % 4 >= 2 else WHOLE
    links = (
        _both_ways(random, ranks + switches, bandwidths) if seed % 2 else _cycles(random, ranks + switches, bandwidths)
    )
    names = [str(rank) for rank in range(ranks)] + [f"s{index}" for index in range(switches)]
    return Topology(f"random {seed}", tuple(names), ranks, Links.build(links), "GB/s")


def with_parallel_links(topology: Topology, seed: int) -> Topology:
    """Return `topology` with some links cut into parallel ones of a third and two thirds."""
    random = np.random.default_rng(seed)
    links = []
    for link in topology.links:
        parts = (Fraction(1, 3), Fraction(2, 3)) if random.integers(0, 2) else (Fraction(1),)
        links += [link._replace(bandwidth=link.bandwidth * part) for part in parts]
    return replace(topology, links=Links.build(links))


def _both_ways(random: np.random.Generator, nodes: int, bandwidths: Sequence[Fraction]) -> list[Link]:
    order = random.permutation(nodes).tolist()
    pairs = [(order[int(random.integers(0, place))], order[place]) for place in range(1, nodes)]
    pairs += [tuple(random.choice(nodes, 2, replace=False).tolist()) for _ in range(random.integers(0, 2 * nodes))]
    links = []
    for first, second in pairs:
        width = bandwidths[random.integers(len(bandwidths))]
        links += [Link(first, second, width), Link(second, first, width)]
    return links


def _cycles(random: np.random.Generator, nodes: int, bandwidths: Sequence[Fraction]) -> list[Link]:
    links = []
    for length in [nodes, *random.integers(2, nodes + 1, random.integers(0, nodes)).tolist()]:
        width = bandwidths[random.integers(len(bandwidths))]
        cycle = random.permutation(nodes)[:length].tolist()
        links += [Link(cycle[place - 1], cycle[place], width) for place in range(length)]
    return links
