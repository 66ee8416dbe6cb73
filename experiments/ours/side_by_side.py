"""BFB, packed trees, Swing and rings on the same networks: which is fastest where. No paper shows them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.experiments.swing.curves import OVERHEAD_US
from chorale.runners.api.units import format_size
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import InvalidInput
from chorale.synth.simulation.congestion import Congestion, congestion_of
from chorale.tuner.costs.pricing import Pricing, traffic_of_method
from chorale.tuner.files.topology_specs import load_topology

NETWORKS = (
    "torus:8x8", "torus:16x4", "torus:4x4x4",
    "hyperx:8x8", "genkautz:4,64", "circulant:64,5,6",
    "hxmesh:2,4x4", "a100:2", "mi250:2",
)  # fmt: skip
"""Grids, networks that are none, and networks with switches; 64 ranks, 16 and 32 on the last two."""
SLOW = ("hxmesh:2,4x4", "mi250:2")
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "BFB": ("bfb",),
    "forest": ("forest",),
    "Swing": ("swing-latency", "swing"),
    "rings": ("hamiltonian-ring", "ring", "biring"),
}
"""The methods of each line; the fastest of those that suit a network counts."""
SIZES = tuple(2**10 * 4**power for power in range(12))
_ROUNDING = 1 - 1e-12


def _cases(quick: bool) -> Sequence[str]:
    """Return specs."""
    return [spec for spec in NETWORKS if not (quick and spec in SLOW)]


def _rows(spec: str) -> list[Row]:
    given = {"alpha_us": str(OVERHEAD_US), "link_latency_us": None, "hop_us": None, "link_gbps": "400"}
    pricing = Pricing.of(given, None)
    topology = load_topology(spec)
    model = pricing.network(topology)
    costs = {family: _costs(spec, methods, pricing) for family, methods in FAMILIES.items()}
    bound_per_byte = lower_bound(topology, ALLREDUCE).value / model.unit_bytes_per_s(topology)
    rows: list[Row] = []
    for size_bytes in SIZES:
        times = {
            family: min((float(cost.seconds(model, size_bytes)), method) for method, cost in of_methods.items())
            for family, of_methods in costs.items()
            if of_methods
        }
        fastest = min(times, key=times.__getitem__)
        bound_s = float(bound_per_byte * size_bytes)
        rows.append({
            "nodes": topology.compute_count,
            "spec": spec,
            "size_bytes": size_bytes,
            "us": {family: seconds * 1e6 for family, (seconds, _) in times.items()},
            "method": {family: method for family, (_, method) in times.items()},
            "fastest": fastest,
            "bound_us": bound_s * 1e6,
            "reason": None,
            "holds": all(seconds >= bound_s * _ROUNDING for seconds, _ in times.values()),
        })  # fmt: skip
    return rows


def _costs(spec: str, methods: Sequence[str], pricing: Pricing) -> dict[str, Congestion]:
    """Return the costs of those of `methods` that suit the network, schedules being verified on the way."""
    costs = {}
    for method in methods:
        try:
            costs[method] = congestion_of(traffic_of_method(method, spec, "allreduce", pricing, None).traffic)
        except InvalidInput:
            continue  # bfb does not run on switches; edge-disjoint Hamiltonian rings need certain shapes
    return costs


def _plot(rows: Sequence[Row], path: Path) -> None:
    from chorale.experiments.ours.plots import plot_side_by_side  # noqa: PLC0415 (matplotlib is slow)

    plot_side_by_side(rows, tuple(FAMILIES), path)


def _time(family: str) -> Column:
    return Column(f"{family}, us", lambda row: f"{row['us'][family]:.4g}" if family in row["us"] else "")


EXPERIMENT = Experiment(
    name="side-by-side",
    question="Where do BFB, packed trees, Swing and rings win, on the same networks?",
    source=f"ours; 400 Gbit/s or a fabric's own rates, 100 ns a link, 300 ns a hop, {float(OVERHEAD_US)} us a message",
    columns=(
        Column("spec", lambda row: str(row["spec"])),
        Column("size", lambda row: format_size(row["size_bytes"])),
        *map(_time, FAMILIES),
        Column("bound, us", lambda row: f"{row['bound_us']:.4g}"),
        Column("fastest", lambda row: f"{row['fastest']}: {row['method'][row['fastest']]}"),
    ),
    cases=_cases,
    evaluate=_rows,
    plot=_plot,
)
