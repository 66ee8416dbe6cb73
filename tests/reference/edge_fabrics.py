"""Random fabrics at the edges of what is allowed, by seed: the generator of `tests.reference.claims`."""

import random
from fractions import Fraction

from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology

USUAL = tuple(map(Fraction, (1, 1, 2, 3, 10, 25, 50, 100, 300, 450)))
DECIMAL = tuple(map(Fraction, ("46.875", "12.5", "0.3", "31.5", "185.4", "2.25", "5/11", "1/3", "2/7", "7/3")))


def edge_fabric(seed: int, most_ranks: int = 5, most_switches: int = 2, latencies: bool = False) -> Topology:
    """Return 2 to `most_ranks` ranks, strongly connected: links both ways or in cycles, parallel ones too.

    Every fourth seed has capacities over eighteen orders of magnitude, the others usual or decimal ones or a mixture.
    Switches need not pass on as much as they get.
    """
    rng = random.Random(seed)
    ranks, switches = rng.randint(2, most_ranks), rng.randint(0, most_switches)
    nodes = list(range(ranks + switches))
    pairs = _pairs(rng, nodes)
    links = [
        Link(src, dst, _bandwidth(rng, seed % 4), _latency(rng) if latencies else Fraction(0)) for src, dst in pairs
    ]
    names = tuple(str(node) for node in nodes)
    return Topology(f"edge {seed}", names, ranks, Links.build(links), "GB/s")


def _pairs(rng: random.Random, nodes: list[int]) -> list[tuple[int, int]]:
    order = rng.sample(nodes, len(nodes))
    pairs = [(order[place - 1], order[place]) for place in range(len(order))]
    if rng.random() < 0.5:  # a tree both ways in place of a cycle
        tree = [(order[rng.randrange(place)], order[place]) for place in range(1, len(order))]
        pairs = tree + [(dst, src) for src, dst in tree]
    for _ in range(rng.randint(0, 2 * len(nodes))):
        src, dst = rng.sample(nodes, 2)
        pairs += [(src, dst)] * rng.choice((1, 1, 1, 2, 4)) + ([(dst, src)] if rng.random() < 0.5 else [])
    return pairs


def _bandwidth(rng: random.Random, kind: int) -> Fraction:
    if kind == 0:
        return Fraction(rng.randint(1, 9)) * Fraction(10) ** rng.randint(-9, 8)
    return rng.choice((USUAL, DECIMAL, USUAL + DECIMAL)[kind - 1])


def _latency(rng: random.Random) -> Fraction:
    return Fraction(rng.choice((0, 0, 1, 1000, 5000, 20000)), 10**9)
