"""Reports on schedules and programs: cost, link loads, resources, predicted times, and time lost in lowering."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from chorale.runners.api.units import format_size
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth import (
    InvalidInput,
    LoweringOptions,
    Program,
    Topology,
    VerifiedSchedule,
    lower,
    target_named,
    traffic_of,
)
from chorale.synth.identity import rational_text
from chorale.synth.programs.program import AnyProgram
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import data_paths
from chorale.synth.targets.registry import resources_of
from chorale.tuner.costs import pricing
from chorale.tuner.reports.bound import network_facts
from chorale.tuner.reports.synthesis import cost_document, schedule_facts
from chorale.tuner.reports.tables import fact_label, fact_text, facts_table


def schedule_document(verified: VerifiedSchedule, rank: int) -> dict[str, Any]:
    schedule = verified.schedule
    traffic = traffic_of(schedule)
    loads = sum((traffic.link_amounts(step) for step in traffic.steps), np.zeros(len(schedule.topology.links), int))
    return {
        "kind": "schedule",
        **network_facts(schedule.topology),
        "collective": schedule.collective.name.value,
        "method": schedule.method,
        "schedule": schedule_facts(schedule),
        "cost": cost_document(verified),
        "links": _links(schedule.topology, loads, traffic.denominator),
        "ways": _paths(schedule.expand(), rank),
    }


def program_document(
    program: AnyProgram, topology: Topology, size_bytes: int, trace: ProgramTrace, time_s: float
) -> dict[str, Any]:
    """Return the JSON document about a program and its simulation.

    size_bytes: size of the simulated vector; trace: result of the simulation; time_s: predicted time
    """
    loads = pricing.program_loads(program, topology)
    return {
        "kind": "program",
        **network_facts(topology),
        "name": program.name,
        **program_facts(program),
        "cost": {"time_per_byte": rational_text(topology.links.longest_time(loads) / program.chunks)},
        "size_bytes": size_bytes,
        "time_us": time_s * 1e6,
        "messages": len(trace),
        "links": _links(topology, loads, program.chunks),
        "timeline": [
            {
                "rank": rank,
                "messages": int(sent.sum()),
                "bytes": float(trace.chunks[sent].sum() * (size_bytes / program.chunks)),
                "first_us": float(trace.start_s[sent].min(initial=trace.end_s) * 1e6),
                "last_us": float(trace.left_s[sent].max(initial=0.0) * 1e6),
            }
            for rank, sent in ((rank, trace.src == rank) for rank in range(len(program.ranks)))
        ],
    }


def program_facts(program: AnyProgram) -> dict[str, Any]:
    return {
        "target": program.target,
        "collective": program.collective.name.value,
        "ranks": len(program.ranks),
        "chunks": program.chunks,
        "in_place": program.in_place,
        "resources": asdict(resources_of(program)),
    }


def show_table(title: str, document: Mapping[str, Any]) -> Table:
    table = facts_table(title)
    unit = document["topology"]["bandwidth_unit"]
    flat = {**document, **document.get("schedule", {}), **document["cost"], **document.get("resources", {})}
    for name, value in flat.items():
        if not isinstance(value, (dict, list)) and value is not None:
            table.add_row(fact_label(name), fact_text(name, value, unit))
    links = document["links"]
    busy = [link["busy"] for link in links]
    idle = busy.count(0)
    least = min((part for part in busy if part), default=0.0)
    evenness = "all equally loaded" if least > 1 - 1e-9 else f"the least loaded has {least:.0%} of the load of the most"
    table.add_row("links", f"{len(links)}, {idle} idle; {'of the others ' if idle else ''}{evenness}")
    for way in document.get("ways", []):
        what = "sums" if way["sums"] else "data"
        carried = f"this tree carries {way['share']}, over {len(way['edges'])} edges"
        table.add_row(f"{what} of rank {way['rank']}", carried)
    return table


def _links(topology: Topology, loads: NDArray[np.int64], denominator: int) -> list[dict[str, Any]]:
    links, names = topology.links, topology.node_ids
    widths = [links.bandwidths[index] for index in links.bandwidth_class.tolist()]
    times = [load / width for load, width in zip(loads.tolist(), widths, strict=True)]
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


def prediction(
    program: AnyProgram, topology: Topology, size_bytes: int | None, link_gbps: str | None
) -> dict[str, Any]:
    """Return a correct program's exact time per byte, from link loads, and the simulated time if a size is given.

    Raises InvalidInput if a size is given but the link rate is not known.
    """
    time_us = None
    if size_bytes is not None:
        network = pricing.Pricing.usual(link_gbps=link_gbps).network(topology)
        buffer_bytes = pricing.usual_buffer_bytes(program)
        time_us = pricing.simulate_program(program, topology, network, size_bytes, buffer_bytes).end_s * 1e6
    time_per_byte = rational_text(pricing.program_time_per_byte(program, topology))
    return {"time_per_byte": time_per_byte, "size_bytes": size_bytes, "time_us": time_us}


LARGE_BYTES = 2**30
LARGE_PLAN = 4_000
"""For plans with more instructions than this, other lowering options are not tried because that would take too long."""
LARGE_LOSS = 0.15
MIN_GAIN = 0.05
MAX_MESSAGES = 2**17
SPLITS = (2, 4, 8)


def loss_document(
    verified: VerifiedSchedule, options: LoweringOptions, program: Program, size_bytes: int | None
) -> dict[str, Any]:
    """Return a document about the time that lowering costs: `program` is compared with its schedule.

    `loss` is the relative loss of time at `size_bytes` (default: the program's largest size, else 1 GiB). If it is
    large, `advice` suggests better options: other numbers of channels and finer chunks are tried, except for large
    plans, where each attempt takes many seconds. The document is empty for stepped schedules, which lose nothing, and
    if simulating would take too long.
    options: lowering options of `program`
    """
    schedule, size_bytes = verified.schedule, size_bytes or options.max_bytes or LARGE_BYTES
    if schedule.kind != "pipelined":
        return {}
    try:
        current = _loss(verified, program, size_bytes)
    except InvalidInput:  # simulating it takes too long
        return {}
    document: dict[str, Any] = {"loss": {"size_bytes": size_bytes, "part": current}, "advice": None}
    if current < LARGE_LOSS:
        return document
    is_plan = target_named(options.target).limits.one_sided_operations is not None
    instructions = sum(len(block.instructions) for body in program.ranks for block in body.blocks)
    chunks, losses = options.chunks or schedule.chunks_per_shard, []
    others = [
        replace(options, channels=channels) for channels in sorted({1, 2 * options.channels} - {options.channels})
    ]
    for split, channels in product(SPLITS, sorted({1, options.channels})):
        others.append(replace(options, channels=channels, chunks=chunks * split))
    for other in () if is_plan and instructions > LARGE_PLAN else others:
        with suppress(InvalidInput):  # skip options with which the program exceeds the target's limits
            losses.append((_loss(verified, lower(verified, other, seeks_fit=False), size_bytes), other))
    best, other = min(losses, key=lambda each: each[0], default=(current, options))
    size = format_size(size_bytes)
    words = [f"loses {current:.0%} at {size} against the cost of the schedule (flow model, no latencies)"]
    if best < current - MIN_GAIN:
        split = (other.chunks or schedule.chunks_per_shard) // schedule.chunks_per_shard
        words.append(f"--channels {other.channels} --split {split} loses {best:.0%}")
    if (schedule.trees_per_root or 1) > 1 and min(best, current) > LARGE_LOSS:
        words.append("a schedule with fewer trees per root (synth --k 1) may lose less")
    return document | {"advice": "; ".join(words)}


def _loss(verified: VerifiedSchedule, program: Program, size_bytes: int) -> float:
    buffer_bytes = pricing.usual_buffer_bytes(program)
    return pricing.lowering_loss(verified, program, size_bytes, buffer_bytes, max_messages=MAX_MESSAGES)
