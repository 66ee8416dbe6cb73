"""BFB beside SciPy's HiGHS on the linear programs that the paper states: one for each node and step."""

from __future__ import annotations

from fractions import Fraction

import networkx as nx
import numpy as np

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.kernels.warm_up import warm_method
from chorale.synth.linear_program import minimum
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.reports.stopwatch import Stopwatch

_BFB_GOAL = 10.0
_DIGITS = 10**6
"""The solver's answers are rounded to fractions below this denominator; exact ones have far smaller ones."""


def _run_bfb(spec: str) -> BenchmarkOutcome:
    topology = parse_topology(spec)
    warm_method("bfb")
    stages = Stopwatch()
    with stages.stage("ours"):
        verified = verify(bfb_allgather(topology, SerialExecutor()))
    with stages.stage("reference"):
        optimum = _by_programs(topology)
    schedule = verified.schedule
    facts = {
        "steps": schedule.steps,
        "transfers": schedule.transfer_count,
        "chunks_per_shard": schedule.chunks_per_shard,
        "time_per_byte": str(verified.cost.time_per_byte),
        "time_per_byte_of_reference": str(optimum),
    }
    return BenchmarkOutcome(facts, stages.seconds["reference"] / stages.seconds["ours"], stages.seconds)


def _by_programs(topology: Topology) -> Fraction:
    """Return T_B / M of a network of unit links: over all steps, the largest least load of a node, in shards."""
    graph = nx.DiGraph([(link.src, link.dst) for link in topology.links])
    hops = {source: dict(lengths) for source, lengths in nx.all_pairs_shortest_path_length(graph)}
    ranks = range(topology.compute_count)
    into = [[link.src for link in topology.links if link.dst == node] for node in ranks]
    loads = [
        max(_least_load(node, step, into[node], hops) for node in ranks)
        for step in range(1, max(max(lengths.values()) for lengths in hops.values()) + 1)
    ]
    return sum(loads, Fraction(0)) / topology.compute_count


def _least_load(node: int, step: int, into: list[int], hops: dict[int, dict[int, int]]) -> Fraction:
    """Return the least U such that each shard `step` hops away arrives, and no link carries more than U."""
    shards = [source for source, lengths in hops.items() if lengths[node] == step]
    pairs = [(job, link) for job, shard in enumerate(shards) for link, near in enumerate(into)
             if hops[shard][near] == step - 1]  # fmt: skip
    if not pairs:
        return Fraction(0)
    matrix = np.zeros((len(shards) + len(into), len(pairs) + 1))
    for column, (job, link) in enumerate(pairs):
        matrix[job, column] = -1  # at least one shard in all
        matrix[len(shards) + link, column] = 1
    matrix[len(shards) :, -1] = -1
    bound = np.array([-1.0] * len(shards) + [0.0] * len(into))
    objective = np.append(np.zeros(len(pairs)), 1.0)
    answer, _ = minimum(objective, matrix, bound, "choose a smaller network")
    return Fraction(float(answer[-1])).limit_denominator(_DIGITS)


BFB = Benchmark(
    name="bfb",
    reference="SciPy HiGHS, a linear program for each node and step",
    goals=dict.fromkeys(("torus:5x5", "hypercube:5", "genkautz:4,32"), _BFB_GOAL),
    run=_run_bfb,
    is_exact=False,
)
