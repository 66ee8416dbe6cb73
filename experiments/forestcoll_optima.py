"""ForestColl's exact optima of allgather on its testbeds, with as many trees as they need and with few."""

from __future__ import annotations

from collections.abc import Sequence

from chorale.experiments.comparison import Quantity, columns_of, compare
from chorale.experiments.experiment import Experiment, Row
from chorale.experiments.published import PublishedRow
from chorale.experiments.verdict import Interval
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.optimum import fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology

_PUBLISHED_OPTIMA = (
    (32, "mi250:2", {"least_k": "83", "algbw": "354.13"}),
    (32, "mi250:2", {"k": "1", "algbw": "320.00"}),
    (32, "mi250:2", {"k": "2", "algbw": "341.33"}),
    (16, "mi250:1", {"least_k": "3", "algbw": "342.86"}),
    (16, "a100:2", {"least_k": "13", "algbw": "346.67"}),
    (16, "a100:2", {"k": "1", "algbw": "342.86"}),
    (32, "a100:4", {"least_k": "1", "algbw": "266.67"}),
)
"""Ranks, network, and what the public code answers: GB/s, by the least k that reaches the optimum or by a given k."""


_SLOW = "mi250:2"


def _optima_cases(quick: bool) -> Sequence[PublishedRow]:
    chosen = [one for one in _PUBLISHED_OPTIMA if not (quick and one[1] == _SLOW)]
    return [PublishedRow(spec, ranks, printed, spec, "forest") for ranks, spec, printed in chosen]


def _compare_optimum(row: PublishedRow) -> Row:
    """Compare the time of a verified schedule, which is also what a certified cut allows for that k."""
    topology = parse_topology(row.spec)
    quantities = []
    if "k" in row.printed:
        k = int(row.printed["k"])
        least_time = fixed_k_optimum(topology, ALLGATHER, k).time_per_byte
        quantities.append(Quantity("k", Interval.exactly(k)))
    else:
        k = optimum(topology, ALLGATHER).k
        least_time = lower_bound(topology, ALLGATHER).value
        quantities.append(Quantity("least_k", Interval.exactly(k)))
    verified = synthesize("forest", topology, ALLGATHER, Options(k=k), SerialExecutor())
    algbw = Interval.exactly(1 / verified.cost.time_per_byte)
    proof = "a cut proves that nothing is faster"
    quantities.append(Quantity("algbw", algbw, 1 / least_time, proof, smaller_is_better=False))
    return compare(row, quantities)


OPTIMA = Experiment(
    name="forestcoll-optima",
    question="Do trees reach the exact optima of ForestColl on its testbeds, with every number of trees?",
    source="Zhao et al., ForestColl, section 5 and its public code: allgather of 2 boxes of MI250 and of A100 GPUs",
    columns=columns_of({"least_k": "least k", "k": "given k", "algbw": "algbw, GB/s"}),
    cases=_optima_cases,
    evaluate=lambda row: [_compare_optimum(row)],
)
