"""What is left of the bandwidth when links fail: 1, 2 and 5 % of all, chosen by a seed. No paper asks this."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from chorale.experiments.framework.comparison import short_text
from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

NETWORKS = ("torus:8x8", "hyperx:8x8", "circulant:64,5,6")
_SLOW = ("hyperx:8x8",)
PERCENT = (0, 1, 2, 5)
SEEDS = (0, 1, 2)
METHODS = ("forest", "bfb")


@dataclass(frozen=True, slots=True)
class _Intact:
    """A network before failures: its pairs of nodes with links, and T_B by method."""

    topology: Topology
    pairs: tuple[tuple[int, int], ...]

    def spec_without(self, percent: int, seed: int) -> str:
        """Return the spec of what is left without `percent` of the pairs, at least one, chosen by `seed`."""
        if not percent:
            return self.topology.spec
        lost = random.Random(seed).sample(self.pairs, max(1, round(len(self.pairs) * percent / 100)))  # noqa: S311
        ids = self.topology.node_ids
        return f"without({self.topology.spec};{';'.join(f'link={ids[low]}-{ids[high]}' for low, high in lost)})"


def _cases(quick: bool) -> Sequence[tuple[str, int, int]]:
    """Return networks, how many percent of their links fail, and the seeds that choose which."""
    chosen = [spec for spec in NETWORKS if not (quick and spec in _SLOW)]
    seeds = SEEDS[:1] if quick else SEEDS
    return [
        (spec, percent, seed) for spec in chosen for percent in PERCENT for seed in (seeds if percent else seeds[:1])
    ]


def _intact(spec: str) -> _Intact:
    topology = parse_topology(spec)
    ends = np.sort(np.stack([topology.links.src, topology.links.dst]), axis=0)
    return _Intact(topology, tuple(map(tuple, np.unique(ends, axis=1).T.tolist())))


def _rows(case: tuple[str, int, int]) -> list[Row]:
    network, percent, seed = case
    intact = _intact(network)
    spec = intact.spec_without(percent, seed)
    facts = {"nodes": intact.topology.compute_count, "network": network, "percent": percent, "seed": seed}
    try:
        survivor = parse_topology(spec)
    except InvalidInput as error:
        return [{**facts, "spec": spec, "method": None, "reason": str(error), "holds": True}]
    least = lower_bound(survivor, ALLGATHER).value
    return [{**facts, "spec": spec, "method": method, **_quality(survivor, method, least)} for method in METHODS]


def _quality(survivor: Topology, method: str, least: Fraction) -> Row:
    """Return the time of a verified schedule over what no schedule beats; trees reach that exactly, come what may."""
    time_per_byte = synthesize(method, survivor, ALLGATHER, None, SerialExecutor()).cost.time_per_byte
    return {
        "time_per_byte": str(time_per_byte),
        "over_bound": str(time_per_byte / least),
        "reason": None if time_per_byte == least else "shortest paths only cannot go round what failed",
        "holds": time_per_byte == least if method == "forest" else time_per_byte >= least,
    }


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.framework.plots import plot_panels  # noqa: PLC0415 (matplotlib is slow)

    networks = dict.fromkeys(row["network"] for row in rows)
    panels = {
        network: {
            method: [(row["percent"], float(Fraction(row["time_per_byte"]))) for row in rows
                     if row["network"] == network and row["method"] == method]
            for method in METHODS
        }
        for network in networks
    }  # fmt: skip
    plot_panels(panels, "% of links lost", "T_B / M", path, "linear")


def _text(row: Row, key: str) -> str:
    return short_text(Fraction(row[key])) if key in row else ""


EXPERIMENT = Experiment(
    name="failure-quality",
    question="How much slower are exact schedules when 1, 2 or 5 % of the links are lost?",
    source="ours; links are lost both ways, chosen by a seed",
    columns=(
        Column("network", lambda row: str(row["network"])),
        Column("lost", lambda row: f"{row['percent']} %"),
        Column("seed", lambda row: str(row["seed"])),
        Column("method", lambda row: row["method"] or ""),
        Column("T_B / M", lambda row: _text(row, "time_per_byte")),
        Column("over the bound", lambda row: _text(row, "over_bound")),
        Column("reason", lambda row: row["reason"] or ""),
    ),
    cases=_cases,
    evaluate=_rows,
    plot=_plot,
)
