"""Checks job specifications, and defines the tasks with which workers compute the results of jobs."""

import json
from dataclasses import dataclass, field
from typing import Any

from chorale.synth import InvalidInput, ScheduleRequest, target_named
from chorale.synth.build.build import build_program, verified_schedule
from chorale.synth.executor.base import Progress, SerialExecutor
from chorale.synth.finder.find import FinderQuery, find as find_topologies
from chorale.synth.identity import content_id
from chorale.synth.methods.bfb.plan import MAX_CHUNKS
from chorale.synth.methods.catalog import IN_NETWORK, method_named
from chorale.synth.methods.method import Method
from chorale.synth.schedule.codec import from_parquet, to_parquet
from chorale.synth.verify.verify import verify
from chorale.tuner.costs.pricing import DEFAULTS, Pricing, goodput_row, traffic_of_content
from chorale.tuner.files.result_files import parse_results
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.reports.bound import bound_document, bound_report, reason
from chorale.tuner.reports.finder import find_document
from chorale.tuner.reports.judge import judge
from chorale.tuner.reports.synthesis import program_facts, proved_document
from chorale.tuner.reports.tables import Stopwatch
from chorale.tuner.service.jobs import job_specs
from chorale.tuner.service.jobs.job_store import PLAN_FILE, PROGRAM_FILE, SCHEDULE_FILE, JobStore

VERSIONS = {"bound": 2}
"""Kind of job -> version of its results; 1 if not listed. Increase the version of a kind when its results change, so
that stored results are no longer used."""

_MOST_NODES = {"find": 4096, "bound": 1024, "judge": 1024}
"""Kind of job -> number of nodes above which its memory estimate stays constant. For example, a search verifies no
larger schedules."""


class JobPlanner:
    """Checks job specifications and estimates their memory. Thread-safe."""

    def __init__(self, networks: job_specs.NetworkPlanner, store: JobStore) -> None:
        self.networks = networks
        self._store = store

    def plan(self, spec: job_specs.AnyJobSpec, owner: str = "") -> tuple[str, int]:
        """Return the content key of the job's result, and the estimated peak memory in bytes.

        Jobs with the same key have the same result. Raises InvalidInput if the job is impossible or exceeds the limits.
        """
        network: dict[str, str] = {}
        method = _method_of(spec) if isinstance(spec, job_specs.SynthesisSpec) else None
        if isinstance(spec, job_specs.ProgramSpec | job_specs.PriceSpec):
            nodes = self._require_schedule(spec)["topology"]["nodes"]
        elif isinstance(spec, job_specs.FindSpec):
            nodes, subject = spec.nodes, f"{spec.nodes} nodes of degree {spec.degree}"
            job_specs.require_affordable(nodes, 0, subject, self.networks.limits)
            FinderQuery(nodes, spec.degree, spec.bidirectional)  # raises for impossible combinations
        else:
            topology = self.networks.plan(spec.topology, owner)
            nodes, network = topology.node_count, {"topology": topology.id}
            if isinstance(spec, job_specs.JudgeSpec):
                parse_results(spec.results, spec.file_name)  # raises if the text has no results
            elif spec.root >= topology.compute_count:
                rule = f"a root must be one of the ranks 0 to {topology.compute_count - 1}"
                raise InvalidInput(rule, spec.root, "choose a rank of the network")
            elif method is not None and spec.parsed_collective().name not in method.collectives:
                rule = f"{method.name} makes {', '.join(method.collectives)}"
                raise InvalidInput(rule, spec.collective, "choose another method or collective")
        content = {"format": f"chorale-{spec.kind}/{VERSIONS.get(spec.kind, 1)}", **network, **spec.facts()}
        return content_id(content), job_specs.memory_estimate(min(nodes, _MOST_NODES.get(spec.kind, nodes)))

    def _require_schedule(self, spec: job_specs.ProgramSpec | job_specs.PriceSpec) -> dict[str, Any]:
        """Return the synthesis result that `spec` refers to. Raises InvalidInput if its schedule cannot be used."""
        if isinstance(spec, job_specs.ProgramSpec):
            target_named(spec.target)
            spec.options()  # raises for values out of range
        stored = self._store.result_texts(spec.result)
        if stored is None or SCHEDULE_FILE not in json.loads(stored[1]):
            rule = "`result` must be the key of a finished synthesis"
            raise InvalidInput(rule, spec.result, "take it from the field `result` of a job that is done")
        result: dict[str, Any] = json.loads(stored[0])
        if isinstance(spec, job_specs.PriceSpec):
            if result["unit"] == "link" and spec.link_gbps is None:
                rule = "{} has no bandwidths, so times need `link_gbps`"
                raise InvalidInput(rule, result["topology"]["spec"], "pass the Gbit/s of a link")
        elif (form := result["schedule"]["form"]) != "columns":
            way_out = "choose a smaller network, or lower the file by `chorale`"
            raise InvalidInput("a schedule in {} cannot be lowered", form, way_out)
        return result


