"""How the time of synthesis grows with the number of ranks, to 16,384, and the exponents of that growth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.experiment import Column, Experiment, Report, Row
from experiments.timing import growth_exponent, least_seconds
from synth.bfb.symmetric import symmetric_bfb
from synth.bound.optimum import optimum
from synth.collective import ALLGATHER
from synth.executor.serial import SerialExecutor
from synth.methods import synthesize_unverified
from synth.topology.spec import parse_topology
from synth.topology.topology import Topology

_QUICK_RANKS = 256


def _bfb(topology: Topology) -> None:
    symmetric_bfb(topology, ALLGATHER, SerialExecutor())


def _forest(topology: Topology) -> None:
    synthesize_unverified("forest", topology, ALLGATHER, None, SerialExecutor())


def _optimum(topology: Topology) -> None:
    optimum(topology, ALLGATHER)


_CASES: Mapping[str, tuple[Callable[[Topology], None], tuple[str, ...]]] = {
    "BFB by symmetry, 2D tori": (_bfb, tuple(f"torus:{n}x{n}" for n in (4, 8, 16, 32, 64, 128))),
    "BFB by symmetry, hypercubes": (_bfb, tuple(f"hypercube:{n}" for n in (4, 6, 8, 10, 12, 14))),
    "forest, boxes of A100": (_forest, tuple(f"a100:{boxes}" for boxes in (2, 4, 8, 16, 32, 64))),
    "optimum, boxes of A100": (_optimum, tuple(f"a100:{boxes}" for boxes in (2, 4, 8, 16, 32, 64, 128))),
}
_LARGEST = 3
"""The exponent is fitted to so many of the largest: small ones are start-up."""


_REPEATS = 3


def _run(report: Report, quick: bool) -> Sequence[Row]:
    rows: list[Row] = []
    for done, (title, (make, specs)) in enumerate(_CASES.items()):
        report(title, done, len(_CASES))
        chosen = [spec for spec in specs if not quick or _ranks(spec) <= _QUICK_RANKS]
        rows += _rows(title, make, chosen)
    return rows


def _ranks(spec: str) -> int:
    return parse_topology(spec).compute_count


def _rows(title: str, make: Callable[[Topology], None], specs: Sequence[str]) -> list[Row]:
    make(parse_topology(specs[0]))  # compiled code is loaded once
    times = [(spec, _ranks(spec), _seconds(make, spec)) for spec in specs]
    tail = times[-_LARGEST:]
    exponent = growth_exponent([ranks for _, ranks, _ in tail], [seconds for _, _, seconds in tail])
    return [
        {
            "case": title,
            "nodes": nodes,
            "spec": spec,
            "times_the_first": seconds / times[0][2],
            "exponent": exponent if spec == specs[-1] else None,
            "reason": None,
            "holds": True,
        }
        for spec, nodes, seconds in times
    ]


def _seconds(make: Callable[[Topology], None], spec: str) -> float:
    topology = parse_topology(spec)
    return least_seconds(lambda: make(topology), _REPEATS, time.process_time)


def _plot(rows: Sequence[Row], path: Path) -> None:
    from experiments.line_panels import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    cases = dict.fromkeys(row["case"] for row in rows)
    lines = {case: [(row["nodes"], row["times_the_first"]) for row in rows if row["case"] == case] for case in cases}
    plot_panels({"synthesis": lines}, "ranks", "times as long as the smallest", path)


EXPERIMENT = Experiment(
    name="synthesis-scaling",
    question="With which power of the number of ranks does the time of synthesis grow, to 16,384 ranks?",
    source="ours; CPU time over that of the smallest network of the same run",
    columns=(
        Column("case", lambda row: str(row["case"])),
        Column("ranks", lambda row: str(row["nodes"])),
        Column("spec", lambda row: str(row["spec"])),
        Column("times as long as the first", lambda row: f"{row['times_the_first']:.3g}"),
        Column(
            f"exponent over the largest {_LARGEST}", lambda row: f"{row['exponent']:.2f}" if row["exponent"] else ""
        ),
    ),
    run=_run,
    plot=_plot,
)
