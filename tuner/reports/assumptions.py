"""What networks read from machines rest on: assumptions, and what the machine's library is expected to reach."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from rich.table import Table

from chorale.synth.collective import ALLREDUCE
from chorale.synth.topology.topology import Topology
from chorale.tuner.reports.bound import bound_facts, bound_report, expected_facts
from chorale.tuner.reports.tables import algbw_text

MOST_RANKS = 128
"""Networks with more are shown without their bounds, which take long."""


def machine_bounds(topology: Topology) -> dict[str, Any]:
    """Return `bound` and `expected` of an allreduce on a network from a machine; nothing for others and large ones."""
    if not topology.assumptions or topology.compute_count > MOST_RANKS:
        return {}
    report = bound_report(topology, ALLREDUCE, None)
    bound = bound_facts(topology, report.bound)
    return {"bound": {"collective": "allreduce"} | (bound or {}), "expected": expected_facts(topology, ALLREDUCE)}


def bound_rows(document: dict[str, Any], unit: str) -> Iterator[tuple[str, str]]:
    """Yield the rows of a table for what `machine_bounds` returned."""
    if document:
        bound = document["bound"]
        yield f"allreduce, {bound_label(bound['certificate'])}", algbw_text(Fraction(bound["time_per_byte"]), unit)
        if (text := expected_text(document["expected"], unit)) is not None:
            yield "allreduce, expected of the library", text


def bound_label(certificate: dict[str, Any]) -> str:
    """Return the name of a bound in tables: whether it is proven, or rests on a guess."""
    return "bound under these assumptions" if certificate.get("under") else "proven bound"


def assumption_rows(topology: Topology, source: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield a row of a table for each assumption, of one `source` if that is given."""
    for fact in topology.assumptions:
        if source in (None, fact.source):
            yield f"assumed ({fact.source})", f"{fact.what}: {fact.value} ({fact.reference})"


def add_assumptions(table: Table, topology: Topology, expected: dict[str, Any] | None) -> None:
    """Add to a table what the library is expected to reach, and the guesses that the numbers rest on."""
    if (text := expected_text(expected, topology.bandwidth_unit)) is not None:
        table.add_row("expected of the library", text)
    for row in assumption_rows(topology, "guess"):
        table.add_row(*row)


def expected_text(facts: dict[str, Any] | None, unit: str) -> str | None:
    """Return what the library is expected to reach, as text."""
    return None if facts is None else algbw_text(Fraction(facts["time_per_byte"]), unit)
