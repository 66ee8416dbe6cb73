"""`chorale table verify`: every check of a table, those of links on the network that it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chorale.job.table.model import Table
from chorale.job.table.verification import TableViolation, checked_table, link_violations
from chorale.synth.errors import ChoraleError
from chorale.synth.targets.judge import reachability
from chorale.tuner.files.topology_specs import load_topology


def verification_document(data: bytes) -> dict[str, Any]:
    """Return the document of the command for the bytes of a file; InvalidInput for a file that is no table.

    links: `checked`, or why they were not
    """
    table, violations = checked_table(data)
    links = "not checked"
    if table is not None and not violations:
        links, more = _links(table)
        violations += more
    programs = [] if table is None else sorted(table.programs)
    return {
        "ok": not violations,
        "digest": data.split(b"\n", 2)[1].split()[-1].decode(errors="replace") if table is not None else None,
        "violations": [_document(item) for item in violations],
        "programs": [_program(digest, violations) for digest in programs],
        "links": links,
    }


def _links(table: Table) -> tuple[str, Sequence[TableViolation]]:
    """Return whether links were checked, and the sends that have no path."""
    spec = table.topology.get("spec")
    if not isinstance(spec, str):
        return "not checked: the table names no network of the job", ()
    try:
        network = load_topology(spec)
    except ChoraleError as error:
        return f"not checked: {error}", ()
    if (network.id, network.compute_count) != (table.topology.get("id"), table.ranks):
        return "checked", [TableViolation("topology", f"{spec} is another network now")]
    return "checked", link_violations(table, reachability(network))


def _document(violation: TableViolation) -> dict[str, Any]:
    name = "" if violation.program is None else f"program {violation.program[:12]}: "
    return {"rule": violation.rule, "message": f"{name}{violation.message}", "program": violation.program}


def _program(digest: str, violations: Sequence[TableViolation]) -> dict[str, Any]:
    return {"digest": digest, "ok": all(item.program != digest for item in violations)}
