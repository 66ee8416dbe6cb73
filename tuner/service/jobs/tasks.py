"""Tasks of workers: compute the document and files of a job from its specification."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chorale.synth.build.build import build_program
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.build.schedules import verify_schedule
from chorale.synth.executor.base import Progress, SerialExecutor
from chorale.synth.finder.find import FinderQuery
from chorale.synth.finder.find import find as find_topologies
from chorale.synth.methods.catalog import IN_NETWORK
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.simulation.simulate import simulate as simulate_traffic
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.building import verified_from_cache
from chorale.tuner.costs.pricing import DEFAULTS, Pricing, traffic_of_content
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.bound import bound_document, bound_report, reason
from chorale.tuner.reports.finder import find_document
from chorale.tuner.reports.judge import judge_content
from chorale.tuner.reports.synthesis import proved_document
from chorale.tuner.reports.tables import Stopwatch
from chorale.tuner.service.jobs import job_specs

SCHEDULE_FILE, PROGRAM_FILE, PLAN_FILE = "schedule.parquet", "program.xml", "program.json"


@dataclass(frozen=True, slots=True)
class JobTask:
    """The input of a worker.

    topology:   network of the specification; None if the worker has to build it
    schedule:   content of the schedule file of the result to which the specification refers
    home:       data folder with the cache of schedules; ignored if it does not exist on the worker
    """

    spec: job_specs.AnyJobSpec
    topology: Topology | None = None
    schedule: bytes | None = None
    home: Path | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task."""

    document: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)


def run_task(task: JobTask, progress: Progress) -> TaskResult:
    """Compute `task`. Raises ChoraleError if the specification cannot be satisfied."""
    match task.spec:
        case job_specs.SynthesisSpec():
            topology, options, stages = _topology(task, task.spec.topology), task.spec.options(), Stopwatch()
            request = ScheduleRequest(topology, task.spec.parsed_collective(), task.spec.method, options)
            verified, is_cached = verified_from_cache(request, task.home, SerialExecutor(), progress, stages.stage)
            document = proved_document(verified, options.size_bytes, stages, task.spec.method == IN_NETWORK)
            document |= {"unit": topology.bandwidth_unit, "cached": is_cached}
            return TaskResult(document, {SCHEDULE_FILE: to_parquet(verified.schedule)})
        case job_specs.BoundSpec():
            topology = _topology(task, task.spec.topology)
            report = bound_report(topology, task.spec.parsed_collective(), task.spec.k)
            switches = report.in_network
            reasons = {
                "because": reason(report, report.bound),
                "because_in_network": None if switches is None else reason(report, switches),
            }
            return TaskResult(bound_document(report) | reasons | {"unit": topology.bandwidth_unit})
        case job_specs.JudgeSpec():
            topology, link_gbps = _topology(task, task.spec.topology), task.spec.link_gbps
            rate = None if link_gbps is None else str(link_gbps)
            content, name = task.spec.results.encode(), task.spec.file_name
            return TaskResult(judge_content(content, name, topology, task.spec.collective, rate).to_json())
        case job_specs.FindSpec():
            query = FinderQuery(task.spec.nodes, task.spec.degree, task.spec.bidirectional)
            stages = Stopwatch()
            with stages.stage("search"):
                findings = find_topologies(query, SerialExecutor(), lambda _name: progress, {})
            return TaskResult(find_document(findings, None) | {"seconds": stages.seconds["search"]})
        case job_specs.ProgramSpec():
            verified = verify_schedule(from_parquet(_schedule(task), load_topology))
            built = build_program(verified, task.spec.options())
            program = built.program
            document = {
                "target": program.target,
                "collective": program.collective.name.value,
                "ranks": len(program.ranks),
                "chunks": program.chunks,
                "in_place": program.in_place,
                "schedule": verified.schedule.id,
            }
            name = PLAN_FILE if program.target.endswith("-json") else PROGRAM_FILE
            return TaskResult(document, {name: built.text.encode()})
        case job_specs.PriceSpec():
            given = task.spec.model_dump(include=set(DEFAULTS))
            pricing = Pricing.of({name: None if value is None else str(value) for name, value in given.items()}, None)
            priced = traffic_of_content(_schedule(task), pricing)
            network = pricing.network(priced.traffic.topology)
            times_s = simulate_traffic(priced.traffic, network, tuple(task.spec.sizes_bytes), "step", progress=progress)
            rows = [
                {"size_bytes": size_bytes, "time_us": time_s * 1e6}
                for size_bytes, time_s in zip(task.spec.sizes_bytes, times_s, strict=True)
            ]
            return TaskResult({"title": priced.title, "method": priced.method, "results": rows})


def _topology(task: JobTask, source: job_specs.NetworkSource) -> Topology:
    return job_specs.network_of(source) if task.topology is None else task.topology


def _schedule(task: JobTask) -> bytes:
    if task.schedule is None:
        raise ValueError("this task needs the schedule of a result")
    return task.schedule
