"""Independent checkers of bounds in their JSON-able form; they share no code with the search for bounds.

A bound proves that nothing is faster; that something is as fast is proved by a verified schedule of that time.
For pairs of trees: roots of rate x, out-trees of bandwidth a and in-trees of bandwidth r per link obey, for every set T
with a rank, x(outside T) <= a(into T) and x(outside T) <= r(out of T); every switch gets at least what it passes on
of a, and passes on at least what it gets of r; a + r <= b. Weights on these facts add up to a bound on the sum of x.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from chorale.synth.bounds.alltoall_certificate import check_alltoall_certificate
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology

_KINDS = {
    CollectiveName.ALLGATHER: ("into",),
    CollectiveName.REDUCE_SCATTER: ("out-of",),
    CollectiveName.ALLREDUCE: ("into", "out-of", "received", "sent"),
    CollectiveName.BROADCAST: ("into",),
    CollectiveName.REDUCE: ("out-of",),
    CollectiveName.ALLTOALL: ("into", "out-of", "alltoall-prices"),
    CollectiveName.ALLGATHERV: ("into",),
    CollectiveName.REDUCE_SCATTERV: ("out-of",),
}


def check_certificate(topology: Topology, collective: Collective, certificate: Mapping[str, Any]) -> Fraction:
    """Return the time per byte that `certificate` proves for `collective`; raise CheckFailed if it proves less.

    O(links + size of the certificate), plain Python, exact.
    """
    kind = certificate.get("kind")
    if kind not in _KINDS.get(collective.name, ()):
        raise _failure(f"{kind} for {collective}")
    claimed = _rational(certificate.get("time_per_byte"))
    if kind in ("received", "sent"):
        proved = _by_groups(topology, certificate, kind == "sent")
    elif kind == "alltoall-prices":
        proved = 1 / (check_alltoall_certificate(topology, certificate) * topology.compute_count)
    else:
        proved = _by_cut(topology, collective, certificate, kind == "out-of")
    if claimed > proved:
        raise _failure(f"{claimed} claimed, {proved} proved")
    return claimed


def _by_cut(topology: Topology, collective: Collective, certificate: Mapping[str, Any], outward: bool) -> Fraction:
    inside = _nodes(topology, certificate.get("nodes"))
    crossing = _crossing(topology, inside, outward)
    if not crossing:
        raise _failure("a cut without links")
    moved = _moved(topology, collective, inside)
    if certificate.get("k") is None:
        return moved / sum(crossing, Fraction(0))
    if collective.name in (CollectiveName.ALLREDUCE, CollectiveName.ALLTOALL) or collective.sizes is not None:
        raise _failure(f"trees per shard for {collective}")
    shards = 1 if collective.is_rooted else topology.compute_count
    return (
        _by_trees(crossing, certificate["k"], moved * shards, _rational(certificate.get("time_per_byte")) * shards)
        / shards
    )


def _moved(topology: Topology, collective: Collective, inside: set[int]) -> Fraction:
    """Return the part of the vector that must cross the cut one way."""
    ranks = topology.compute_count
    within = sum(1 for node in inside if node < ranks)
    if not 0 < within < ranks:
        raise _failure("a cut that does not part the ranks")
    if collective.is_rooted:
        return Fraction(int(collective.root not in inside))
    if collective.name == CollectiveName.ALLREDUCE:
        return Fraction(1)
    if collective.sizes is not None:
        outside = sum(size for rank, size in enumerate(collective.sizes) if rank not in inside)
        return Fraction(outside, sum(collective.sizes))
    if collective.name == CollectiveName.ALLTOALL:
        return Fraction(within * (ranks - within), ranks)
    return Fraction(ranks - within, ranks)


def _by_trees(crossing: list[Fraction], k: object, shards: Fraction, time_per_shard: Fraction) -> Fraction:
    """Return `time_per_shard` if k trees for each of `shards` cannot cross in less, else 0.

    In any less time a link of bandwidth b carries fewer than k * b * time_per_shard trees, a whole number of them.
    """
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        raise _failure(f"k = {k}")
    carried = sum(ceil(k * bandwidth * time_per_shard) - 1 for bandwidth in crossing)
    return time_per_shard if carried < k * shards else Fraction(0)


def _by_groups(topology: Topology, certificate: Mapping[str, Any], outward: bool) -> Fraction:
    """Return 2 (groups - 1) over the bandwidth into all groups of ranks, plus what adders outside save.

    Contract every group to one process: p processes cannot add up an item and know the sum with fewer than
    2 (p - 1) messages, since the first that knows it has p - 1 messages in its past, and each other one gets another.
    """
    parts = certificate.get("parts")
    if not isinstance(parts, list):
        raise _failure("no parts")
    groups = [_nodes(topology, part) for part in parts]
    ranks = [{node for node in group if node < topology.compute_count} for group in groups]
    covered = set().union(*ranks)
    limited = _outside_sums(topology, groups, outward) if certificate.get("in_network") else Fraction(0)
    if not all(ranks) or len(covered) != sum(map(len, ranks)):
        raise _failure("groups without ranks or with ranks in common")
    groups += [{rank} for rank in range(topology.compute_count) if rank not in covered]
    member: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        for node in group:
            member.setdefault(node, []).append(index)
    crossings = Counter[int]()
    for near, far, bandwidth_class in _ends(topology, outward):
        crossings[bandwidth_class] += sum(1 for index in member.get(near, ()) if far not in groups[index])
    bandwidth = sum(topology.links.bandwidths[place] * count for place, count in crossings.items())
    count = len(groups)
    if count < 2:
        raise _failure("a single group")
    if bandwidth < count * limited:
        return count / Fraction(bandwidth)
    return 2 * (count - 1) / (Fraction(bandwidth) + limited * (count - 2))


def _outside_sums(topology: Topology, groups: list[set[int]], outward: bool) -> Fraction:
    """Return the most that adders outside of all groups add where receipts are counted.

    Switches that add (that multicast, where sends are counted) must be part of one process; an adder with a limit may
    stay outside where receipts are counted, since each process still receives once of whatever it takes part in.
    """
    limited = Fraction(0)
    for node, ability in topology.abilities.items():
        times = sum(node in group for group in groups)
        if times > 1:
            raise _failure(f"{topology.node_ids[node]} in {times} groups")
        if times == 0 and not outward and ability.reduce and ability.reduce_bandwidth is not None:
            limited += ability.reduce_bandwidth
        elif times == 0 and (ability.multicast if outward else ability.reduce):
            raise _failure(f"{topology.node_ids[node]} in no group, which adds or multicasts")
    return limited


def _crossing(topology: Topology, inside: set[int], outward: bool) -> list[Fraction]:
    """Return the bandwidths of the links into (out of) `inside`."""
    links = topology.links
    near, far = (links.src, links.dst) if outward else (links.dst, links.src)
    member = np.zeros(topology.node_count, dtype=bool)
    member[list(inside)] = True
    crossing = links.bandwidth_class[member[near] & ~member[far]]
    return [links.bandwidths[bandwidth_class] for bandwidth_class in crossing.tolist()]


def _ends(topology: Topology, outward: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (end in question, other end, place of the bandwidth in the table) of every link."""
    links = topology.links
    near, far = (links.src, links.dst) if outward else (links.dst, links.src)
    return zip(near.tolist(), far.tolist(), links.bandwidth_class.tolist(), strict=True)


