"""Creates reports on networks, schedules and programs, for `chorale synth` and the service.

Schedules are compared with bounds and, after a failure, with the old schedule. Reports on programs contain link loads,
resources, predicted times, and the time lost in lowering.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import product, repeat
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from chorale.runners.api.units import format_size
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.synth import (
    InvalidInput,
    LoweringOptions,
    NetworkModel,
    Program,
    Topology,
    VerifiedSchedule,
    lower,
    lower_bound,
    target_named,
    traffic_of,
)
from chorale.synth.bounds.certificate import PAIR_KINDS, check_pair_certificate
from chorale.synth.bounds.lower_bound import bound_of_schedule, in_network_bound, stronger
from chorale.synth.bounds.optimum import Bound
from chorale.synth.collective import ALLREDUCE, Collective
from chorale.synth.identity import rational_text
from chorale.synth.methods.forest.forest import shard_units, with_shards
from chorale.synth.programs.program import AnyProgram
from chorale.synth.schedule.schedule import AnySchedule, Schedule
from chorale.synth.schedule.traffic import data_paths
from chorale.synth.simulation.simulate import HOP_US, LINK_LATENCY_US, congestion_of
from chorale.synth.targets.registry import resources_of
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.formats.json_document import ability_members
from chorale.synth.topology.symmetry_search import is_vertex_transitive
from chorale.synth.topology.topology import SwitchAbility
from chorale.synth.verify.bfb_certificate import least_time
from chorale.tuner.costs import pricing
from chorale.tuner.files.traffic_files import load_sizes
from chorale.tuner.reports import tables
from chorale.tuner.reports.bound import (
    assumption_facts,
    assumption_rows,
    bound_facts,
    checked,
    in_network_note,
    network_facts,
)
from chorale.tuner.reports.tables import fact_label, fact_text, facts_table

OUTSIDE_TOTAL = ("topology", "bound", "writing")
"""Stages that are excluded from the reported total time."""
_WARN_ABOVE = Fraction(1, 100)
"""If a schedule misses a bound by more than this fraction, the document contains a warning."""
FOREST_ONLY = "forest"
LARGE_BYTES = 2**30
LARGE_PLAN = 4_000
"""Maximum number of instructions in plans for which other lowering options are tried; larger plans take too long."""
LARGE_LOSS = 0.15
MIN_GAIN = 0.05
MAX_MESSAGES = 2**17
SPLITS = (2, 4, 8)


def describe_topology(topology: Topology) -> dict[str, Any]:
    """Return the "topology" object: spec, counts, degree (null unless regular), diameter in links and content id."""
    return {
        "spec": topology.spec,
        "nodes": topology.compute_count,
        "switches": topology.switch_count,
        "links": len(topology.links),
        "degree": topology.degree,
        "diameter": diameter(topology),
        "id": topology.id,
    }


def show_topology(topology: Topology) -> dict[str, Any]:
    """Return the JSON document of `chorale topology show`: the description, properties, and every node and link."""
    ids, expected = topology.node_ids, topology.expected
    return {
        "topology": describe_topology(topology),
        "assumptions": [asdict(fact) for fact in topology.assumptions],
        "vertex_transitive": is_vertex_transitive(topology),
        "eulerian": topology.is_eulerian,
        "nodes_list": [
            {
                "id": name,
                "kind": topology.node_kind(node),
                "rank": node if node < topology.compute_count else None,
                **ability_members(topology, node),
            }
            for node, name in enumerate(ids)
        ],
        "links_list": [
            {
                "src": ids[link.src],
                "dst": ids[link.dst],
                "bandwidth": rational_text(link.bandwidth),
                "latency_s": float(link.latency_s),
                **({} if slower is None else {"expected_bandwidth": rational_text(slower.bandwidth)}),
            }
            for link, slower in zip(topology.links, expected.links if expected else repeat(None), strict=False)
        ],
    }


def able_text(ability: SwitchAbility, topology: Topology) -> str:
    """Return a text about a switch's abilities, such as "multicast, add up to 300 GB/s"."""
    words = ["multicast"] if ability.multicast else []
    if ability.reduce:
        unit = "links" if topology.bandwidth_unit == "link" else topology.bandwidth_unit
        limit = "" if ability.reduce_bandwidth is None else f" up to {rational_text(ability.reduce_bandwidth)} {unit}"
        words.append(f"add{limit}")
    return ", ".join(words)


