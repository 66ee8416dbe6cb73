"""All-to-all rates at scale, against a search of cheapest paths from every rank, which any proof by prices needs once.

The reference is SciPy's Dijkstra over the whole network. Bounds go through floats of exponentials and of a solver, so
that their last digits are no facts; the method, and that they are close enough, are.
"""

from __future__ import annotations

import time

import numpy as np

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, alltoall_rate
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.reports.tables import Stopwatch


def rate_at_scale(spec: str) -> BenchmarkOutcome:
    """Return facts of the bounds of `spec`, and the seconds of network and bounds and of the reference.

    `processor` is what ours took of processors, whatever else ran.
    """
    alltoall_rate(parse_topology("genkautz:3,20"), method="prices")  # machine code and the solver are loaded
    _cheapest_paths(parse_topology("ring:4"))
    stages = Stopwatch()
    began_s = time.process_time()
    with stages.stage("ours"):
        topology = parse_topology(spec)
        rate = alltoall_rate(topology)
    processor_s = time.process_time() - began_s
    with stages.stage("reference"):
        longest = _cheapest_paths(topology)
    facts = {
        "method": rate.method,
        "is_within_half_a_percent": 0 <= rate.gap <= DEFAULT_GAP,
        "is_below_equal_prices": rate.lower <= len(topology.links) / longest,
    }
    seconds = {**stages.seconds, "processor": processor_s}
    return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


def _cheapest_paths(topology: Topology) -> float:
    """Return the sum of the distances between all pairs, every link at a price of 1."""
    links, nodes = topology.links, topology.node_count
    prices = sparse.csr_array((np.ones(len(links)), (links.src, links.dst)), shape=(nodes, nodes))
    return float(csgraph.dijkstra(prices).sum())


EXCHANGE = Benchmark(
    name="exchange",
    reference="SciPy dijkstra from every rank",
    goals={"genkautz:4,1024": 0.1, "mesh:24x24": 0.01, "genkautz:4,4096": 0.1},
    run=rate_at_scale,
    is_exact=False,
)
