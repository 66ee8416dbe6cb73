"""Describes groups of ranks that run their collectives at the same time on one network."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import STANDARD, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Links, Topology, link_ids

MAX_GROUP_RANKS = 1024
MAX_LP_RANKS = 64
MAX_COMMODITIES = 512


@dataclass(frozen=True, slots=True)
class Group:
    """A group of ranks that runs a collective.

    name:   identifies the group; no two groups have the same name
    ranks:  members of the group, ascending
    amount: size of the group's vector, in the same unit for all groups
    """

    name: str
    collective: Collective
    ranks: tuple[int, ...]
    amount: int

    @property
    def commodities(self) -> int:
        """Number of parts of the data that are planned separately: one per tree root or all-to-all source."""
        return 1 if self.collective.name == CollectiveName.ALLREDUCE or self.collective.is_rooted else len(self.ranks)


def require_groups(topology: Topology, groups: tuple[Group, ...]) -> None:
    """Raise InvalidInput if a group's collective, ranks or amount are invalid, or if two groups have the same name."""
    if not groups:
        raise InvalidInput("no group is given", "", "add --group NAME=COLLECTIVE:RANKS:AMOUNT")
    names = [group.name for group in groups]
    if len(set(names)) < len(names):
        raise InvalidInput("two groups have the same name: {}", ", ".join(names), "rename one")
    ranks = topology.compute_count
    for group in groups:
        if group.collective.name not in STANDARD:
            choice = ", ".join(each.value for each in STANDARD)
            raise InvalidInput(
                f"groups run {choice}, not {{}}", f"{group.collective} in {group.name}", "choose one of these"
            )
        if not 2 <= len(group.ranks) <= MAX_GROUP_RANKS or not 0 <= min(group.ranks) <= max(group.ranks) < ranks:
            rule = f"a group must have 2 to {MAX_GROUP_RANKS} of the ranks 0 to {ranks - 1}"
            raise InvalidInput(rule, f"{len(group.ranks)} in {group.name}", "choose its ranks")
        if list(group.ranks) != sorted(set(group.ranks)):
            raise InvalidInput(
                "the ranks of a group must be in ascending order", f"{group.ranks} in {group.name}", "sort them"
            )
        if not 1 <= group.amount <= 2**40:
            rule = "the amount of a group must be 1 to 2^40"
            raise InvalidInput(rule, f"{group.amount} of {group.name}", "change it")


def are_few(groups: tuple[Group, ...]) -> bool:
    """Return whether `groups` have few enough ranks, roots and sources for the linear program."""
    few = sum(group.commodities for group in groups) <= MAX_COMMODITIES
    return few and max(len(group.ranks) for group in groups) <= MAX_LP_RANKS


def require_few(groups: tuple[Group, ...]) -> None:
    """Raise InvalidInput if `groups` have too many ranks, roots or sources for the linear program (see `are_few`)."""
    if not are_few(groups):
        count, largest = sum(group.commodities for group in groups), max(len(group.ranks) for group in groups)
        rule = (
            f"here, groups must have at most {MAX_LP_RANKS} ranks each, and {MAX_COMMODITIES} roots and sources in all"
        )
        raise InvalidInput(rule, f"{largest} and {count}", "plan smaller or fewer groups together")


@dataclass(frozen=True, slots=True, eq=False)
class GroupNetwork:
    """The network for one group: only its members are ranks, and all other nodes are switches that forward data.

    topology: this network, in which the members have the lowest node numbers
    link:     int32 per link of the original network: id of the same link in `topology`
    """

    topology: Topology
    link: NDArray[np.int32]


def network_of_group(topology: Topology, group: Group) -> GroupNetwork:
    """Return the network in which only members of `group` are ranks. Switches only forward data. O(links log links)."""
    order = np.concatenate([group.ranks, np.setdiff1d(np.arange(topology.node_count), group.ranks)])
    place = np.empty(len(order), dtype=np.int32)
    place[order] = np.arange(len(order))
    links = topology.links
    columns = place[links.src], place[links.dst], links.bandwidth_class, links.latency_class
    ids = link_ids(*columns)
    sources = np.argsort(ids, kind="stable")
    src, dst, bandwidth, latency = (column[sources].astype(np.int32) for column in columns)
    seen = Links(src, dst, bandwidth, links.bandwidths, latency, links.latencies_s)
    names = tuple(topology.node_ids[node] for node in order.tolist())
    spec = f"file:{group.name} on {topology.spec}"
    return GroupNetwork(Topology(spec, names, len(group.ranks), seen, topology.bandwidth_unit), ids)