def warm_start_document(old: VerifiedSchedule, new: VerifiedSchedule) -> dict[str, Any]:
    """Return the old schedule's cost and bound, and how many of its transfers the new schedule keeps.

    Two transfers are equal if they move the same part of the same shard between the same ranks, identified by node id.
    `transfers_possible` is the number of old transfers whose ranks still exist.
    """
    schedule, achieved = old.schedule, old.cost.time_per_byte
    bound = checked(schedule.topology, schedule.collective, bound_of_schedule(schedule, achieved))
    before, now = schedule.expand(), new.schedule.expand()
    rank_of = {name: rank for rank, name in enumerate(now.topology.node_ids[: now.topology.compute_count])}
    names = before.topology.node_ids[: before.topology.compute_count]
    survivors = _keys(before, np.array([rank_of.get(name, -1) for name in names], dtype=np.int64), len(rank_of))
    return {
        "schedule": schedule.id,
        "topology": schedule.topology.spec,
        "achieved": str(achieved),
        "lower_bound": str(bound.value),
        "gap": str(achieved / bound.value - 1),
        "transfers_kept": int(np.isin(survivors, _keys(now, np.arange(len(rank_of)), len(rank_of))).sum()),
        "transfers_possible": len(survivors),
    }


def _keys(schedule: Schedule, rank: NDArray[np.int64], ranks: int) -> NDArray[np.complex128]:
    """Return a key for each transfer, as a complex number; equal transfers have equal keys.

    The real part encodes source, destination, shard and whether the transfer reduces. The imaginary part is the middle
    of its chunk range.
    """
    rows = schedule.transfers
    src, dst, shard = rank[schedule.src], rank[schedule.dst], rank[rows.shard.astype(np.int64)]
    alive = (src >= 0) & (dst >= 0) & (shard >= 0)
    who = ((src * ranks + dst) * ranks + shard) * 2 + rows.reduce
    part = (rows.lo.astype(np.int64) + rows.hi) / (2 * schedule.chunks_per_shard)
    return (who + 1j * part)[alive]


