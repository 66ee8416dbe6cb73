"""How the time of synthesis grows with the number of ranks, to 16,384, and the exponents of that growth."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.framework.references import growth_exponent, min_seconds
from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

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


def _cases(quick: bool) -> Sequence[tuple[str, str]]:
    """Return what is made, and the specs of the networks."""
    made = [(title, spec) for title, (_, specs) in _CASES.items() for spec in specs]
    return [(title, spec) for title, spec in made if not quick or _ranks(spec) <= _QUICK_RANKS]


def _seconds_of(case: tuple[str, str]) -> Mapping[str, Any]:
    title, spec = case
    make, specs = _CASES[title]
    make(parse_topology(specs[0]))  # compiled code is loaded before the clock starts
    return {"case": title, "nodes": _ranks(spec), "spec": spec, "seconds": _seconds(make, spec)}


def _conclude(parts: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [row for title in _CASES for row in _rows([part for part in parts if part["case"] == title])]


def _ranks(spec: str) -> int:
    return parse_topology(spec).compute_count


def _rows(times: Sequence[Mapping[str, Any]]) -> list[Row]:
    tail = times[-_LARGEST:]
    exponent = growth_exponent([one["nodes"] for one in tail], [one["seconds"] for one in tail])
    return [
        {
            "case": one["case"],
            "nodes": one["nodes"],
            "spec": one["spec"],
            "times_the_first": one["seconds"] / times[0]["seconds"],
            "exponent": exponent if one is times[-1] else None,
            "reason": None,
            "holds": True,
        }
        for one in times
    ]


def _seconds(make: Callable[[Topology], None], spec: str) -> float:
    topology = parse_topology(spec)
    return min_seconds(lambda: make(topology), _REPEATS, time.process_time)


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

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
    cases=_cases,
    evaluate=_seconds_of,
    conclude=_conclude,
    alone=True,
    plot=_plot,
)
