"""The certified bound of an allgather beside NetworkX's maximum flows, which must just fit into the bound."""

from __future__ import annotations

from fractions import Fraction

from experiments.bench.benchmark import Benchmark, Outcome
from experiments.max_flows import flows_fit
from synth.bound.bound import lower_bound
from synth.collective import ALLGATHER
from synth.kernels import warm_bounds
from synth.topology.spec import parse_topology
from tuner.reports.stages import Stages

_GOAL = 10.0
_LITTLE_LESS = Fraction(999, 1000)


def _run(spec: str) -> Outcome:
    topology = parse_topology(spec)
    warm_bounds()
    stages = Stages()
    with stages.stage("ours"):
        bound = lower_bound(topology, ALLGATHER)
    with stages.stage("reference"):
        enough = flows_fit(topology, bound.value)
    facts = {
        "time_per_byte": str(bound.value),
        "kind": bound.kind,
        "cut": len(bound.nodes),
        "flows_fit": enough,
        "flows_fit_in_a_little_less": flows_fit(topology, bound.value * _LITTLE_LESS),
    }
    return Outcome(facts, stages.seconds["reference"] / stages.seconds["ours"], stages.seconds)


BENCHMARK = Benchmark(
    name="bounds",
    reference="NetworkX maximum_flow to every rank",
    goals=dict.fromkeys(("a100:2", "mi250:2", "genkautz:4,32"), _GOAL),
    run=_run,
    is_exact=False,
)