def synthesis_document(verified: VerifiedSchedule, bound: Bound, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return the JSON document of `chorale synth`, without `peak_memory_bytes` and `output`.

    If the schedule uses pairs of trees, the key `tree_pairs` is the optimum for such pairs, checked by independent
    code.
    """
    schedule, cost, trees = verified.schedule, verified.cost, verified.schedule.trees_per_root
    ranks, collective = schedule.topology.compute_count, schedule.collective
    if trees is not None:  # average number of different trees per root: equal trees are one row with more chunks
        rows = (ranks - 1) * (1 if collective.is_rooted else ranks) * (2 if collective == ALLREDUCE else 1)
        trees = min(trees, -(-schedule.transfer_count // rows))
    document = {
        "topology": describe_topology(schedule.topology),
        **assumption_facts(schedule.topology),
        "collective": schedule.collective.name.value,
        "method": schedule.method,
        "parameters": dict(schedule.parameters),
        "schedule": {
            **schedule_facts(schedule),
            "form": schedule.form,
            "height": schedule.steps,
            "distinct_trees": trees,
            "in_network": schedule.is_in_network,
        },
        "cost": cost_document(verified),
        "optimality": {
            "lower_bound": str(bound.value),
            "achieved": str(cost.time_per_byte),
            "gap": str(cost.time_per_byte / bound.value - 1),
            "certificate": dict(bound.to_json(schedule.topology)),
        },
        "seconds": dict(seconds),
        "verified": True,
    }
    if schedule.certificate.get("kind") in PAIR_KINDS:
        least = check_pair_certificate(schedule.topology, schedule.certificate)
        facts = {"lower_bound": str(least), "gap": str(cost.time_per_byte / least - 1)}
        document["tree_pairs"] = facts | {"certificate": dict(schedule.certificate)}
    return document


def schedule_facts(schedule: AnySchedule) -> dict[str, Any]:
    return {
        "kind": schedule.kind,
        "steps": schedule.steps,
        "chunks_per_shard": schedule.chunks_per_shard,
        "transfers": schedule.transfer_count,
        "trees_per_root": schedule.trees_per_root,
        "id": schedule.id,
    }


def cost_document(verified: VerifiedSchedule) -> dict[str, Any]:
    cost = verified.cost
    factor = None if cost.bandwidth_factor is None else str(cost.bandwidth_factor)
    return {
        "bandwidth_factor": factor,
        "time_per_byte": str(cost.time_per_byte),
        "algbw": float(1 / cost.time_per_byte),
    }


def timing_document(verified: VerifiedSchedule, size_bytes: int, link_gbps: Fraction | None = None) -> dict[str, Any]:
    """Return the time at one size and, for bfb on networks with latencies, the least time with freely divisible shards.

    If the network has no latencies, the default latencies of `chorale simulate` are used, as they are when `auto`
    chooses a method.

    link_gbps: link rate in Gbit/s, if bandwidths are relative to a link's rate
    """
    schedule, topology, cost = verified.schedule, verified.schedule.topology, verified.cost
    if topology.bandwidth_unit == "link" and (link_gbps is None or schedule.is_in_network):
        return {"size_bytes": size_bytes, "time_s": None}
    model, latencies = NetworkModel.usual(topology, link_gbps), {}
    has_latencies = any(topology.links.latencies_s)
    if schedule.kind == "pipelined" and (has_latencies or schedule.is_in_network):
        time_s = cost.latency_s + cost.time_per_byte * size_bytes / model.unit_bytes_per_s(topology)
    else:
        streams = traffic_of(schedule).streams()
        time_s = sum((congestion_of(stream).seconds(model, size_bytes) for stream in streams), Fraction(0))
        latencies = {} if has_latencies else {"link_latency_us": LINK_LATENCY_US, "hop_us": HOP_US}
    if schedule.method == "bfb" and has_latencies:
        latencies = {"divisible_time_s": str(least_time(topology, schedule.certificate))}
    rate = {} if link_gbps is None else {"link_gbps": str(link_gbps)}
    return {"size_bytes": size_bytes, "time_s": str(time_s), **latencies, **rate}


def synthesis_result(document: dict[str, Any], output: str | None, unit: str) -> tables.Result:
    """Add peak memory use and output path to `document`. Return it and its table, with bandwidths in `unit`."""
    document |= {"peak_memory_bytes": tables.peak_memory_bytes(), "output": output}
    spec, method, collective = document["topology"]["spec"], document["method"], document["collective"]
    if output is None:
        step = f"chorale synth {method} {quote(spec)} --collective {collective} -o schedule.parquet"
    elif unit == "link" or "no GPU target" in document.get("runs_by", ""):
        step = f"chorale run {quote(output)} --runner local, or chorale simulate {quote(output)} --link-gbps 100"
    else:
        target, ending = ("mscclpp-json", "json") if "runs_by" in document else ("msccl-xml", "xml")
        step = f"chorale lower {quote(output)} --target {target} -o {quote(Path(output).stem)}.{ending}"
    table = tables.facts_table(f"{method} {collective} on {spec}", _rows(document, unit))
    return tables.Result(document, table, next_step=step)


def _rows(document: Mapping[str, Any], unit: str) -> Iterator[tuple[str, str]]:
    topology, schedule, cost = document["topology"], document["schedule"], document["cost"]
    yield "network", f"{topology['nodes']} nodes, {topology['links']} links, diameter {topology['diameter']}"
    if "chosen_by" in document:
        at = f" at {format_size(cost['size_bytes'])}" if "size_bytes" in cost else ""
        yield "chosen by", f"{document['chosen_by']}{at}"
    trees = schedule["trees_per_root"]
    per_root = "1 tree per root" if trees == 1 else f"{trees} trees per root"
    extent = f"{schedule['steps']} steps" if trees is None else f"height {schedule['height']}, {per_root}"
    if trees is not None and (distinct := schedule["distinct_trees"]) < trees:
        extent += f" (about {distinct} different ones)"
    yield "schedule", f"{extent}, {schedule['transfers']} transfers"
    yield "chunks per shard", str(schedule["chunks_per_shard"])
    if cost["bandwidth_factor"] is not None:
        yield "bandwidth time", tables.bandwidth_time_text(Fraction(cost["bandwidth_factor"]))
    time_per_byte = Fraction(cost["time_per_byte"])
    yield "time per byte", tables.time_per_byte_text(time_per_byte, unit)
    yield "algbw", tables.algbw_text(time_per_byte, unit)
    if "time_s" in cost:
        text = f"{float(Fraction(cost['time_s'])) * 1e6:.6g} us"
        if "hop_us" in cost:
            text += f", with {cost['link_latency_us']} us a link and {cost['hop_us']} us a node"
        if "divisible_time_s" in cost:
            more = Fraction(cost["time_s"]) / Fraction(cost["divisible_time_s"]) - 1
            text += f" ({f'{float(more):.2%} above that of' if more else 'as with'} divisible shards)"
        yield f"time for {format_size(cost['size_bytes'])}", text
    yield "lower bound", _bound_text(document["optimality"], unit)
    yield from assumption_rows(document, "guess")
    if gap := Fraction(document["parameters"].get("gap") or 0):
        few = f"fewer than the optimum needs, which costs at most {float(gap):.2%}"
        yield "trees", f"{few}; `--gap 0` uses as many as needed"
    for key, label in (("in_network", "with switches that add"), ("ranks_alone", "ranks alone")):
        if document.get(key) is not None:
            yield label, f"at most {document[key]['algbw']:.4g} {unit}"
    if "runs_by" in document:
        yield "run by", document["runs_by"]
    if "tree_pairs" in document:
        yield "best pairs of trees", _bound_text(document["tree_pairs"], unit)
    if (before := document.get("warm_start")) is not None:
        kept = f"{before['transfers_kept']} of {before['transfers_possible']} transfers"
        yield "kept", f"{kept}; before: time per byte {before['achieved']}, bound {before['lower_bound']}"
    yield "seconds", ", ".join(f"{name} {value:.3f}" for name, value in document["seconds"].items())
    base = "rank 0" if schedule["kind"] == "stepped" else "trees of one block"
    is_whole = schedule["form"] == "columns"
    yield "verified", "yes: every chunk replayed" if is_whole else f"yes: {base} replayed, symmetries checked"
    yield "id", tables.short_id(schedule["id"])
    if document["output"] is not None:
        yield "written to", document["output"]


def _bound_text(bound: Mapping[str, Any], unit: str) -> str:
    gap = bound["gap"]
    verdict = "this is optimal" if gap == "0" else f"this takes {float(Fraction(gap)):.2%} longer"
    return f"{tables.time_per_byte_text(Fraction(bound['lower_bound']), unit)}: {verdict}"


def proved_document(
    verified: VerifiedSchedule,
    size_bytes: int | None,
    stages: tables.Stopwatch,
    in_network: bool = False,
    link_gbps: Fraction | None = None,
) -> dict[str, Any]:
    """Return a synthesis's JSON document without `peak_memory_bytes` and `output`. Independent code checks the bounds.

    link_gbps:  see `timing_document`
    in_network: whether the user wants switches to reduce or multicast data. The bound then allows it, even if a
                schedule in which only ranks do this is faster.
    """
    schedule, achieved = verified.schedule, verified.cost.time_per_byte
    topology, collective = schedule.topology, schedule.collective
    with stages.stage("bound"):
        acting = in_network_bound(topology, collective)
        alone = None if acting is None else stronger(lower_bound(topology, collective), acting)
        bound = acting if acting is not None and in_network else bound_of_schedule(schedule, achieved)
        for each in filter(None, (bound, acting, alone)):
            checked(topology, collective, each)
    document = synthesis_document(verified, bound, stages.report(OUTSIDE_TOTAL))
    document["in_network"] = acting and bound_facts(topology, acting)
    document["ranks_alone"] = alone and bound_facts(topology, alone)
    if schedule.is_in_network:
        document["runs_by"] = in_network_note(topology)
    if size_bytes is not None:
        document["cost"] |= timing_document(verified, size_bytes, link_gbps)
    cost, gaps = document["cost"], {"bandwidth": Fraction(document["optimality"]["gap"])}
    if cost.get("time_s") and "divisible_time_s" in cost:  # the time with arbitrarily divisible shards is a bound
        gaps["time"] = Fraction(cost["time_s"]) / Fraction(cost["divisible_time_s"]) - 1
    document["warnings"] = [
        {"kind": kind, "gap": str(gap), "message": f"{float(gap):.2%} above its {kind} bound"}
        for kind, gap in gaps.items()
        if gap > _WARN_ABOVE
    ]
    return document


def require_trees(method: str, options: Mapping[str, object]) -> None:
    """Raise InvalidInput if the method or an option (name of a flag -> value) cannot be combined with shard sizes."""
    if method not in ("auto", FOREST_ONLY):
        raise InvalidInput("--shards does not work with the method {}", method, "use forest, or leave the method out")
    flag = next((name for name, value in options.items() if value), None)
    if flag is not None:
        raise InvalidInput("--shards does not work with {}", flag, f"leave out {flag}")


def given_shards(
    topology: Topology, shards: str, collective: Collective, seed: int
) -> tuple[Collective, dict[str, Any]]:
    """Return `collective` with the sizes in `shards`, and the JSON key `shards`: each size as a multiple of a unit.

    shards: a file's path, or zipf:S for skewed sizes; `seed` then determines the order of ranks
    """
    units = shard_units(load_sizes(shards, topology.compute_count, topology.spec, seed))
    facts = {"name": shards, "units": list(units.counts), "unit": rational_text(units.unit)}
    return with_shards(topology, collective.name, units.counts), {"shards": facts}


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
        "resources": resources_of(program),
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
    """Return a correct program's exact time per byte (from link loads) and, if a size is given, the simulated time.

    Raises InvalidInput if a size is given but the link rate is not known.
    """
    time_us = None
    if size_bytes is not None:
        network = pricing.Pricing.usual(link_gbps=link_gbps).network(topology)
        buffer_bytes = pricing.usual_buffer_bytes(program)
        time_us = pricing.simulate_program(program, topology, network, size_bytes, buffer_bytes).end_s * 1e6
    time_per_byte = rational_text(pricing.program_time_per_byte(program, topology))
    return {"time_per_byte": time_per_byte, "size_bytes": size_bytes, "time_us": time_us}


def loss_document(
    verified: VerifiedSchedule, options: LoweringOptions, program: Program, size_bytes: int | None
) -> dict[str, Any]:
    """Compare `program` with its schedule; return a document about the time that lowering loses.

    `loss` is the program's additional time at `size_bytes` (default: the program's largest size, else 1 GiB) as a
    fraction of the schedule's time. If the loss is large, `advice` suggests better options: other numbers of channels
    and finer chunks are tried, except for large plans, where each attempt takes many seconds. The document is empty for
    stepped schedules, for which the loss is 0, and if simulating would take too long.

    options: lowering options of `program`
    """
    schedule, size_bytes = verified.schedule, size_bytes or options.max_bytes or LARGE_BYTES
    if schedule.kind != "pipelined":
        return {}
    try:
        current = _loss(verified, program, size_bytes)
    except InvalidInput:  # the simulation would take too long
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
