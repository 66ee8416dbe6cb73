"""Creates the reports of `chorale find`, and reads and writes cable lists."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

from rich.table import Table

from chorale.job.files import read_file
from chorale.synth import InvalidInput, parse_topology
from chorale.synth.finder.cabling import Cable, Cabling, place_nodes
from chorale.synth.finder.candidate import TopologyCandidate, Workload, greatest_rate
from chorale.synth.finder.find import FinderQuery, FinderResult
from chorale.tuner.reports.tables import ruled_table, with_fraction

MAX_BYTES = 16 * 2**20
_COLUMNS = ("from", "from_port", "to", "to_port", "panel", "change", "from_rank", "to_rank")
_MAX_ALTERNATIVES = 4
_WORDS = {"prediction": "cost computed twice", "none": "cost computed once"}


@dataclass(frozen=True, slots=True)
class CableList:
    """A list of existing cables.

    cables: the two hosts that each cable connects
    places: each cable's ports at both hosts and its patch panel; "" if unknown
    """

    cables: tuple[Cable, ...]
    places: tuple[tuple[str, str, str], ...]

    @property
    def hosts(self) -> list[str]:
        return sorted({host for cable in self.cables for host in cable})


def read_cables(path: Path, two_way: bool) -> CableList:
    """Read a cable list. The ends are in the columns `from` and `to` or, without a header, in the first two columns.

    Rows in which `change` is `remove` are ignored, so the output of `write_cables` can be read as the existing cables.

    two_way: whether cables have no direction; the two ends of each cable are then sorted by name
    """
    text = read_file(str(path), MAX_BYTES).decode(errors="replace")
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InvalidInput(
            "the list of cables is not CSV: {}", f"{path}: {error}", "write the header from,to and a row per cable"
        ) from None
    head = [cell.strip().lower() for cell in rows[0]] if rows else []
    if not {"from", "to"} <= set(head):
        head, rows = ["from", "to"], [[], *rows]
    cables: list[Cable] = []
    places: list[tuple[str, str, str]] = []
    for number, row in enumerate(rows[1:], 1 + bool(rows[0])):
        if not any(cell.strip() for cell in row):
            continue
        cell = {name: text.strip() for name, text in zip(head, row, strict=False)}
        one, other = cell.get("from", ""), cell.get("to", "")
        if not one or not other or one == other or not (one + other).isprintable():
            rule = "a cable must connect two different hosts: {}"
            raise InvalidInput(rule, f"line {number} of {path}: {','.join(row)[:80]}", "write from,to in each row")
        if cell.get("change") == "remove":
            continue
        place = cell.get("from_port", ""), cell.get("to_port", ""), cell.get("panel", "")
        if two_way and other < one:
            one, other, place = other, one, (place[1], place[0], place[2])
        cables.append((one, other))
        places.append(place)
    if not cables:
        raise InvalidInput("the list of cables is empty: {}", path, "write the header from,to and a row per cable")
    return CableList(tuple(cables), tuple(places))


def write_cables(cabling: Cabling, present: CableList | None, panel_ports: int | None) -> bytes:
    """Return the cables of `cabling` as CSV, with the ranks of both hosts and a column `change`: keep, add or remove.

    Existing cables keep the ports and panels that they have in `present`. New cables use the free port with the lowest
    number at each host. With `panel_ports`, cables go through patch panels with this number of ports, two per cable.
    """
    known: dict[Cable, list[tuple[str, str, str]]] = defaultdict(list)
    if present is not None:
        for cable, place in zip(present.cables, present.places, strict=True):
            known[cable].append(place)
    kept = [(cable, known[cable].pop(0) if known[cable] else ("", "", "")) for cable in cabling.kept]
    ports: dict[str, set[str]] = defaultdict(set)
    panels: dict[str, int] = defaultdict(int)
    for (one, other), (port, other_port, panel) in kept:
        ports[one].add(port)
        ports[other].add(other_port)
        panels[panel] += 2

    def filled(cable: Cable, labels: tuple[str, str, str]) -> list[str]:
        ends, panel = list(labels[:2]), labels[2]
        for end, host in enumerate(cable):
            ends[end] = ends[end] or next(port for port in map(str, count(1)) if port not in ports[host])
            ports[host].add(ends[end])
        if not panel and panel_ports is not None:  # the first panel with two free ports
            panel = next(name for name in map(str, count(1)) if panels[name] + 2 <= panel_ports)
            panels[panel] += 2
        return [cable[0], ends[0], cable[1], ends[1], panel]

    rows = [[*filled(cable, place), "keep"] for cable, place in kept]
    rows += [[*filled(cable, ("", "", "")), "add"] for cable in cabling.added]
    for one, other in cabling.removed:
        port, other_port, panel = known[one, other].pop(0) if known[one, other] else ("", "", "")
        rows.append([one, port, other, other_port, panel, "remove"])
    rank_of = {host: str(rank) for rank, host in enumerate(cabling.hosts)}
    rows = [[*row, rank_of[row[0]], rank_of[row[2]]] for row in rows]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *rows])
    return text.getvalue().encode()


@dataclass(frozen=True, slots=True)
class Wiring:
    """Searches heuristically, for each network, for the placement on hosts that keeps the most existing cables.

    present:     existing cables; None if all cables are new
    most:        maximum number of cables to add; None for any number
    panel_ports: number of ports of a patch panel; None without panels
    placed:      spec of a network -> its placement, if already computed
    """

    query: FinderQuery
    present: CableList | None = None
    most: int | None = None
    panel_ports: int | None = None
    placed: dict[str, Cabling] = field(default_factory=dict)

    @staticmethod
    def of(query: FinderQuery, keep: Path | None, moves: int | None, panel_ports: int | None) -> Wiring:
        """Read the cable list `keep`. Raises InvalidInput if `moves` is given without a list."""
        if keep is None and moves is not None:
            raise InvalidInput("{} needs the existing cables", f"--moves {moves}", "add --keep-cables FILE")
        present = None if keep is None else read_cables(keep, query.bidirectional)
        return Wiring(query, present, moves, panel_ports)

    def cabling(self, spec: str) -> Cabling:
        """Return the best placement found for the nodes of `spec`: the one that keeps the most existing cables."""
        if spec not in self.placed:
            hosts = [f"n{rank}" for rank in range(self.query.nodes)] if self.present is None else self.present.hosts
            lying = () if self.present is None else self.present.cables
            self.placed[spec] = place_nodes(parse_topology(spec), hosts, lying, self.query.bidirectional)
        return self.placed[spec]

    def allows(self, candidate: TopologyCandidate) -> bool:
        """Return whether `candidate` can be built without exceeding the allowed number of new cables."""
        return self.most is None or self.cabling(candidate.spec).moves <= self.most

    def too_few_moves(self) -> InvalidInput:
        """Return the error to raise if no network can be built with the allowed number of new cables."""
        spec, nearest = min(self.placed.items(), key=lambda item: (item[1].moves, item[0]))
        value = f"{self.most}; the fewest that were found, for {spec}, are {nearest.moves}"
        return InvalidInput("no network can be built with so few new cables: {}", value, "allow more --moves")

    def csv(self, spec: str) -> bytes:
        return write_cables(self.cabling(spec), self.present, self.panel_ports)

    def summary(self, spec: str) -> str:
        """Describe how many cables and panels `spec` needs, and how many existing cables are removed."""
        rows = list(csv.DictReader(io.StringIO(self.csv(spec).decode())))
        wanted = [row["panel"] for row in rows if row["change"] != "remove"]
        numbers = {"cables": len(wanted), "panels": len({*wanted} - {""}), "to remove": len(rows) - len(wanted)}
        words = [
            f"{number} {name if number > 1 else name.removesuffix('s')}" for name, number in numbers.items() if number
        ]
        return f"{', '.join(words)}, of {spec}"

    def facts(self, spec: str) -> dict[str, Any]:
        """Return the host of each rank, and how many cables to keep, add and remove; empty without existing cables."""
        if self.present is None:
            return {}
        cabling = self.cabling(spec)
        counts = {name: len(getattr(cabling, name)) for name in ("kept", "added", "removed")}
        return {"cables": counts, "hosts": list(cabling.hosts)}


def find_document(findings: FinderResult, workload: Workload | None, wiring: Wiring | None = None) -> dict[str, Any]:
    """Return the JSON document of `chorale find`, without the key `seconds`."""
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
            | wiring.facts(finding.candidate.spec)
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
    """Return the JSON document with the Pareto frontier for each number of nodes, without the key `seconds`."""
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
    """Return a table of the networks on the frontier, with the best one for the workload in bold and the bound last."""
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
        table.caption = f"{table.caption}; all-to-all: rate from each node to each other node, × link bandwidth"
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
