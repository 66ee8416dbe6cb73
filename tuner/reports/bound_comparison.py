"""A schedule or a program against the certified bound of a fabric: the report of `chorale compare` with one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chorale.runners.api.units import format_size
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_ranks, bound_of_schedule, in_network_bound
from chorale.synth.bounds.optimum import Bound
from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.reports.comparison import ComparisonModel, Side
from chorale.tuner.reports.lazy_rich import Table
from chorale.tuner.reports.show import topology_document

_SHOWN_NODES = 12


def bound_comparison(side: Side, model: ComparisonModel, sizes_bytes: Sequence[int]) -> dict[str, Any]:
    """Return the JSON document of one side against the bound of its network, whose certificate is checked.

    results: seconds at each size, those that the bound leaves (bandwidth alone, no latencies), and their ratio

    InvalidInput for collectives without a bound.
    """
    collective, topology = _collective(side), side.topology
    if collective.custom is not None:
        rule = "a bound is known for collectives with a name"
        raise InvalidInput(rule, collective, "compare the program with another one")
    bound, kind = _bound(side, collective)
    check_certificate(topology, collective, bound.to_json(topology))
    unit_bytes_per_s = model.pricing.network(topology).unit_bytes_per_s(topology)
    results = []
    for size in sorted(sizes_bytes):
        time_us = model.time_s(side, size) * 1e6
        least_us = float(bound.value * size / unit_bytes_per_s) * 1e6
        results.append({"size_bytes": size, "time_us": time_us, "least_us": least_us, "ratio": time_us / least_us})
    return {
        "topology": topology_document(topology),
        "collective": str(collective),
        "side": side.document(),
        "bound": {
            "kind": kind,
            "time_per_byte": rational_text(bound.value),
            "algbw": float(1 / bound.value),
            "bottleneck_cut": _cut(side, bound),
            "certificate": dict(bound.to_json(topology)),
        },
        "gap": rational_text(side.time_per_byte / bound.value - 1),
        "parameters": {**model.pricing.settings, "model": model.fidelity, "buffer_bytes": model.buffer_bytes},
        "results": results,
    }


def _collective(side: Side) -> Collective:
    content = side.content
    return content.schedule.collective if isinstance(content, VerifiedSchedule) else content.collective


def _bound(side: Side, collective: Collective) -> tuple[Bound, str]:
    """Return the bound that holds for what the side uses: ranks alone, or switches that add and multicast, too."""
    content = side.content
    if isinstance(content, ExecutionPlan) and any(body.switches for body in content.ranks):
        in_network = in_network_bound(side.topology, collective)
        if in_network is None:
            rule = f"a plan that adds in the switch needs a fabric whose switches can, unlike {side.topology.spec}"
            raise InvalidInput(rule, side.name, "choose a fabric with such switches")
        return in_network, "in_network"
    if isinstance(content, VerifiedSchedule):
        kind = "in_network" if content.schedule.is_in_network else "ranks"
        return bound_of_schedule(content.schedule, side.time_per_byte), kind
    return bound_of_ranks(side.topology, collective, side.time_per_byte), "ranks"


def _cut(side: Side, bound: Bound) -> list[str]:
    certificate = bound.to_json(side.topology)
    return [str(node) for node in certificate.get("cut", ())]


def bound_tables(document: Mapping[str, Any]) -> list[Table]:
    """Return the tables for people: exact terms, then times by size beside the least."""
    terms = Table(title=f"{document['collective']} on {document['topology']['spec']}", show_header=False)
    for name, value in document["side"].items():
        if value is not None:
            terms.add_row(name.replace("_", " "), str(value))
    terms.add_row("bound, time per byte", f"{document['bound']['time_per_byte']} ({document['bound']['kind']})")
    terms.add_row("above the bound", f"{document['gap']} of it")
    cut = document["bound"]["bottleneck_cut"]
    if cut:
        more = ", ..." if len(cut) > _SHOWN_NODES else ""
        terms.add_row("links that limit", f"those out of {', '.join(cut[:_SHOWN_NODES])}{more}")
    times = Table(title="time by size, us")
    for heading in ("size", "predicted", "least by bandwidth", "ratio"):
        times.add_column(heading, justify="right")
    for row in document["results"]:
        numbers = (f"{row[key]:.5g}" for key in ("time_us", "least_us"))
        times.add_row(format_size(row["size_bytes"]), *numbers, f"{row['ratio']:.3f}")
    return [terms, times]
