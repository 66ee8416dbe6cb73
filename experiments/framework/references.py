"""Values that experiments compare: our schedules and times, NetworkX's maximum flows, models fitted to two points."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import lcm
from statistics import linear_regression
from typing import Any

import networkx as nx
import numpy as np

from chorale.synth.collective import ALLGATHER, Collective, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.simulation.simulate import Congestion, NetworkModel
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule


def synthesized(
    method: str, topology: Topology | str, collective: Collective | str = ALLGATHER, **options: Any
) -> VerifiedSchedule:
    """Return the verified schedule that `method` makes in this process; `options` are fields of `Options`."""
    network = parse_topology(topology) if isinstance(topology, str) else topology
    collective = parse_collective(collective) if isinstance(collective, str) else collective
    return synthesize(method, network, collective, Options(**options), SerialExecutor())


def min_seconds(action: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the shortest time of several repetitions, in seconds, because other load can only add time.

    clock: `time.process_time` for work in this process only, which other load hardly affects
    """
    least = float("inf")
    for _ in range(repeats):
        begun = clock()
        action()
        least = min(least, clock() - begun)
    return least


def growth_exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent with which times grow with size: the slope of the line through their logarithms."""
    return float(linear_regression(np.log(sizes), np.log(seconds)).slope)


_SOURCE = -1


def max_flows_reach(topology: Topology, time_per_byte: Fraction) -> bool:
    """Return whether flows can bring all ranks' shards to each rank in `time_per_byte`. Exact integer arithmetic."""
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


_ROUNDS = 4
_MAX_ALPHA_S = Fraction(1, 1000)
_HALVINGS = 30


def fit_two_points(cost: Congestion, known_gbps: Mapping[int, float]) -> NetworkModel:
    """Return the model whose latency fits the time at the smallest known size, and whose efficiency fits the largest.

    known_gbps: algorithmic bandwidths in GB/s by vector size in bytes
    """
    small, large = min(known_gbps), max(known_gbps)
    small_s, large_s = (size / known_gbps[size] / 1e9 for size in (small, large))
    model = NetworkModel()
    for _ in range(_ROUNDS):
        excess = float(cost.seconds(model, large)) / large_s
        model = replace(model, efficiency=model.efficiency * Fraction(excess).limit_denominator(10**6))
        low, high = Fraction(0), _MAX_ALPHA_S
        for _ in range(_HALVINGS):
            alpha = (low + high) / 2
            slow = cost.seconds(replace(model, alpha_s=alpha), small) > small_s
            low, high = (low, alpha) if slow else (alpha, high)
        model = replace(model, alpha_s=low)
    return model


def predicted_gbps(cost: Congestion, model: NetworkModel, size_bytes: int) -> float:
    """Return the algorithmic bandwidth in GB/s that `model` predicts for a vector of `size_bytes`."""
    return size_bytes / float(cost.seconds(model, size_bytes)) / 1e9
