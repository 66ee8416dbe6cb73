"""The certified bound of an allgather beside NetworkX's maximum flows, which must just fit into the bound."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import networkx as nx

from experiments.bench.benchmark import Benchmark, Outcome
from synth.bound.bound import lower_bound
from synth.collective import ALLGATHER
from synth.kernels import warm_bounds
from synth.topology.spec import parse_topology
from synth.topology.topology import Topology
from tuner.reports.stages import Stages

_GOAL = 10.0
_LITTLE_LESS = Fraction(999, 1000)
_SOURCE = -1


def _run(spec: str) -> Outcome:
    topology = parse_topology(spec)
    warm_bounds()
    stages = Stages()
    with stages.stage("ours"):
        bound = lower_bound(topology, ALLGATHER)
    with stages.stage("reference"):
        enough = _carries(topology, bound.value)
    facts = {
        "time_per_byte": str(bound.value),
        "kind": bound.kind,
        "cut": len(bound.nodes),
        "flows_fit": enough,
        "flows_fit_in_a_little_less": _carries(topology, bound.value * _LITTLE_LESS),
    }
    return Outcome(facts, stages.seconds["reference"] / stages.seconds["ours"], stages.seconds)


def _carries(topology: Topology, time_per_byte: Fraction) -> bool:
    """Whether, in this time, flows from all ranks can bring the whole vector to each rank; all numbers are whole."""
    ranks = topology.compute_count
    carried = [Fraction(link.bandwidth) * time_per_byte for link in topology.links]
    vector = lcm(ranks, *(amount.denominator for amount in carried))
    graph: nx.DiGraph[int] = nx.DiGraph()
    for rank in range(ranks):
        graph.add_edge(_SOURCE, rank, capacity=vector // ranks)
    for link, amount in zip(topology.links, carried, strict=True):
        before = graph.get_edge_data(link.src, link.dst, {"capacity": 0})["capacity"]
        graph.add_edge(link.src, link.dst, capacity=before + int(amount * vector))
    return all(nx.maximum_flow_value(graph, _SOURCE, rank) == vector for rank in range(ranks))


BENCHMARK = Benchmark(
    name="bounds",
    reference="NetworkX maximum_flow to every rank",
    goals=dict.fromkeys(("a100:2", "mi250:2", "genkautz:4,32"), _GOAL),
    run=_run,
    is_exact=False,
)
