"""The search for base topologies, recorded in a file so that it can be resumed, and the reports of `chorale find`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from rich.table import Table

from chorale.job.files import read_file
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor
from chorale.synth.finder.cabling import Cabling, place_nodes
from chorale.synth.finder.candidate import TopologyCandidate, Workload
from chorale.synth.finder.cayley_search import SearchProgress, read_log, search_cayley_graphs, searches_for, write_log
from chorale.synth.finder.find import FinderResult, Stage
from chorale.synth.finder.query import FinderQuery
from chorale.synth.finder.rated import greatest_rate
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.cable_files import CableList, read_cables, write_cables
from chorale.tuner.files.read_write import write_file
from chorale.tuner.reports.tables import ruled_table, with_fraction

_MAX_ALTERNATIVES = 4
_BATCH = 16
"""Seeds between two writes of the record."""

Bases = dict[tuple[int, int], tuple[TopologyCandidate, ...]]


def search_bases(query: FinderQuery, seeds: int, executor: Executor, stage: Stage, record: Path | None) -> Bases:
    """Try seeds 0 to `seeds` - 1 for all sizes that `query` uses; return Pareto-efficient bases by (nodes, degree).

    Seeds in the file `record` are not tried again. It is written every few seeds, so that an interrupt loses little;
    the result is that of one uninterrupted run.
    """
    searched = {} if record is None or not os.path.exists(record) else read_log(read_file(str(record)), record.name)
    bases: Bases = {}
    for search in searches_for(query):
        report = stage(f"bases of {search.nodes} nodes")
        progress = searched.get(search, SearchProgress(0, ()))
        while progress.seeds < seeds:
            batch = range(progress.seeds, min(progress.seeds + _BATCH, seeds))
            progress = SearchProgress(batch.stop, search_cayley_graphs(search, batch, executor, progress.frontier))
            searched[search] = progress
            if report is not None:
                report(batch.stop, seeds)
            if record is not None:
                write_file(record, write_log(searched))
        bases[search.nodes, search.degree] = progress.frontier
    return bases


@dataclass(frozen=True, slots=True)
class Wiring:
    """Existing cables, how many new ones are allowed, and the best placement of each network's nodes.

    most: most cables to be added; None for any number
    """

    query: FinderQuery
    present: CableList | None = None
    most: int | None = None
    panel_ports: int | None = None
    placed: dict[str, Cabling] = field(default_factory=dict)

    @staticmethod
    def of(query: FinderQuery, keep: Path | None, moves: int | None, panel_ports: int | None) -> Wiring:
        """Read the list of cables `keep`. Raises InvalidInput if `moves` is given without it."""
        if keep is None and moves is not None:
            raise InvalidInput("--moves counts from cables that lie", f"--moves {moves}", "add --keep-cables FILE")
        present = None if keep is None else read_cables(keep, query.bidirectional)
        return Wiring(query, present, moves, panel_ports)

    def cabling(self, spec: str) -> Cabling:
        """Return the placement of the nodes of `spec`."""
        if spec not in self.placed:
            hosts = [f"n{rank}" for rank in range(self.query.nodes)] if self.present is None else self.present.hosts
            lying = () if self.present is None else self.present.cables
            self.placed[spec] = place_nodes(parse_topology(spec), hosts, lying, self.query.bidirectional)
        return self.placed[spec]

    def allows(self, candidate: TopologyCandidate) -> bool:
        """Return whether few enough cables must be added."""
        return self.most is None or self.cabling(candidate.spec).moves <= self.most

    def too_few_moves(self) -> InvalidInput:
        """Return the error that no network can be had by so few moves."""
        spec, nearest = min(self.placed.items(), key=lambda item: (item[1].moves, item[0]))
        value = f"{self.most}; the nearest that was found, {spec}, needs {nearest.moves}"
        return InvalidInput("a network must be reached by the moves that are allowed", value, "allow more --moves")

    def csv(self, spec: str) -> bytes:
        """Return the list of cables of `spec`."""
        return write_cables(self.cabling(spec), self.present, self.panel_ports)

    def counts(self, spec: str) -> dict[str, dict[str, int]]:
        """Return the numbers of cables that stay, are added and are removed, if there are existing cables."""
        if self.present is None:
            return {}
        cabling = self.cabling(spec)
        return {"cables": {name: len(getattr(cabling, name)) for name in ("kept", "added", "removed")}}


_WORDS = {"prediction": "cost computed twice", "none": "cost computed once"}


def find_document(findings: FinderResult, workload: Workload | None, wiring: Wiring | None = None) -> dict[str, Any]:
    """Return the JSON document of `chorale find`, without seconds."""
    query, rows = findings.query, []
    wiring = wiring or Wiring(query)
    for finding in findings.frontier:
        time = {} if workload is None else {"allreduce_us": float(workload.time_us(finding.candidate))}
        rows.append(
            _cost(finding.candidate, query)
            | time
            | {
                "diameter": finding.diameter,
                "confirmed": finding.confirmed,
                "confirmation": finding.confirmation,
                "equals": len(finding.alternatives),
                "alternatives": list(finding.alternatives[:_MAX_ALTERNATIVES]),
                "bases": list(finding.candidate.origin),
            }
            | wiring.counts(finding.candidate.spec)
        )
        if finding.rate is not None:
            rows[-1]["alltoall"] = {"rate": float(finding.rate.rate), "upper": float(finding.rate.upper)}
    document: dict[str, Any] = {
        "nodes": query.nodes,
        "degree": query.degree,
        "bidirectional": query.bidirectional,
        "bases": query.bases,
        "frontier": rows,
        "bound": {"steps": query.least_steps, "bandwidth_factor": str(query.least_bandwidth_factor)},
        "considered": findings.considered,
        "scored": findings.scored,
    }
    if any("alltoall" in row for row in rows):
        document["bound"]["alltoall_rate"] = float(greatest_rate(query.nodes, query.degree, query.bidirectional))
    if workload is not None:
        best = workload.best(finding.candidate for finding in findings.frontier)
        document["best"] = next(row for row in rows if row["spec"] == best.spec)
    return document


def sizes_document(
    frontiers: Mapping[FinderQuery, Sequence[TopologyCandidate]], workload: Workload | None
) -> dict[str, Any]:
    """Return the JSON document of the frontiers of many sizes, without seconds."""
    first = next(iter(frontiers))
    sizes: list[dict[str, Any]] = []
    for query, candidates in frontiers.items():
        size: dict[str, Any] = {
            "nodes": query.nodes,
            "frontier": [_cost(candidate, query) for candidate in candidates],
            "bound": {"steps": query.least_steps, "bandwidth_factor": str(query.least_bandwidth_factor)},
        }
        if workload is not None:
            best = workload.best(candidates)
            size["best"] = _cost(best, query) | {"allreduce_us": float(workload.time_us(best))}
        sizes.append(size)
    return {"degree": first.degree, "bidirectional": first.bidirectional, "bases": first.bases, "sizes": sizes}


def _cost(candidate: TopologyCandidate, query: FinderQuery) -> dict[str, Any]:
    return {
        "spec": candidate.spec,
        "method": candidate.method,
        "steps": candidate.steps,
        "bandwidth_factor": str(candidate.bandwidth_factor),
        "bandwidth_optimal": candidate.is_bandwidth_optimal,
        "moore_optimal": candidate.steps == query.least_steps,
    }


def find_table(document: Mapping[str, Any]) -> Table:
    """Return a row for every row of a frontier, the best of a workload in bold; of one size, the bound as the last."""
    is_one, best = "sizes" not in document, document.get("best")
    table = ruled_table(caption="bandwidth time: × size / node bandwidth", show_footer=is_one)
    bound = document["bound"] if is_one else {"steps": "", "bandwidth_factor": "0"}
    if is_one:
        kind = "bidirectional, " if document["bidirectional"] else ""
        table.title = f"{document['nodes']} nodes, {kind}degree {document['degree']}"
    else:
        table.add_column("nodes", no_wrap=True)
    table.add_column("steps", footer=str(bound["steps"]), justify="right", no_wrap=True)
    table.add_column("bandwidth time", footer=_factor_text(bound["bandwidth_factor"]), no_wrap=True)
    if best is not None:
        table.caption = f"{table.caption}; us: allreduce of the workload, the fastest in bold"
        table.add_column("us", justify="right", no_wrap=True)
    rated, wired = (is_one and any(key in row for row in document["frontier"]) for key in ("alltoall", "cables"))
    if rated:
        table.caption = f"{table.caption}; all-to-all: what a node sends to each other at once, × link bandwidth"
        table.add_column("all-to-all", footer=f"{bound['alltoall_rate']:.5f}", no_wrap=True)
    if wired:
        table.add_column("cables", no_wrap=True)
    table.add_column("optimal", footer="(bounds)", no_wrap=True)
    table.add_column("method", no_wrap=True)
    table.add_column("spec", overflow="fold")
    for size in [document] if is_one else document["sizes"]:
        for index, row in enumerate(size["frontier"]):
            cells = [] if is_one else ["" if index else str(size["nodes"])]
            cells += [str(row["steps"]), _factor_text(row["bandwidth_factor"])]
            cells += [] if best is None else [f"{row['allreduce_us']:.1f}"]
            cells += [f"{row['alltoall']['rate']:.5f}"] if rated else []
            cells += ["{kept} kept, {added} new".format(**row["cables"])] if wired else []
            optimal = {"steps": row["moore_optimal"], "bandwidth": row["bandwidth_optimal"]}
            unmade = "" if row.get("confirmed", True) else f" (schedule not made: large; {_WORDS[row['confirmation']]})"
            specs = "\nor ".join([row["spec"] + unmade, *row.get("alternatives", ())])
            cells += [", ".join(name for name, is_so in optimal.items() if is_so), row["method"], specs]
            table.add_row(*cells, style="bold" if row["spec"] == size.get("best", {}).get("spec") else None)
    return table


def _factor_text(factor: str) -> str:
    return with_fraction(f"{float(Fraction(factor)):.4f}", Fraction(factor))
