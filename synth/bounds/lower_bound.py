"""Computes exact lower bounds, with certificates, on the bandwidth time of collectives. Allreduce has several bounds.

In any allreduce, the complete vector crosses every cut in both directions (bandwidth-optimal pipeline, theorem 16), and
p groups of ranks receive 2 (p - 1) vectors in total (theorem 17 for single ranks). If the groups are allgather
bottlenecks, the second bound is twice the allgather time, so reduce_scatter followed by allgather is the best allreduce
(theorem 19 covers two groups and single ranks).

If switches multicast and reduce data, cut bounds remain valid, because the data that cross a cut do not depend on which
node computes sums. The group bound changes: treat each group as one process. p processes receive at least 2 (p - 1)
messages if every switch that reduces data is part of a process: the first process that knows a sum depends on p - 1
messages, and every other process receives one more. Switches that only multicast may be outside all processes, because
messages are counted where they arrive. The same holds with time reversed: then sent messages are counted, and switches
that only reduce data may be outside. If a switch outside all processes reduces data at a limited rate s, at most the
part s of the total rate uses this switch, and each process still receives this part once. So the processes receive at
least 2 (p - 1) (rate - s) + p s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import chain

import numpy as np

from chorale.synth.bounds.optimum import (
    Bound,
    CutSearch,
    Nodes,
    cut_direction,
    improving_cuts,
    integral_trees,
    node_set,
    optimum,
    search_for,
    shards_of_vector,
)
from chorale.synth.bounds.switch_limits import switch_bound
from chorale.synth.collective import ALLGATHER, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.topology.distance import distances_from, distances_to
from chorale.synth.topology.topology import Topology, connected_labels

_DIRECTIONS = (
    ("received", "into", ALLGATHER, CollectiveName.BROADCAST),
    ("sent", "out-of", REDUCE_SCATTER, CollectiveName.REDUCE),
)
MAX_REACH = 2**30
"""Maximum of (number of links) * (largest hop distance), because the search for cuts visits long paths hop by hop."""
MAX_PRICED_CELLS = 2**18
"""For alltoall, a bound with equal prices is computed if ranks * links is at most this. Checking it takes a second."""
_MOST_WIDTHS = 16


def tight_parts(search: CutSearch) -> list[Nodes]:
    """Return disjoint bottlenecks of an allgather, each as small as possible, that together contain the most ranks.

    A set of nodes is a bottleneck (tight) if receiving everything from outside takes as long as the complete allgather.
    The union of two tight sets that share a rank is tight, unless it contains all ranks. All cuts are tested once for
    each returned set of more than one rank.
    """
    *_, (time, _) = improving_cuts(search)
    trees_per_bandwidth, k = integral_trees(search.topology, time)
    ranks = search.topology.compute_count
    covered = search.ingress[:ranks] == (ranks - 1) * search.scale / time
    search.settled[:] = False
    groups: dict[int, Nodes] = {}  # lowest rank of each group -> its nodes
    group_of = np.full(ranks, -1)
    # Link capacities and the number of trees per shard are multiplied by `slack`. One more tree per shard then violates
    # the tight cuts and no others.
    slack = ranks
    while (part := search.violated_cut(trees_per_bandwidth * slack, k * slack + 1, ~covered)) is not None:
        for image in _images(search, part):
            inside = image[image < ranks]
            covered[inside] = True
            touched = [group for group in np.unique(group_of[inside]).tolist() if group >= 0]
            union = np.unique(np.concatenate([image, *(groups[group] for group in touched)]))
            inside = union[union < ranks]
            if len(inside) < ranks:  # a group of all ranks would prove nothing
                for group in touched:
                    del groups[group]
                group_of[inside] = int(inside[0])
                groups[int(inside[0])] = union
    return list(groups.values())


def _images(search: CutSearch, part: Nodes) -> list[Nodes]:
    """Return `part` and the sets onto which known symmetries map it, except sets that share a rank with earlier ones.

    Using symmetries saves tests of cuts. Proofs do not depend on them: bounds are computed from each set's links.
    """
    ranks = search.topology.compute_count
    taken = np.zeros(ranks, dtype=np.bool_)
    images: list[Nodes] = []
    waiting = [part]
    while waiting:
        image = waiting.pop()
        inside = image[image < ranks]
        if taken[inside].any():
            continue
        taken[inside] = True
        images.append(image)
        waiting += [np.sort(generator[image]).astype(np.int64) for generator in search.topology.automorphisms]
    return images


def single_rank_cuts(search: CutSearch) -> list[Nodes]:
    """Return sets of one rank and nearby switches that have less incoming bandwidth than the rank alone.

    For each rank that is linked to switches, the set with the least incoming bandwidth is found. Takes one flow
    computation per rank behind a switch, or fewer if symmetries are known.
    """
    topology = search.topology
    ranks, links = topology.compute_count, topology.links
    behind = np.unique(links.dst[(links.src >= ranks) & (links.dst < ranks)]).tolist()
    too_many = int(search.ingress.max()) + 1
    parts: dict[int, Nodes] = {}
    for rank in behind:
        if rank not in parts:
            search.settled[:ranks] = True
            search.settled[rank] = False
            part = search.violated_cut(Fraction(search.scale), too_many)
            # A symmetry maps the smallest cut around a rank to the one around its image. Each cut lists its rank first.
            parts |= {int(image[0]): image for image in _images(search, np.array([rank]) if part is None else part)}
    return [parts[rank] for rank in behind if len(parts[rank]) > 1]


def allreduce_bounds(topology: Topology) -> Iterator[Bound]:
    """Yield lower bounds on the time of an allreduce, starting with those that are fast to compute.

    The largest of these bounds is the best. They consider single ranks, allgather bottlenecks, single cuts, and single
    ranks with the switches that limit them. All bounds consider incoming data and, on one-way networks, outgoing data.
    """
    directions = _DIRECTIONS[:1] if topology.is_eulerian else _DIRECTIONS
    searches = [(kind, search_for(topology, spread)) for kind, _, spread, _ in directions]
    yield from (_of_groups(kind, search, []) for kind, search in searches)
    yield from (_of_groups(kind, search, tight_parts(search)) for kind, search in searches)
    for _, kind, _, rooted in directions:
        for time, cut in improving_cuts(search_for(topology, Collective(rooted, 0))):
            yield Bound(kind, node_set(cut), time)
    yield from (_of_groups(kind, search, single_rank_cuts(search)) for kind, search in searches)


def reduce_scatter_allgather_time(topology: Topology) -> Fraction:
    """Return the time per byte of the best reduce_scatter followed by the best allgather."""
    gather = optimum(topology, ALLGATHER).time_per_byte
    return 2 * gather if topology.is_eulerian else gather + optimum(topology, REDUCE_SCATTER).time_per_byte


def _of_groups(kind: str, search: CutSearch, parts: Sequence[Nodes]) -> Bound:
    """Return the allreduce bound for the groups `parts`. Every rank outside these groups counts as a separate group.

    Treating groups as processes shows that p groups receive 2 (p - 1) vectors in total (bandwidth-optimal pipeline,
    theorem 17 for single ranks, and theorem 16 for two groups in Eulerian networks). O(links * parts).
    """
    ranks = search.topology.compute_count
    single = np.ones(ranks, dtype=np.bool_)
    total = Fraction(0)
    for part in parts:
        single[part[part < ranks]] = False
        total += sum((value * count for value, count in search.entering(part)), Fraction(0))
    total += Fraction(int(search.ingress[:ranks][single].sum()), search.scale)
    groups = len(parts) + int(single.sum())
    return Bound(kind, (), 2 * (groups - 1) / total, parts=tuple(node_set(part) for part in parts))


def lower_bound(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound:
    """Return the best known lower bound on the bandwidth time per byte, T_B / M, of any schedule for `collective`.

    For allgather, reduce_scatter, broadcast and reduce, this is the optimum, except on some one-way networks (see
    `Optimum`). The search is fast if a single rank is the bottleneck.

    achieved: time per byte of a verified schedule; the search ends when a bound reaches this time

    >>> from synth import parse_collective, parse_topology
    >>> str(lower_bound(parse_topology("ring:4"), parse_collective("allreduce")).value)
    '3/4'
    """
    best = _best(_bounds(topology, collective), achieved)
    assert best is not None, "every collective has at least one bound"
    return best


def _best(bounds: Iterator[Bound], achieved: Fraction | None) -> Bound | None:
    best: Bound | None = None
    for bound in bounds:
        if best is None or bound.value > best.value:
            best = bound
        if achieved is not None and best.value >= achieved:
            break
    return best


def require_reach(topology: Topology) -> None:
    """Raise InvalidInput if the network has such long paths that the search for cuts would take minutes."""
    links = topology.links
    if topology.node_count * len(links) <= MAX_REACH:
        return
    hops = int(distances_from(topology, np.zeros(1, dtype=np.int64)).max())
    if hops > 2**12 and hops * len(links) > MAX_REACH:
        rule = f"networks of more than 4096 hops are bounded up to {MAX_REACH} links times hops"
        raise InvalidInput(rule, f"{hops} hops, {len(links)} links", "use a smaller network, or one with shorter paths")


def _bounds(topology: Topology, collective: Collective) -> Iterator[Bound]:
    require_reach(topology)
    if collective.name == CollectiveName.ALLREDUCE:
        yield from allreduce_bounds(topology)
    elif collective.name == CollectiveName.ALLTOALL:
        # Data that single ranks, allgather bottlenecks, and boxes must exchange with the rest of the network.
        for spread in (ALLGATHER, REDUCE_SCATTER):
            search = search_for(topology, spread)
            cuts = chain((cut for _, cut in improving_cuts(search)), _boxes(topology))
            for cut in cuts:
                inside = int(np.count_nonzero(cut < topology.compute_count))
                time = inside * search.time_per_shard(cut) / topology.compute_count
                yield Bound(cut_direction(spread), node_set(cut), time)
        if topology.compute_count * len(topology.links) <= MAX_PRICED_CELLS:
            # The total hop count of all data divided by the total bandwidth: with a price of 1 for every link, a path
            # costs at least its number of hops. Prices from `chorale.synth.methods.alltoall` prove better bounds.
            ranks = topology.compute_count
            hops = int(distances_to(topology, np.arange(ranks))[:, :ranks].sum(dtype=np.int64))
            integers, scale = topology.links.integer_bandwidths()
            time = Fraction(hops * scale, int(integers.sum()) * ranks)
            yield Bound("alltoall-prices", (), time, prices=(1,) * len(topology.links))
    else:
        parts = shards_of_vector(topology, collective)
        for time, cut in improving_cuts(search_for(topology, collective)):
            yield Bound(cut_direction(collective), node_set(cut), time / parts)
        if topology.switch_count and (limited := switch_bound(topology, collective)) is not None:
            yield limited


def _boxes(topology: Topology) -> Iterator[Nodes]:
    """For each link bandwidth, divide the nodes into sets connected by wider links and yield the slowest set.

    The slowest set takes longest to exchange data with all other ranks. Yields nothing for the largest bandwidth.
    """
    nodes, ranks, links = topology.node_count, topology.compute_count, topology.links
    rates = np.array([float(each) for each in links.bandwidths])[links.bandwidth_class]
    for bandwidth in sorted(links.bandwidths)[:-1]:
        wide = np.array([each > bandwidth for each in links.bandwidths])[links.bandwidth_class]
        labels = connected_labels(nodes, links.src[wide], links.dst[wide])
        crosses = labels[links.src] != labels[links.dst]
        entering = np.bincount(labels[links.dst[crosses]], rates[crosses], minlength=nodes)
        inside = np.bincount(labels[:ranks], minlength=nodes)
        seconds = inside * (ranks - inside) / np.maximum(entering, rates.min())
        if seconds.any():  # approximate, but only used to choose a box, whose bound is computed exactly
            yield np.flatnonzero(labels == int(np.argmax(seconds)))


_MOST_NEIGHBOURS = 16
_MOST_PASSING = 32
_SMALL = 200
"""On networks of at most this many nodes, a group may be enlarged by switches that are not its direct neighbours."""
FEW_ACTORS = 14
"""If at most this many nodes are ranks or switches that reduce or multicast, moves of single nodes are tried."""

Label = list[int]
"""Group number of each node, or -1 if the node belongs to no group."""


class GroupedFabric:
    """Computes allreduce bounds from the data that groups of nodes must receive (or send, if `outward`).

    into:       (source, bandwidth) of each node's incoming links or, if `outward`, (target, bandwidth) of its outgoing
                links
    far:        (other end, bandwidth) of each node's links in the opposite direction to `into`
    processing: switches that must be in a group: those that reduce or, if `outward`, those that multicast
    limits:     switch that reduces at a limited rate -> this rate, in units of 1 / `scale`; empty if `outward`
    scale:      factor by which bandwidths of the topology were multiplied to make them integers
    """

    def __init__(self, topology: Topology, outward: bool) -> None:
        links, self.topology = topology.links, topology
        units, self.scale = links.integer_bandwidths()
        near, far = (links.src, links.dst) if outward else (links.dst, links.src)
        self.into: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
        self.far: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
        for head, tail, width in zip(near.tolist(), far.tolist(), units.tolist(), strict=True):
            if head != tail:
                self.into[head].append((tail, width))
                self.far[tail].append((head, width))
        abilities = topology.abilities.items()
        self.processing = {node for node, ability in abilities if (ability.multicast if outward else ability.reduce)}
        self.limits = {
            node: ability.reduce_bandwidth * self.scale
            for node, ability in abilities
            if not outward and ability.reduce_bandwidth is not None
        }

    def entering(self, group: set[int]) -> int:
        """Return the total bandwidth of the links into `group` (out of it if `outward`), in units of 1 / `scale`."""
        return sum(width for node in group for other, width in self.into[node] if other not in group)

    def grouped(self, label: Label, members: set[int]) -> list[set[int]]:
        """Return the groups of the partition `label`. Groups without ranks are merged into suitable other groups."""
        groups: dict[int, set[int]] = {}
        for node, name in enumerate(label):
            if name >= 0:
                groups.setdefault(name, set()).add(node)
        covered = set().union(*groups.values())
        loose = [{node} for node in sorted(members - covered)]
        loose += [group for group in groups.values() if min(group) >= self.topology.compute_count]
        homes = [group for group in groups.values() if min(group) < self.topology.compute_count]
        home_of = {node: index for index, group in enumerate(homes) for node in group}
        for switches in loose:
            # the nearby group whose incoming bandwidth grows least if `switches` join it
            costs: dict[int, int] = {}
            seen, waiting = set(switches), sorted(switches)
            while waiting and len(costs) < _MOST_NEIGHBOURS:
                node = waiting.pop(0)
                for other, _ in (*self.into[node], *self.far[node]):
                    if other in home_of:
                        index = home_of[other]
                        if index not in costs:
                            joined = self._with_passing(homes[index] | switches, self.processing)
                            added = joined - homes[index]
                            # The increase of the bandwidth into the group.
                            costs[index] = sum(
                                self._opened(each, joined) - self._shut(each, homes[index]) for each in added
                            )
                    elif other not in seen:
                        seen.add(other)
                        waiting.append(other)
            best = min(costs, key=lambda index: (costs[index], index), default=0)
            homes[best] |= switches
            home_of |= dict.fromkeys(switches, best)
        return [self._with_passing(group, members) for group in homes]

    def _with_passing(self, group: set[int], members: set[int]) -> set[int]:
        """Return `group` with additional switches, chosen greedily, that make its incoming bandwidth smaller.

        Only switches outside `members` that can reach `group` through other such switches are considered.
        """
        around, waiting = set[int](), sorted(group)
        most = _MOST_PASSING if self.topology.node_count <= _SMALL else 0  # on large networks only direct neighbours
        while waiting:
            node = waiting.pop(0)
            for other, _ in self.into[node]:
                is_passing = other >= self.topology.compute_count and other not in members
                if is_passing and other not in around and (node in group or len(around) < most):
                    around.add(other)
                    waiting.append(other)
        if not around:
            return set(group)
        grown, shrunk = set(group), group | around
        waiting = sorted(around)
        while waiting:
            node = waiting.pop()
            if node not in grown and self._shut(node, grown) > self._opened(node, grown):
                grown.add(node)
                waiting += [other for other, _ in self.into[node] if other in around]
        waiting = sorted(around)
        while waiting:
            node = waiting.pop()
            inside = shrunk - {node}
            if node in shrunk and self._opened(node, inside) > self._shut(node, inside):
                shrunk = inside
                waiting += [other for other, _ in self.far[node] if other in around]
        return min(grown, shrunk, key=self.entering)

    def _shut(self, node: int, group: set[int]) -> int:
        return sum(width for other, width in self.far[node] if other in group)

    def _opened(self, node: int, group: set[int]) -> int:
        return sum(width for other, width in self.into[node] if other not in group)

    def proven_time(self, groups: Sequence[set[int]], outside: Iterable[int]) -> Fraction | None:
        """Return the lower bound on the time per byte that `groups` prove, or None for fewer than two groups.

        outside: switches that reduce at a limited rate and belong to no group
        """
        count = len(groups)
        if count < 2:
            return None
        total = Fraction(sum(map(self.entering, groups)))
        sums = sum((self.limits[node] for node in outside), Fraction(0))
        rate = (total + sums * (count - 2)) / (2 * (count - 1)) if total >= count * sums else total / count
        return self.scale / rate

    def improved(self, label: Label, members: set[int], outside: Sequence[int]) -> Label:
        """Move nodes and merge groups of the partition `label` while this improves the bound; return the result."""
        best, value = list(label), self._proved(label, members, outside)
        is_better = True
        while is_better:
            is_better = False
            for candidate in _neighbours(best, self.topology.compute_count):
                time = self._proved(candidate, members, outside)
                if time is not None and (value is None or time > value):
                    best, value, is_better = candidate, time, True
                    break
        return best

    def _proved(self, label: Label, members: set[int], outside: Sequence[int]) -> Fraction | None:
        return self.proven_time(self.grouped(label, members), outside)


def _neighbours(label: Label, ranks: int) -> Iterator[Label]:
    """Yield variants of the partition `label`: a node moves to another or a new group, or two groups are merged."""
    names = sorted({name for name in label if name >= 0})
    for node, name in enumerate(label):
        for other in [*names, node] if name >= 0 else []:
            if other != name:
                moved = list(label)
                moved[node] = other if other != node or other not in names else len(label) + node
                yield moved
    for index, name in enumerate(names):
        for other in names[:index]:
            yield [other if group == name else group for group in label]


def in_network_bound(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound | None:
    """Return the best known bound on `collective` if switches may multicast and reduce data; None if none can do so.

    Bounds from cuts hold for any schedule. Bounds from groups hold for every schedule that only copies and sums data.
    The result differs from `lower_bound` only for allreduce, because the other collectives are bounded by cuts.

    achieved: time per byte of a verified schedule; the search ends when a bound reaches this time

    >>> from synth import parse_collective, parse_topology
    >>> allreduce = parse_collective("allreduce")
    >>> [str(1 / in_network_bound(parse_topology(spec), allreduce).value) for spec in ("h100:1", "h100:2", "h100:5")]
    ['450', '400', '250']
    """
    if not topology.abilities:
        return None
    if collective.name != CollectiveName.ALLREDUCE:
        return lower_bound(topology, collective, achieved)
    return _best(_allreduce_bounds(topology), achieved)


def bound_of_ranks(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound:
    """Return the best known bound on schedules in which switches only forward data (see `lower_bound`).

    Bounds that allow switches to reduce and multicast hold for these schedules too, and are sometimes larger.
    """
    alone = lower_bound(topology, collective, achieved)
    if achieved is not None and alone.value >= achieved:
        return alone
    acting = in_network_bound(topology, collective, achieved)
    return alone if acting is None else stronger(alone, acting)


def stronger(first: Bound, second: Bound) -> Bound:
    """Return the bound with the larger value, or the first if they are equal."""
    return second if second.value > first.value else first


def bound_of_schedule(schedule: AnySchedule, achieved: Fraction) -> Bound:
    """Return the best known bound on schedules of the same kind as `schedule` (see `lower_bound`).

    Schedules of one kind agree on whether switches reduce or multicast. The certificate of an all-to-all schedule
    contains link prices, which prove a better bound than cuts.
    """
    priced: Bound | None = None
    certificate, topology = schedule.certificate, schedule.topology
    if schedule.collective.name == CollectiveName.ALLTOALL and certificate.get("kind") == "alltoall-prices":
        with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):  # malformed certificates prove nothing
            prices, time = (
                tuple(certificate["prices"]),
                1 / (Fraction(certificate["rate_upper"]) * topology.compute_count),
            )
            priced = Bound("alltoall-prices", (), time, prices=prices) if prices and time > 0 else None
    if priced is not None and priced.value >= achieved:
        return priced
    bound = in_network_bound(topology, schedule.collective, achieved) if schedule.is_in_network else None
    bound = bound or bound_of_ranks(topology, schedule.collective, achieved)
    return bound if priced is None else stronger(priced, bound)


def _allreduce_bounds(topology: Topology) -> Iterator[Bound]:
    directions = _DIRECTIONS[:1] if topology.is_eulerian else _DIRECTIONS
    for _, kind, _, rooted in directions:
        for time, cut in improving_cuts(search_for(topology, Collective(rooted, 0))):
            yield Bound(kind, node_set(cut), time, in_network=True)
    if not all(
        each.multicast and each.reduce and each.reduce_bandwidth is None for each in topology.abilities.values()
    ):
        directions = _DIRECTIONS
    for kind, _, spread, _ in directions:
        fabric = GroupedFabric(topology, outward=kind == "sent")
        limited = [node for node in fabric.limits if node in fabric.processing]
        for outside in ([], limited) if limited else ([],):
            members = fabric.processing - set(outside)
            labels = list(_partitions(topology, members, spread))
            if topology.compute_count + len(members) <= FEW_ACTORS:
                labels += [fabric.improved(label, members, outside) for label in labels]
            for label in labels:
                groups = fabric.grouped(label, members)
                value = fabric.proven_time(groups, outside)
                if value is not None:
                    parts = tuple(tuple(sorted(group)) for group in groups if len(group) > 1)
                    yield Bound(kind, (), value, parts=parts, in_network=True)


def _partitions(topology: Topology, members: set[int], spread: Collective) -> Iterator[list[int]]:
    """Yield several partitions: into single ranks, into nodes connected by wide links, into allgather bottlenecks.

    A partition is a list with the group number of each node, or -1 if the node belongs to no group. For each of the
    largest link bandwidths, links of at least this bandwidth count as wide in one partition.
    """
    ranks = topology.compute_count
    alone = [*range(ranks), *([-1] * topology.switch_count)]
    yield list(alone)
    acting = np.zeros(topology.node_count, dtype=np.bool_)
    acting[:ranks] = True
    acting[list(members)] = True
    links = topology.links
    direct = acting[links.src] & acting[links.dst] & (links.src != links.dst)
    widths = sorted({links.bandwidths[index] for index in set(links.bandwidth_class[direct].tolist())}, reverse=True)
    for width in widths[:_MOST_WIDTHS]:
        wide = np.array([value >= width for value in links.bandwidths])[links.bandwidth_class] & direct
        component = connected_labels(topology.node_count, links.src[wide], links.dst[wide])
        first = np.unique(component, return_index=True)[1]
        yield np.where(acting, first[component], -1).tolist()
    label = list(alone)
    for part in tight_parts(search_for(topology, spread)):
        for node in part.tolist():
            if node < ranks or node in members:
                label[node] = int(part[0])
    yield label
