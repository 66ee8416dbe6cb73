"""Reports of `chorale show` on a schedule or a program: cost, loads of links, paths of data, times of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth.identity import rational_text
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import data_paths, traffic_of
from chorale.synth.targets.resources import resources_of
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.pricing import program_loads
from chorale.tuner.reports.quantities import fact_label, fact_text
from chorale.tuner.reports.tables import facts_table


def schedule_document(verified: VerifiedSchedule, rank: int) -> dict[str, Any]:
    """Return the JSON document of a schedule, with the paths of the data of `rank`."""
    schedule, cost = verified.schedule, verified.cost
    traffic = traffic_of(schedule)
    loads = sum((traffic.link_amounts(step) for step in traffic.steps), np.zeros(len(schedule.topology.links), int))
    return {
        "kind": "schedule",
        "topology": topology_document(schedule.topology),
        "collective": schedule.collective.name.value,
        "method": schedule.method,
        "schedule": {
            "kind": schedule.kind,
            "steps": schedule.steps,
            "chunks_per_shard": schedule.chunks_per_shard,
            "transfers": schedule.transfer_count,
            "trees_per_root": schedule.trees_per_root,
            "id": schedule.id,
        },
        "cost": {
            "bandwidth_factor": None if cost.bandwidth_factor is None else rational_text(cost.bandwidth_factor),
            "time_per_byte": rational_text(cost.time_per_byte),
            "algbw": float(1 / cost.time_per_byte),
        },
        "links": _links(schedule.topology, loads, traffic.denominator),
        "ways": _paths(schedule.expand(), rank),
    }


def program_document(
    program: AnyProgram, topology: Topology, size_bytes: int, trace: ProgramTrace, time_s: float
) -> dict[str, Any]:
    """Return the JSON document of a program and of its simulation `trace`."""
    loads = program_loads(program, topology)
    return {
        "kind": "program",
        "topology": topology_document(topology),
        "name": program.name,
        **program_facts(program),
        "cost": {"time_per_byte": rational_text(topology.links.longest_time(loads) / program.chunks)},
        "size_bytes": size_bytes,
        "time_us": time_s * 1e6,
        "messages": len(trace),
        "links": _links(topology, loads, program.chunks),
        "timeline": [_rank_row(rank, trace, size_bytes / program.chunks) for rank in range(len(program.ranks))],
    }


def topology_document(topology: Topology) -> dict[str, Any]:
    """Return the spec, size and id of a network, as documents have them."""
    return {
        "spec": topology.spec,
        "nodes": topology.compute_count,
        "id": topology.id,
        "bandwidth_unit": topology.bandwidth_unit,
    }


def program_facts(program: AnyProgram) -> dict[str, Any]:
    """Return target, collective, size and resources of a program, as documents of several commands have them."""
    return {
        "target": program.target,
        "collective": program.collective.name.value,
        "ranks": len(program.ranks),
        "chunks": program.chunks,
        "in_place": program.in_place,
        "resources": asdict(resources_of(program)),
    }


def show_table(title: str, document: Mapping[str, Any]) -> Table:
    """Return the table of a document, without its long lists."""
    table = facts_table(title)
    unit = document["topology"]["bandwidth_unit"]
    flat = {**document, **document.get("schedule", {}), **document["cost"], **document.get("resources", {})}
    for name, value in flat.items():
        if not isinstance(value, (dict, list)) and value is not None:
            table.add_row(fact_label(name), fact_text(name, value, unit))
    table.add_row("links", _links_text(document["links"]))
    for way in document.get("ways", []):
        what = "sums" if way["sums"] else "data"
        carried = f"this tree carries {way['share']}, over {len(way['edges'])} edges"
        table.add_row(f"{what} of rank {way['rank']}", carried)
    return table


def _links(topology: Topology, loads: NDArray[np.int64], denominator: int) -> list[dict[str, Any]]:
    links, names = topology.links, topology.node_ids
    times = [load / bandwidth for load, bandwidth in zip(loads.tolist(), _bandwidths(topology), strict=True)]
    most = max(times, default=Fraction(0)) or Fraction(1)
    return [
        {
            "src": names[links.src[link]],
            "dst": names[links.dst[link]],
            "load": rational_text(Fraction(int(loads[link]), denominator)),
            "busy": float(times[link] / most),
        }
        for link in range(len(links))
    ]


def _bandwidths(topology: Topology) -> list[Fraction]:
    return [topology.links.bandwidths[index] for index in topology.links.bandwidth_class.tolist()]


def _links_text(links: list[dict[str, Any]]) -> str:
    busy = [link["busy"] for link in links]
    idle = busy.count(0)
    least = min((part for part in busy if part), default=0.0)
    evenness = "all equally loaded" if least > 1 - 1e-9 else f"the least loaded has {least:.0%} of the load of the most"
    return f"{len(links)}, {idle} idle; {'of the others ' if idle else ''}{evenness}"


def _paths(schedule: Schedule, rank: int) -> list[dict[str, Any]]:
    links, names = schedule.topology.links, schedule.topology.node_ids
    whose = schedule.collective.root if schedule.collective.is_rooted else rank
    documents = []
    for data_path in data_paths(schedule, rank):
        edges = []
        for step, route in zip(data_path.step.tolist(), data_path.route.tolist(), strict=True):
            path = schedule.routes.path(route)
            nodes = [int(links.src[path[0]]), *links.dst[path].tolist()]
            edges.append({"step": step, "path": [names[node] for node in nodes]})
        share = rational_text(data_path.share)
        documents.append({"rank": whose, "share": share, "sums": data_path.reduces, "edges": edges})
    return documents


def _rank_row(rank: int, trace: ProgramTrace, chunk_bytes: float) -> dict[str, Any]:
    is_sender = trace.src == rank
    return {
        "rank": rank,
        "messages": int(is_sender.sum()),
        "bytes": float(trace.chunks[is_sender].sum() * chunk_bytes),
        "first_us": float(trace.start_s[is_sender].min(initial=trace.end_s) * 1e6),
        "last_us": float(trace.left_s[is_sender].max(initial=0.0) * 1e6),
    }
