"""What workers compute for the service: pure functions from a request to a document and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from synth.collective import parse_collective
from synth.executor.port import Progress
from synth.executor.serial import SerialExecutor
from synth.finder.find import find as find_topologies
from synth.finder.query import Query
from synth.lowering.lift import checked_program
from synth.lowering.lower import lower
from synth.lowering.options import LoweringOptions
from synth.lowering.targets import target_named
from synth.method import Options
from synth.schedule.codec import from_parquet, to_parquet
from synth.schedule.renamed import renamed_schedule
from synth.schedule.symmetric import SymmetricSchedule
from synth.schedule.symmetric_codec import symmetric_to_parquet
from synth.simulation.simulate import simulate as simulate_traffic
from synth.topology.isomorphism import isomorphism
from synth.topology.topology import Topology
from synth.verify.verify import verify
from tuner.costs.pricing import DEFAULTS, Pricing
from tuner.costs.simulated_traffic import traffic_of_content
from tuner.reports.bound_report import bound_document, bound_report
from tuner.reports.find_report import find_document
from tuner.reports.stages import Stages
from tuner.reports.synthesis import SynthesisRequest, proved, synthesized, warm
from tuner.service.jobs.limits import Named, rebuilt
from tuner.specs import load_topology

SCHEDULE_FILE, PROGRAM_FILE = "schedule.parquet", "program.xml"


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker gets. `candidates`: schedules on networks that may be the same one under other names."""

    kind: str
    network: Named | None
    request: Mapping[str, Any]
    schedule: bytes | None = None
    candidates: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a task. `cached`: "renamed" where a known schedule was given new names, else "no"."""

    document: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)
    cached: str = "no"


def compute(task: Task, progress: Progress) -> Result:
    """Do `task`. Raises ChoraleError where what is asked for cannot be had."""
    return _COMPUTATIONS[task.kind](task, progress)


def _synthesis(task: Task, progress: Progress) -> Result:
    if task.network is None:
        raise ValueError("a synthesis needs a network")
    request, topology = task.request, rebuilt(task.network)
    for content in task.candidates:
        renamed = _renamed(content, topology)
        if renamed is not None:
            return renamed
    options = Options(
        chunks=request["chunks"],
        k=request["k"],
        objective=request["objective"],
        seed=request["seed"],
        size_bytes=request["size_bytes"],
    )
    wanted = SynthesisRequest(request["method"], parse_collective(request["collective"], request["root"]), options)
    stages = Stages()
    warm(wanted.method, stages)
    verified = synthesized(topology, wanted, SerialExecutor(), progress, stages)
    document = proved(verified, options.size_bytes, stages)
    schedule = verified.schedule
    content = symmetric_to_parquet(schedule) if isinstance(schedule, SymmetricSchedule) else to_parquet(schedule)
    return Result(document | {"unit": topology.bandwidth_unit}, {SCHEDULE_FILE: content})


def _renamed(content: bytes, topology: Topology) -> Result | None:
    """Return the schedule in `content` under the names of `topology`, verified and proved; None if it is of another
    network."""
    known = from_parquet(content, load_topology)
    new_node = isomorphism(known.topology, topology)
    if new_node is None:
        return None
    stages = Stages()
    with stages.stage("verification"):
        verified = verify(renamed_schedule(known, new_node, topology))
    document = proved(verified, None, stages)
    return Result(
        document | {"unit": topology.bandwidth_unit}, {SCHEDULE_FILE: to_parquet(verified.schedule)}, "renamed"
    )


def _bound(task: Task, _progress: Progress) -> Result:
    if task.network is None:
        raise ValueError("a bound needs a network")
    request = task.request
    collective = parse_collective(request["collective"], request["root"])
    return Result(bound_document(bound_report(rebuilt(task.network), collective, request["k"])))


def _find(task: Task, progress: Progress) -> Result:
    request = task.request
    query = Query(request["nodes"], request["degree"], request["bidirectional"])
    stages = Stages()
    with stages.stage("search"):
        findings = find_topologies(query, SerialExecutor(), lambda _name: progress, {})
    return Result(find_document(findings, None) | {"seconds": stages.seconds["search"]})


def _program(task: Task, _progress: Progress) -> Result:
    if task.schedule is None:
        raise ValueError("a program needs a schedule")
    request = task.request
    verified = verify(from_parquet(task.schedule, load_topology))
    options = LoweringOptions(
        request["target"], request["channels"], request["instances"], request["protocol"], request["in_place"]
    )
    text = target_named(options.target).emit(lower(verified, options))
    program = checked_program(text, verified.schedule.topology)
    document = {
        "target": program.target,
        "collective": program.collective.name.value,
        "ranks": len(program.ranks),
        "chunks": program.chunks,
        "in_place": program.in_place,
        "schedule": verified.schedule.id,
    }
    return Result(document, {PROGRAM_FILE: text.encode()})


def _price(task: Task, progress: Progress) -> Result:
    if task.schedule is None:
        raise ValueError("a price needs a schedule")
    request = task.request
    given = {name: None if request[name] is None else str(request[name]) for name in DEFAULTS}
    pricing = Pricing.of(given, None)
    priced = traffic_of_content(task.schedule, pricing)
    network = pricing.network(priced.traffic.topology)
    sizes_bytes = tuple(request["sizes_bytes"])
    times_s = simulate_traffic(priced.traffic, network, sizes_bytes, "step", progress=progress)
    rows = [
        {"size_bytes": size_bytes, "time_us": time_s * 1e6}
        for size_bytes, time_s in zip(sizes_bytes, times_s, strict=True)
    ]
    return Result({"title": priced.title, "method": priced.method, "results": rows})


_COMPUTATIONS: Mapping[str, Callable[[Task, Progress], Result]] = {
    "synthesis": _synthesis,
    "bound": _bound,
    "find": _find,
    "program": _program,
    "price": _price,
}
KINDS = tuple(_COMPUTATIONS)
