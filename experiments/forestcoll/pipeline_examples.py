"""The worked example of the pipeline paper: eight ranks in two clusters, whose own switch is ten times as fast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, ALLREDUCE, Collective, CollectiveName
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.forest.network import forest_network
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.topology import Topology

CLUSTERS, RANKS = 2, 4
FAST, SLOW = 10, 1
"""Bandwidths of a rank to the switch of its cluster and to the global one: 10 b and b."""


def figure_1() -> Topology:
    """Return the network of figure 1a with b = 1 GB/s."""
    ranks = [f"c{cluster}.{place}" for cluster in range(CLUSTERS) for place in range(RANKS)]
    switches = ["global", *(f"switch{cluster}" for cluster in range(CLUSTERS))]
    nodes = [*(NamedNode(rank, "compute") for rank in ranks), *(NamedNode(switch, "switch") for switch in switches)]
    return assemble_topology("figure-1a", "GB/s", nodes, _links(ranks, lambda index: f"switch{index // RANKS}"))


def unwound() -> Topology:
    """Return figure 1d: every switch unwound into a ring of the ranks below it, which wastes the global one."""
    ranks = [f"c{cluster}.{place}" for cluster in range(CLUSTERS) for place in range(RANKS)]
    count = len(ranks)
    links = [NamedLink(ranks[index], ranks[(index + 1) % count], SLOW, 0, False) for index in range(count)]
    for index in range(count):
        after = index - RANKS + 1 if index % RANKS == RANKS - 1 else index + 1
        links.append(NamedLink(ranks[index], ranks[after], FAST, 0, False))
    return assemble_topology("figure-1d", "GB/s", [NamedNode(rank, "compute") for rank in ranks], links)


def _links(ranks: Sequence[str], switch_of: Callable[[int], str]) -> list[NamedLink]:
    own = [NamedLink(rank, switch_of(index), FAST, 0, True) for index, rank in enumerate(ranks)]
    return [*own, *(NamedLink(rank, "global", SLOW, 0, True) for rank in ranks)]


def _rows(figure: str) -> list[Row]:
    """Return the rows of figure 1, the only one that the paper works out."""
    topology = figure_1()
    return [*_optimality(topology), *_switch_removal(topology), *_other_collectives(topology)]


def _optimality(topology: Topology) -> list[Row]:
    best = optimum(topology, ALLGATHER)
    inside = sum(1 for node in best.cut if node < topology.compute_count)
    fixed = fixed_k_optimum(topology, ALLGATHER, 1)
    links = topology.links
    out_of_one = sum(links.bandwidths[place] for place in links.bandwidth_class[links.src == 0])
    return [
        _row("time per shard that the cluster cut allows, in 1/b", "section 1, figure 1b", 1, best.time_per_shard),
        _row("ranks in that cut", "figure 1b", RANKS, inside),
        _row("time per shard that one rank alone would allow", "section 1", "1/11", 1 / Fraction(out_of_one)),
        _row("U, the trees per bandwidth", "section 2.1", 1, best.trees_per_bandwidth),
        _row("k, the trees per root", "section 2.1", 1, best.k),
        _row("time per shard with k = 1 given", "section 2.4", 1, fixed.time_per_shard),
    ]


def _switch_removal(topology: Topology) -> list[Row]:
    best = optimum(topology, ALLGATHER)
    supply = np.full(topology.compute_count, best.k, dtype=np.int64)
    split = remove_switches(forest_network(topology, best.trees_per_bandwidth, supply), names=topology.node_ids)
    verified = synthesize("forest", topology, ALLGATHER, None, SerialExecutor())
    naive = optimum(unwound(), ALLGATHER).time_per_shard
    shards = topology.compute_count
    return [
        _row("switches after edge splitting", "figure 2b", 0, split.network.nodes - shards),
        _row("time per shard of the verified schedule", "figure 2d", 1, verified.cost.time_per_byte * shards),
        _row("times as long if switches are unwound into rings", "figure 1d", 4, naive / best.time_per_shard),
    ]


def _other_collectives(topology: Topology) -> list[Row]:
    gathered = optimum(topology, ALLGATHER).time_per_byte
    broadcast = optimum(topology, Collective(CollectiveName.BROADCAST, 0)).time_per_byte
    both = synthesize("forest", topology, ALLREDUCE, None, SerialExecutor()).cost.time_per_byte
    return [
        _row("broadcast over allgather, at the optimum", "appendix B", 2, broadcast / gathered),
        _row("allreduce by two phases over allgather", "appendix C", 2, both / gathered),
    ]


def _row(quantity: str, place: str, printed: int | str, ours: Fraction | int) -> Row:
    holds = Fraction(printed) == ours
    return {
        "nodes": CLUSTERS * RANKS,
        "spec": "figure-1a",
        "quantity": quantity,
        "place": place,
        "printed": str(printed),
        "ours": str(ours),
        "verdict": "match" if holds else "not reached",
        "reason": None if holds else f"{printed} was printed, {ours} is certified",
        "holds": holds,
    }


EXPERIMENT = Experiment(
    name="pipeline-examples",
    question="Do cuts, given k and switch removal come out as in the worked example of the pipeline paper?",
    source="Zhao et al., Bandwidth Optimal Pipeline Schedule for Collective Communication, figures 1 and 2",
    columns=(
        Column("quantity", lambda row: str(row["quantity"])),
        Column("place", lambda row: str(row["place"])),
        Column("printed", lambda row: str(row["printed"])),
        Column("ours", lambda row: str(row["ours"])),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=lambda _quick: ["figure 1"],
    evaluate=_rows,
)
