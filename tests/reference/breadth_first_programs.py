"""Breadth-first broadcast as the paper writes it: one linear (or integer) program per node and step, by HiGHS."""

import networkx as nx
import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp

from chorale.synth.topology.topology import Topology


def jobs_and_links(topology: Topology, node: int, step: int) -> tuple[list[list[int]], list[float]]:
    """Return, for every shard at distance `step` from `node`, the in-links it may take; and their bandwidths."""
    graph = nx.DiGraph()
    graph.add_edges_from((link.src, link.dst) for link in topology.links)
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    incoming = [link for link in topology.links if link.dst == node]
    jobs = [
        [index for index, link in enumerate(incoming) if lengths[shard][link.src] == step - 1]
        for shard in range(topology.compute_count)
        if lengths[shard][node] == step
    ]
    return jobs, [float(link.bandwidth) for link in incoming]


def least_load(topology: Topology, node: int, step: int) -> float:
    """Return U(node, step) by linear programming: shards divisible, time in shards per unit of bandwidth."""
    jobs, bandwidths = jobs_and_links(topology, node, step)
    objective, equal, capacity = _matrices(jobs, bandwidths)
    if not jobs:
        return 0.0
    result = linprog(objective, A_ub=capacity, b_ub=np.zeros(len(bandwidths)), A_eq=equal, b_eq=np.ones(len(jobs)))
    assert result.success, result.message
    return float(result.fun)


def least_whole_chunk_time(topology: Topology, node: int, step: int, chunks: int) -> float:
    """Return the least time when every shard is cut into `chunks` whole chunks, by integer programming."""
    jobs, bandwidths = jobs_and_links(topology, node, step)
    objective, equal, capacity = _matrices(jobs, bandwidths)
    if not jobs:
        return 0.0
    constraints = [
        LinearConstraint(equal, chunks, chunks),
        LinearConstraint(capacity, -np.inf, 0),
    ]
    whole = np.ones(len(objective))
    whole[-1] = 0
    result = milp(objective, constraints=constraints, integrality=whole)
    assert result.success, result.message
    return float(result.fun)


def least_time_with_latencies(
    topology: Topology, node: int, step: int, shard_bytes: float, bytes_per_second: float, chunks: int | None = None
) -> float:
    """Return the least time of (node, step) in seconds, with whole chunks if `chunks` is given.

    Program (14) of the paper makes every link pay its latency, used or not; so it is solved for every set of links
    that may be used.
    """
    jobs, bandwidths = jobs_and_links(topology, node, step)
    latencies = [float(link.latency_s) for link in topology.links if link.dst == node]
    byte_s = [1 / (bandwidth * bytes_per_second) for bandwidth in bandwidths]
    if not jobs:
        return 0.0
    times = []
    for used in _subsets(len(bandwidths)):
        allowed = [[link for link in job if link in used] for job in jobs]
        if all(allowed):
            paid = [latencies[link] if link in used else 0.0 for link in range(len(bandwidths))]
            times.append(_timed_program(allowed, paid, [shard_bytes * time for time in byte_s], chunks))
    return min(times)


def _subsets(count: int) -> list[set[int]]:
    return [{link for link in range(count) if code >> link & 1} for code in range(1, 2**count)]


def _timed_program(jobs: list[list[int]], latencies: list[float], shard_s: list[float], chunks: int | None) -> float:
    """Solve in microseconds, so that numbers are neither large nor small."""
    parts = chunks or 1
    objective, equal, capacity = _matrices(jobs, [parts / (time * 1e6) for time in shard_s])
    constraints = [
        LinearConstraint(equal, parts, parts),
        LinearConstraint(capacity, -np.inf, -1e6 * np.array(latencies)),
    ]
    whole = np.full(len(objective), 0 if chunks is None else 1)
    whole[-1] = 0
    result = milp(objective, constraints=constraints, integrality=whole)
    assert result.success, result.message
    return float(result.fun) * 1e-6


def _matrices(jobs: list[list[int]], bandwidths: list[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variables: one amount per (job, allowed link), then the time."""
    pairs = [(job, link) for job, allowed in enumerate(jobs) for link in allowed]
    objective = np.zeros(len(pairs) + 1)
    objective[-1] = 1
    equal = np.zeros((len(jobs), len(pairs) + 1))
    capacity = np.zeros((len(bandwidths), len(pairs) + 1))
    for column, (job, link) in enumerate(pairs):
        equal[job, column] = 1
        capacity[link, column] = 1 / bandwidths[link]
    capacity[:, -1] = -1
    return objective, equal, capacity
