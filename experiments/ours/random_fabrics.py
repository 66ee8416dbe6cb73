"""Small random networks some of whose switches multicast and add."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.abilities import SwitchAbility
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology

_WIDTHS = (1, 1, 2, 3, 4)
_ABLE_SHARE = 0.7


def random_able_fabric(seed: int, most_ranks: int = 7, most_switches: int = 4) -> Topology:
    """Return a connected network of 2 to `most_ranks` ranks and up to `most_switches` switches, one of them able.

    Links are as wide both ways.
    """
    source = random.Random(seed)  # noqa: S311 - a sample of networks, not a secret
    while True:
        ranks, switches = source.randint(2, most_ranks), source.randint(1, most_switches)
        nodes = range(ranks + switches)
        width = {(source.randrange(node), node): source.choice(_WIDTHS) for node in nodes[1:]}
        for _ in range(source.randint(0, len(nodes))):
            low, high = sorted(source.sample(nodes, 2))
            width[low, high] = source.choice(_WIDTHS)
        able = {node: SwitchAbility(True, True) for node in nodes[ranks:] if source.random() < _ABLE_SHARE}
        links = [Link(src, dst, Fraction(value)) for (src, dst), value in width.items()]
        links += [Link(link.dst, link.src, link.bandwidth) for link in links]
        names = tuple(map(str, nodes))
        try:
            if able:
                return check_topology(Topology(f"random {seed}", names, ranks, Links.build(links), abilities=able))
        except InvalidInput:
            continue


_ABILITIES = (SwitchAbility(reduce=True), SwitchAbility(multicast=True), SwitchAbility(True, True))
_MORE_LINKS = 2
_LIMITED_SHARE = 0.2


def random_mixed_fabric(seed: int, most_ranks: int = 5, most_switches: int = 3) -> Topology:
    """Return a network with two to three times the links of `random_able_fabric`, whose switches differ.

    Links are up to twice as wide one way as the other on every second network. Each switch that acts adds, multicasts
    or does both; every fifth that adds makes 1/2, 1 or 2 sums per second.
    """
    source = random.Random(seed)  # noqa: S311 - a sample of networks, not a secret
    sparse = random_able_fabric(seed, most_ranks, most_switches)
    nodes = range(sparse.node_count)
    width = {(link.src, link.dst): link.bandwidth for link in sparse.links}
    for _ in range(_MORE_LINKS * len(nodes)):
        low, high = source.sample(nodes, 2)
        width[low, high] = width[high, low] = Fraction(source.choice(_WIDTHS))
    if source.random() < 0.5:
        width = {ends: value * source.choice((1, 2)) for ends, value in width.items()}
    able = {node: source.choice(_ABILITIES) for node in sparse.abilities}
    for node, ability in able.items():
        if ability.reduce and source.random() < _LIMITED_SHARE:
            able[node] = replace(ability, reduce_bandwidth=source.choice((Fraction(1, 2), Fraction(1), Fraction(2))))
    links = Links.build(Link(*ends, value) for ends, value in width.items())
    network = Topology(f"mixed {seed}", sparse.node_ids, sparse.compute_count, links, abilities=able)
    return check_topology(network)
