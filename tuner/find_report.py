"""What `chorale find` says, for scripts and for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from synth.finder.find import Finding, Findings
from synth.finder.query import Query
from synth.finder.workload import Workload


def find_document(findings: Findings, workload: Workload | None) -> dict[str, Any]:
    """Return the JSON document of the contract, without seconds."""
    query = findings.query
    document: dict[str, Any] = {
        "nodes": query.nodes,
        "degree": query.degree,
        "bidirectional": query.bidirectional,
        "bases": query.bases,
        "frontier": [_row(finding, query) for finding in findings.frontier],
        "bound": {"steps": query.least_steps, "bandwidth_factor": str(query.least_bandwidth_factor)},
        "considered": findings.considered,
        "scored": findings.scored,
    }
    if workload is not None:
        best = workload.best(finding.candidate for finding in findings.frontier)
        row = next(_row(finding, query) for finding in findings.frontier if finding.candidate == best)
        document["best"] = row | {"allreduce_us": float(workload.time_us(best))}
    return document


def find_table(document: Mapping[str, Any], workload: Workload | None, findings: Findings) -> Table:
    """Return the frontier as a table for the terminal, the bound as its last row."""
    kind = "bidirectional, " if document["bidirectional"] else ""
    title = f"{document['nodes']} nodes, {kind}degree {document['degree']}"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_footer=True)
    bound = document["bound"]
    table.add_column("steps", footer=str(bound["steps"]), justify="right", no_wrap=True)
    table.add_column("T_B (M/B)", footer=bound["bandwidth_factor"], no_wrap=True)
    table.add_column("", footer=f"{float(findings.query.least_bandwidth_factor):.4f}", no_wrap=True)
    if workload is not None:
        table.add_column("us", justify="right", no_wrap=True)
    table.add_column("optimal", footer="(bounds)", no_wrap=True)
    table.add_column("method", no_wrap=True)
    table.add_column("spec", overflow="fold")
    for finding, row in zip(findings.frontier, document["frontier"], strict=True):
        cells = [str(row["steps"]), row["bandwidth_factor"], f"{float(finding.candidate.bandwidth_factor):.4f}"]
        if workload is not None:
            cells.append(f"{float(workload.time_us(finding.candidate)):.1f}")
        checked = "" if row["confirmed"] else " (schedule not made: large)"
        cells += [_optimal(row), row["method"], row["spec"] + checked]
        table.add_row(*cells, style="bold" if row["spec"] == document.get("best", {}).get("spec") else None)
    return table


def _row(finding: Finding, query: Query) -> dict[str, Any]:
    candidate = finding.candidate
    return {
        "spec": candidate.spec,
        "method": candidate.method,
        "steps": candidate.steps,
        "bandwidth_factor": str(candidate.bandwidth_factor),
        "diameter": finding.diameter,
        "bandwidth_optimal": candidate.is_bandwidth_optimal,
        "moore_optimal": candidate.steps == query.least_steps,
        "confirmed": finding.confirmed,
        "equals": finding.equals,
        "bases": list(candidate.origin),
    }


def _optimal(row: Mapping[str, Any]) -> str:
    names = [name for key, name in (("moore_optimal", "steps"), ("bandwidth_optimal", "T_B")) if row[key]]
    return ", ".join(names)
