"""Gives the nodes their part of the programs, and the pace of their links."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from chorale.runners.execution.plan import encode_plan, node_plans
from chorale.runners.local.fleet import LocalRanks
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology


def load_programs(
    ranks: LocalRanks, topology: Topology, programs: Iterable[Program], link_mbps: float, deadline: float
) -> None:
    """Give every node its part of each of `programs` and the pace of its links."""
    plans = [[encode_plan(plan) for plan in node_plans(program, topology)] for program in programs]
    paces: list[list[tuple[int, float]]] = [[] for _ in ranks.nodes]
    for link, seconds in enumerate(seconds_per_byte(topology, link_mbps)):
        paces[int(topology.links.src[link])].append((link, seconds))
    commands = [
        {"do": "load", "plans": [program[node] for program in plans], "seconds_per_byte": paces[node]}
        for node in ranks.nodes
    ]
    ranks.request(commands, deadline, "the programs were loaded")


def seconds_per_byte(topology: Topology, link_mbps: float) -> list[float]:
    """Return the pace of every link.

    `link_mbps` is the rate of a link of bandwidth 1 where the unit is links, else of the fastest link: GB/s
    fabrics run as scale models with the right proportions.
    """
    full = Fraction(1) if topology.bandwidth_unit == "link" else max(topology.links.bandwidths)
    table = [8 / (link_mbps * 1e6 * float(bandwidth / full)) for bandwidth in topology.links.bandwidths]
    return [table[index] for index in topology.links.bandwidth_class.tolist()]
