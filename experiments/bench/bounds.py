"""The certified bound of an allgather beside NetworkX's maximum flows, which must just fit into the bound."""

from __future__ import annotations

from fractions import Fraction

from chorale.experiments.bench.benchmark import Benchmark, BenchmarkOutcome
from chorale.experiments.max_flows import max_flows_reach
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.kernels.warm_up import warm_bounds
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.reports.stopwatch import Stopwatch

_BOUNDS_GOAL = 10.0
_LITTLE_LESS = Fraction(999, 1000)


def _run_bounds(spec: str) -> BenchmarkOutcome:
    topology = parse_topology(spec)
    warm_bounds()
    stages = Stopwatch()
    with stages.stage("ours"):
        bound = lower_bound(topology, ALLGATHER)
    with stages.stage("reference"):
        enough = max_flows_reach(topology, bound.value)
    facts = {
        "time_per_byte": str(bound.value),
        "kind": bound.kind,
        "cut": len(bound.nodes),
        "flows_fit": enough,
        "flows_fit_in_a_little_less": max_flows_reach(topology, bound.value * _LITTLE_LESS),
    }
    return BenchmarkOutcome(facts, stages.seconds["reference"] / stages.seconds["ours"], stages.seconds)


BOUNDS = Benchmark(
    name="bounds",
    reference="NetworkX maximum_flow to every rank",
    goals=dict.fromkeys(("a100:2", "mi250:2", "genkautz:4,32"), _BOUNDS_GOAL),
    run=_run_bounds,
    is_exact=False,
)