def _nodes(topology: Topology, names: object) -> set[int]:
    if not isinstance(names, list):
        raise _failure(f"{names} for a list of node ids")
    index = {name: node for node, name in enumerate(topology.node_ids)}
    if not set(names) <= set(index):
        raise _failure("unknown nodes")
    return {index[name] for name in names}


def _rational(text: object) -> Fraction:
    try:
        return Fraction(str(text))
    except (ValueError, ZeroDivisionError):
        raise _failure(f"{text} for a number") from None


def _failure(fault: str) -> CheckFailed:
    return CheckFailed("a bound must follow from its certificate", fault, "compute it again")


def check_pair_certificate(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the claimed time per byte, which no pairs of trees beat, or raise CheckFailed. O(links * cuts), exact."""
    claimed, proved = _rational(certificate.get("time_per_byte")), proven_time(topology, certificate)
    if claimed > proved:
        raise _failure(f"{claimed} claimed, {proved} proved")
    return claimed


def proven_time(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return the time per byte that the weights of `certificate` prove; its own claim is not looked at."""
    if certificate.get("kind") != "tree-pairs":
        raise _failure(str(certificate.get("kind")))
    counted = [Fraction(0)] * topology.compute_count
    gather = _prices(topology, certificate, "gather", counted, outward=False)
    reduce = _prices(topology, certificate, "reduce", counted, outward=True)
    earned = Fraction(0)
    for index, link in enumerate(topology.links):
        earned += link.bandwidth * max(gather[index], reduce[index], Fraction(0))
    return min(counted) / earned if earned else earned


def _prices(
    topology: Topology, certificate: Mapping[str, Any], part: str, counted: list[Fraction], outward: bool
) -> list[Fraction]:
    """Return what the weights pay per link for out-trees or in-trees; add to `counted` what they ask of each root."""
    links = topology.links
    heads, tails = (links.src, links.dst) if outward else (links.dst, links.src)
    ends = list(zip(heads.tolist(), tails.tolist(), strict=True))
    index = {name: node for node, name in enumerate(topology.node_ids)}
    price = [Fraction(0)] * len(ends)
    for inside, weight in _cuts(certificate.get(f"{part}_cuts"), index, topology.compute_count):
        for rank in range(topology.compute_count):
            counted[rank] += weight if rank not in inside else 0
        for link, (head, tail) in enumerate(ends):
            if head in inside and tail not in inside:
                price[link] += weight
    worth = _switches(certificate.get(f"{part}_switches"), index, topology.compute_count)
    for link, (head, tail) in enumerate(ends):
        price[link] += worth.get(head, 0) - worth.get(tail, 0)
    return price


def _cuts(cuts: object, index: Mapping[str, int], ranks: int) -> Iterator[tuple[set[int], Fraction]]:
    if not isinstance(cuts, list):
        raise _failure("no cuts")
    for cut in cuts:
        names, weight = set(cut["nodes"]), _rational(cut["weight"])
        inside = {index[name] for name in names if name in index}
        if weight < 0 or len(inside) < len(names) or not any(node < ranks for node in inside):
            raise _failure(f"a cut of weight {weight} around {sorted(names)}")
        yield inside, weight


def _switches(worth: object, index: Mapping[str, int], ranks: int) -> dict[int, Fraction]:
    if not isinstance(worth, dict):
        raise _failure("no switches")
    weights = {index.get(name, -1): _rational(value) for name, value in worth.items()}
    if any(node < ranks or value < 0 for node, value in weights.items()):
        raise _failure("weights of nodes that are not switches, or weights below 0")
    return weights
