"""What `chorale synth` says about a schedule, for scripts and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from synth.bound.cut import Bound
from synth.schedule.symmetric import SymmetricSchedule
from synth.verify.symmetric import VerifiedSymmetric
from synth.verify.verified import VerifiedSchedule
from tuner.describe import describe_topology

_VERIFIED = {
    "columns": "yes: every chunk replayed",
    "symmetric": "yes: rank 0 replayed, symmetries checked",
}


def synthesis_document(
    verified: VerifiedSchedule | VerifiedSymmetric, bound: Bound, seconds: Mapping[str, float]
) -> dict[str, Any]:
    """Return the JSON document of the contract, without memory and output path."""
    schedule, cost = verified.schedule, verified.cost
    gap = cost.time_per_byte / bound.value - 1
    factor = cost.bandwidth_factor
    if isinstance(schedule, SymmetricSchedule):
        form, transfers = "symmetric", schedule.transfer_count
    else:
        form, transfers = "columns", len(schedule.transfers)
    return {
        "topology": describe_topology(schedule.topology),
        "collective": schedule.collective.name.value,
        "method": schedule.method,
        "parameters": dict(schedule.parameters),
        "schedule": {
            "form": form,
            "kind": schedule.kind,
            "steps": schedule.steps,
            "height": schedule.steps,
            "transfers": transfers,
            "chunks_per_shard": schedule.chunks_per_shard,
            "trees_per_root": schedule.trees_per_root,
            "id": schedule.id,
        },
        "cost": {
            "bandwidth_factor": None if factor is None else str(factor),
            "time_per_byte": str(cost.time_per_byte),
            "algbw": float(1 / cost.time_per_byte),
        },
        "optimality": {
            "lower_bound": str(bound.value),
            "achieved": str(cost.time_per_byte),
            "gap": str(gap),
            "certificate": dict(bound.to_json(schedule.topology)),
        },
        "seconds": dict(seconds),
        "verified": True,
    }


def synthesis_table(document: Mapping[str, Any]) -> Table:
    """Return the same as a table for the terminal."""
    topology, schedule, cost = document["topology"], document["schedule"], document["cost"]
    optimality, seconds = document["optimality"], document["seconds"]
    unit = document["unit"]
    gap = optimality["gap"]
    verdict = "optimal" if gap == "0" else f"{float(_fraction(gap)):.2%} above the bound"
    table = Table(title=f"{document['method']} {document['collective']} on {topology['spec']}", show_header=False)
    table.add_row("network", f"{topology['nodes']} nodes, {topology['links']} links, diameter {topology['diameter']}")
    table.add_row("schedule", f"{schedule['steps']} steps, {schedule['transfers']} transfers")
    table.add_row("chunks per shard", str(schedule["chunks_per_shard"]))
    if cost["bandwidth_factor"] is not None:
        table.add_row("bandwidth time", f"{cost['bandwidth_factor']} M/B")
    table.add_row("time per byte", f"{cost['time_per_byte']} per {unit}")
    table.add_row("algbw", f"{cost['algbw']:.4g} {unit}")
    table.add_row("lower bound", f"{optimality['lower_bound']} ({verdict})")
    table.add_row("seconds", ", ".join(f"{name} {value:.3f}" for name, value in seconds.items()))
    table.add_row("verified", _VERIFIED[schedule["form"]])
    table.add_row("id", schedule["id"])
    if document["output"]:
        table.add_row("written to", document["output"])
    return table


def _fraction(text: str) -> float:
    numerator, _, denominator = text.partition("/")
    return int(numerator) / int(denominator or 1)