def _method_of(spec: job_specs.SynthesisSpec) -> Method:
    """Return the method that `spec` names. Raises InvalidInput if it does not exist or lacks a given option."""
    method = method_named(spec.method)
    for option in spec.options().non_default():
        if option not in method.options:
            rule = f"{method.name} has the options {', '.join(method.options)}"
            raise InvalidInput(rule, f"{option}: {getattr(spec, option)}", f"leave out `{option}`")
    if method.name == "bfb" and spec.chunks is not None and spec.chunks > MAX_CHUNKS:
        rule = f"chunks per shard must be 1 to {MAX_CHUNKS}"
        raise InvalidInput(rule, spec.chunks, "choose a number in that range")
    return method


@dataclass(frozen=True, slots=True)
class JobTask:
    """The input of a worker that computes the result of a job.

    topology:   network of the specification; None if there is none or if the worker has to build the network
    schedule:   content of the schedule file, if the specification refers to a finished synthesis
    """

    spec: job_specs.AnyJobSpec
    topology: Any = None
    schedule: Any = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a worker's task: a JSON document, and files by name."""

    document: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)


def run_task(task: JobTask, progress: Progress) -> TaskResult:
    """Compute the result of `task`. Raises ChoraleError if the specification cannot be satisfied."""
    spec, topology = task.spec, task.topology
    if isinstance(spec, job_specs.CollectiveSpec | job_specs.JudgeSpec) and topology is None:
        topology = job_specs.network_of(spec.topology)
    match spec:
        case job_specs.SynthesisSpec():
            options, stages = spec.options(), Stopwatch()
            request = ScheduleRequest(topology, spec.parsed_collective(), spec.method, options)
            verified = verified_schedule(request, SerialExecutor(), progress, stages.stage)
            document = proved_document(verified, options.size_bytes, stages, spec.method == IN_NETWORK)
            document |= {"unit": topology.bandwidth_unit}
            return TaskResult(document, {SCHEDULE_FILE: to_parquet(verified.schedule)})
        case job_specs.BoundSpec():
            report = bound_report(topology, spec.parsed_collective(), spec.k)
            switches = report.in_network
            reasons = {
                "because": reason(report, report.bound),
                "because_in_network": None if switches is None else reason(report, switches),
            }
            return TaskResult(bound_document(report) | reasons | {"unit": topology.bandwidth_unit})
        case job_specs.JudgeSpec():
            rate = None if spec.link_gbps is None else str(spec.link_gbps)
            return TaskResult(judge(spec.results.encode(), spec.file_name, topology, spec.collective, rate).to_json())
        case job_specs.FindSpec():
            query, stages = FinderQuery(spec.nodes, spec.degree, spec.bidirectional), Stopwatch()
            with stages.stage("search"):
                findings = find_topologies(query, SerialExecutor(), lambda _name: progress, {})
            return TaskResult(find_document(findings, None) | {"seconds": stages.seconds["search"]})
        case job_specs.ProgramSpec():
            verified = verify(from_parquet(task.schedule, load_topology))
            built = build_program(verified, spec.options())
            name = PLAN_FILE if built.program.target.endswith("-json") else PROGRAM_FILE
            document = program_facts(built.program) | {"schedule": verified.schedule.id}
            return TaskResult(document, {name: built.text.encode()})
        case job_specs.PriceSpec():
            pricing = Pricing.of(spec.model_dump(include=set(DEFAULTS)))
            priced = traffic_of_content(task.schedule, pricing)
            times_s = pricing.times_s(priced.traffic, spec.sizes_bytes, progress=progress)
            rows = list(map(goodput_row, spec.sizes_bytes, times_s))
            return TaskResult({"title": priced.title, "method": priced.method, "results": rows})
