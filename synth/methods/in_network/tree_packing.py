"""Trees that span all compute nodes of a relabelled network, as trees of the network that it came from."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from chorale.synth.bounds.residual_graph import LARGEST_AMOUNT, Integers
from chorale.synth.bounds.tree_pairs import trim_at_switches
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.forest.network import network_of_links
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.split.cut_table import find_violated_cuts
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import tree_transfers
from chorale.synth.methods.in_network.reversible_trees import ReversibleTrees
from chorale.synth.methods.in_network.undirected_split import UndirectedSplit
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.relabelling import Relabelled
from chorale.synth.topology.topology import Topology

MAX_UNITS = 2**22
"""Where so many lose nothing, they are packed as they are: weights of trees may be large."""
_ROUNDED_UNITS = 2**17
_HALVINGS = 16


@dataclass(frozen=True, slots=True, eq=False)
class WholeUnits:
    """A split in whole units. supply: int64 per compute node;  carried: int64 per link, of out-trees."""

    supply: Integers
    carried: Integers


def whole_units(relabelled: Relabelled, split: UndirectedSplit, units: int | None) -> WholeUnits:
    """Return `split` in the fewest units that lose nothing, or in about `units` units, all cuts counted.

    Where losing nothing would take more than `MAX_UNITS`, there are about 2^17. Roots get them in proportion to
    their rates; the scale is the least one found at which all cuts carry them. InvalidInput where there is none.
    """
    values = (*split.roots, *split.outward)
    exact = lcm(*(value.denominator for value in values))
    if units is None and exact * split.rate <= MAX_UNITS and _is_small(relabelled, exact):
        whole = _rounded_down(relabelled, split, _roots(relabelled, [int(root * exact) for root in split.roots]), exact)
        if _fits(relabelled, whole):
            return whole
    supply = _roots(relabelled, _apportioned(split, units or _ROUNDED_UNITS))
    return _least_scale(relabelled, split, supply)


def _is_small(relabelled: Relabelled, scale: Fraction | int) -> bool:
    return scale * max(relabelled.network.links.bandwidths) * len(relabelled.network.links) < LARGEST_AMOUNT


def _roots(relabelled: Relabelled, counts: list[int]) -> Integers:
    supply = np.zeros(relabelled.network.compute_count, dtype=np.int64)
    supply[: len(counts)] = counts
    return supply


def _apportioned(split: UndirectedSplit, units: int) -> list[int]:
    """Return `units` in proportion to the rates of roots; what is left over goes to the largest remainders."""
    shares = [root * units / split.rate for root in split.roots]
    whole = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda root: whole[root] - shares[root])
    for root in by_remainder[: units - sum(whole)]:
        whole[root] += 1
    return whole


def _least_scale(relabelled: Relabelled, split: UndirectedSplit, supply: Integers) -> WholeUnits:
    low = high = int(supply.sum()) / split.rate
    while not _fits(relabelled, whole := _rounded_down(relabelled, split, supply, high)):
        low, high = high, 2 * high
        if not _is_small(relabelled, high):  # one that is almost right, but for a cut without any bandwidth
            rule = "the links of a split must carry its trees, in amounts of 64 bits"
            raise InvalidInput(rule, relabelled.network.spec, "leave these switches as they are")
    for _ in range(_HALVINGS if low < high else 0):
        middle = (low + high) / 2
        if _fits(relabelled, tried := _rounded_down(relabelled, split, supply, middle)):
            high, whole = middle, tried
        else:
            low = middle
    return whole


def _rounded_down(
    relabelled: Relabelled, split: UndirectedSplit, supply: Integers, scale: Fraction | int
) -> WholeUnits:
    """Return `split` times `scale` in whole units per link: there and back of a link together fit into it.

    Of parallel links the first carry what goes there, the last what comes back.
    """
    network, arcs = relabelled.network, split.arcs
    links, nodes = network.links, network.node_count
    demand = {
        int(src) * nodes + int(dst): int(scale * amount)
        for src, dst, amount in zip(arcs.src, arcs.dst, split.outward, strict=True)
    }
    room = np.array([int(scale * width) for width in links.bandwidths], dtype=np.int64)[links.bandwidth_class]
    carried = np.zeros(len(links), dtype=np.int64)
    parallel = links.parallel_index().tolist()
    by_pair: dict[int, list[int]] = {}
    for link, (src, dst) in enumerate(zip(links.src.tolist(), links.dst.tolist(), strict=True)):
        by_pair.setdefault(src * nodes + dst, []).append(link)
    for key, members in by_pair.items():
        src, dst = divmod(key, nodes)
        ordered = sorted(members, key=lambda link: parallel[link], reverse=src > dst)
        left = demand[key]
        for link in ordered:
            carried[link] = min(left, int(room[link]))
            left -= int(carried[link])
    _keep_both_ways(by_pair, nodes, parallel, room, carried)
    trim_at_switches(network, links.src, links.dst, carried)
    return WholeUnits(supply, carried)


def _keep_both_ways(
    by_pair: dict[int, list[int]], nodes: int, parallel: list[int], room: Integers, carried: Integers
) -> None:
    """Take from links that carry more both ways together than fits."""
    for key, members in by_pair.items():
        src, dst = divmod(key, nodes)
        if src > dst:
            continue
        back = {parallel[link]: link for link in by_pair[dst * nodes + src]}
        for link in members:
            other = back[parallel[link]]
            excess = int(carried[link] + carried[other] - room[link])
            if excess > 0:
                taken = min(excess, int(carried[other]))
                carried[other] -= taken
                carried[link] -= excess - taken


def _fits(relabelled: Relabelled, whole: WholeUnits) -> bool:
    network = network_of_links(relabelled.network, whole.carried, whole.supply)
    return len(find_violated_cuts(network, 1)) == 0


def packed_trees(topology: Topology, relabelled: Relabelled, whole: WholeUnits, options: Options) -> ReversibleTrees:
    """Return trees of `topology` that carry all units; contracted groups are not joined within yet.

    Raises InvalidInput where a switch stands in the way, as `remove_switches` does.
    """
    network = relabelled.network
    split = remove_switches(network_of_links(network, whole.carried, whole.supply), names=network.node_ids)
    packed = pack_trees(split.network, options.objective, options.seed)
    rows = tree_transfers(network, whole.carried, split, packed)
    before = np.cumsum(whole.supply) - whole.supply
    lo, hi = before[rows.root] + rows.lo, before[rows.root] + rows.hi
    tree = np.searchsorted(np.cumsum(packed.weight), lo, side="right")
    routes = Routes(rows.routes.offsets, relabelled.origin[rows.routes.link_ids])
    links = topology.links
    route = rows.route.astype(np.int64)
    src, dst = routes.sources(links)[route], routes.destinations(links)[route]
    return ReversibleTrees(
        packed.root.astype(np.int64), packed.weight, tree, src.astype(np.int64), dst.astype(np.int64), route, lo, hi,
        routes,
    )  # fmt: skip
