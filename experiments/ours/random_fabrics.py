"""Small random networks with equal bandwidth both ways, some of whose switches multicast and add."""

from __future__ import annotations

import random
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.abilities import SwitchAbility
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology

_WIDTHS = (1, 1, 2, 3, 4)
_ABLE_SHARE = 0.7


def random_able_fabric(seed: int, most_ranks: int = 7, most_switches: int = 4) -> Topology:
    """Return a connected network of 2 to `most_ranks` ranks and up to `most_switches` switches, one of them able."""
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
