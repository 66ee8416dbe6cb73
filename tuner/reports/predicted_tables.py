"""Tuning tables without measurements: for each range of sizes the program that is predicted to be the fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from chorale.job.table.merging import SizeRange
from chorale.job.table.model import Table
from chorale.runners.api.config import CPU_TARGET
from chorale.synth.build.build import build_program
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.auto import TimedChoice
from chorale.synth.methods.catalog import AUTO_METHOD
from chorale.synth.methods.method import Options, SynthesisTask
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.reports.job_tables import JobGroup, RangeRow, assemble, checked_program, schedule_certificate

PREDICTED = "predicted"
COLLECTIVES = (ALLREDUCE, ALLGATHER, REDUCE_SCATTER)
SIZES = tuple(2**exponent for exponent in range(10, 31, 2))
"""Sizes at which methods are compared; each stands for those up to the next."""


def predicted_table(network: Topology, pricing: Pricing, group: JobGroup, dtypes: Sequence[str]) -> Table:
    """Return the table of the fastest programs by the congestion model, marked as predicted, for all sizes."""
    rows = [row for collective in COLLECTIVES for row in _rows(network, collective, pricing)]
    return assemble(rows, network, group, dtypes, {"source": PREDICTED, "model": dict(pricing.settings_on(network))})


def _rows(network: Topology, collective: Collective, pricing: Pricing) -> Iterator[RangeRow]:
    choices = AUTO_METHOD.timed(
        SynthesisTask(network, collective, Options(), SerialExecutor()), pricing.network(network)
    )
    chosen = [(size_bytes, choices.at(size_bytes)) for size_bytes in SIZES]
    runs = [list(run) for _, run in groupby(chosen, key=lambda pair: id(pair[1].traffic))]
    firsts = [0, *(run[0][0] for run in runs[1:])]
    lasts = [*(first - 1 for first in firsts[1:]), None]
    for run, first, last in zip(runs, firsts, lasts, strict=True):
        yield _row(collective, run, SizeRange(first, last))


def _row(collective: Collective, run: Sequence[tuple[int, TimedChoice]], sizes: SizeRange) -> RangeRow:
    verified = verify(run[0][1].schedule())
    schedule = verified.schedule
    lowered = build_program(verified, LoweringOptions(CPU_TARGET))
    name = f"{schedule.method} {collective.name.value}"
    _, program = checked_program(lowered.text.encode(), name, schedule.method, schedule.parameters)
    times = [{"size_bytes": size_bytes, "time_us": float(choice.seconds) * 1e6} for size_bytes, choice in run]
    provenance = {"source": PREDICTED, "sizes": times}
    certificate = schedule_certificate(verified)
    return RangeRow(collective.name.value, collective.root, sizes, program, None, certificate, provenance)
