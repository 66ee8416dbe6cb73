"""Assigns hosts to a network's nodes so that as many existing cables as possible stay in place.

This is a quadratic assignment problem. Two SciPy heuristics, a fast approximate method and then swaps of two nodes, are
run from several starting points. The best assignment that they find is used, so a better one may exist.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.lazy_modules import optimize
from chorale.synth.topology.topology import Topology

MAX_PLACED_NODES = 512
_STARTS = 6
_MAX_SWAPPED = 64
"""Maximum number of nodes for which swaps are tried. SciPy tries all pairs, which takes seconds for larger networks."""
_STARTS_OF_SMALL = 40  # for networks of up to _MAX_SWAPPED nodes; takes half a second for 24 nodes

Cable = tuple[str, str]
"""The two hosts of a cable: sorted by name in a two-way network, otherwise in the direction of the cable."""


@dataclass(frozen=True, slots=True)
class Cabling:
    """An assignment of ranks to hosts, and the cables that must be changed for it.

    hosts:   host of each rank
    kept:    existing cables that stay in place
    added:   cables that the topology needs and that do not exist yet
    removed: existing cables that the topology does not need
    """

    hosts: tuple[str, ...]
    kept: tuple[Cable, ...]
    added: tuple[Cable, ...]
    removed: tuple[Cable, ...]

    @property
    def moves(self) -> int:
        """Number of cables that must be added. Removed cables can be reused for them."""
        return len(self.added)


def place_nodes(topology: Topology, hosts: Sequence[str], cables: Sequence[Cable], two_way: bool) -> Cabling:
    """Assign the nodes of `topology` to `hosts` so that as many of the existing `cables` as possible are kept.

    The assignment comes from heuristics, so a better one may exist. If there are fewer hosts than nodes, additional
    hosts are named `new1`, `new2`, …. Self-loops need no cable.

    Raises:
        InvalidInput: if there are more hosts than ranks, more than `MAX_PLACED_NODES` ranks, or any switches.
    """
    count = topology.compute_count
    if topology.switch_count or count > MAX_PLACED_NODES:
        rule = f"cables are placed in networks of at most {MAX_PLACED_NODES} nodes without switches"
        raise InvalidInput(rule, topology.spec, "choose a smaller direct-connect network")
    if len(hosts) > count:
        rule = "the network has fewer nodes than there are hosts with cables: {}"
        raise InvalidInput(rule, f"{len(hosts)} hosts and {count} nodes", "ask for more nodes, or leave cables out")
    ordered = sorted(hosts, key=lambda host: [(len(part), part) for part in re.split(r"(\d+)", host)])  # n2 before n10
    names = [*ordered, *(f"new{number}" for number in range(1, count - len(hosts) + 1))]
    number_of = {name: number for number, name in enumerate(names)}
    present = np.zeros((count, count))
    for one, other in cables:
        present[number_of[one], number_of[other]] += 1
        if two_way:
            present[number_of[other], number_of[one]] += 1
    wanted = np.zeros((count, count))
    np.add.at(wanted, (topology.links.src, topology.links.dst), 1)
    np.fill_diagonal(wanted, 0)
    at = _best_place(wanted, present) if cables else np.arange(count)
    placed = tuple(names[host] for host in at)
    new: Counter[Cable] = Counter()
    for src, dst in zip(*(ends.tolist() for ends in np.nonzero(wanted)), strict=True):
        one, other = placed[src], placed[dst]
        if not two_way or one < other:
            new[one, other] += int(wanted[src, dst])
    old = Counter(cables)
    kept, added, removed = new & old, new - old, old - new
    return Cabling(placed, *(tuple(sorted(part.elements())) for part in (kept, added, removed)))


def _best_place(wanted: NDArray[np.float64], present: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the host index of each node in the best assignment found from several starting points."""
    rng = np.random.default_rng(0)
    best, most = np.arange(len(wanted)), -1.0
    for start in range(_STARTS_OF_SMALL if len(wanted) <= _MAX_SWAPPED else _STARTS):
        if start == 0:
            at = best
        else:
            at = optimize.quadratic_assignment(
                wanted, present, method="faq", options={"maximize": True, "rng": rng, "P0": "randomized"}
            ).col_ind
        if len(at) <= _MAX_SWAPPED:
            guess = np.column_stack([np.arange(len(at)), at])
            at = optimize.quadratic_assignment(
                wanted, present, method="2opt", options={"maximize": True, "rng": rng, "partial_guess": guess}
            ).col_ind
        kept = float(np.minimum(wanted, present[np.ix_(at, at)]).sum())
        if kept > most:
            best, most = at, kept
        if most == np.minimum(wanted.sum(), present.sum()):
            break
    return best
