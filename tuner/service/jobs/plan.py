"""Turn the specification of a job into a plan: the key of its result, its memory, and the task for the worker."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.synth.collective import Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.finder.find import FinderQuery
from chorale.synth.identity import content_id
from chorale.synth.methods.bfb.plan import MAX_CHUNKS
from chorale.synth.methods.catalog import method_named
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.result_files import parse_results
from chorale.tuner.service.jobs import job_specs
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.tasks import SCHEDULE_FILE

VERSIONS = {"bound": 2}
"""Version of the results of each kind, 1 if not listed. Increase it when the results of workers change, so that stored
results are no longer used.
"""

_FIND_NODES, _BOUND_NODES = 4096, 1024
"""Upper limits of the number of nodes in the memory estimates of a search, which verifies only schedules up to this
size, and of a bound."""


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A checked specification.

    key:          content key of the result: equal keys have equal results
    memory_bytes: upper estimate of the memory of the computation
    """

    spec: job_specs.AnyJobSpec
    key: str
    memory_bytes: int


class JobPlanner:
    """Checks specifications against the existing networks, methods and results. Thread-safe.

    home: data folder with the cache of schedules for the tasks; None to use no cache
    """

    def __init__(self, networks: job_specs.NetworkPlanner, store: JobStore, home: Path | None = None) -> None:
        self.networks = networks
        self.home = home
        self._store = store

    def plan(self, spec: job_specs.AnyJobSpec, owner: str = "") -> JobPlan:
        """Return the plan of `spec`. `owner` waits for a turn, see `Planning`. Raises InvalidInput if the job is
        impossible.
        """
        match spec:
            case job_specs.SynthesisSpec():
                return self._synthesis(spec, owner)
            case job_specs.BoundSpec():
                topology = self.networks.plan(spec.topology, owner).topology
                _collective(spec, topology)
                memory_bytes = job_specs.memory_estimate(min(topology.node_count, _BOUND_NODES))
                return JobPlan(spec, _key(spec, topology=topology.id), memory_bytes)
            case job_specs.FindSpec():
                subject = f"{spec.nodes} nodes of degree {spec.degree}"
                job_specs.require_affordable(spec.nodes, 0, subject, self.networks.limits)
                FinderQuery(spec.nodes, spec.degree, spec.bidirectional)  # raises for impossible combinations
                return JobPlan(spec, _key(spec), job_specs.memory_estimate(min(spec.nodes, _FIND_NODES)))
            case job_specs.ProgramSpec():
                target_named(spec.target)
                spec.options()  # raises for values out of range
                result = self._synthesis_result(spec.result)
                form = result["schedule"]["form"]
                if form != "columns":
                    way_out = "choose a smaller network, or lower the file by `chorale`"
                    raise InvalidInput("a schedule in {} cannot be lowered", form, way_out)
                return JobPlan(spec, _key(spec), job_specs.memory_estimate(result["topology"]["nodes"]))
            case job_specs.PriceSpec():
                result = self._synthesis_result(spec.result)
                if result["unit"] == "link" and spec.link_gbps is None:
                    rule = "{} has no bandwidths, so times need `link_gbps`"
                    raise InvalidInput(rule, result["topology"]["spec"], "pass the Gbit/s of a link")
                return JobPlan(spec, _key(spec), job_specs.memory_estimate(result["topology"]["nodes"]))
            case job_specs.JudgeSpec():
                topology = self.networks.plan(spec.topology, owner).topology
                parse_results(spec.results, spec.file_name)  # raises if the text has no results
                memory_bytes = job_specs.memory_estimate(min(topology.node_count, _BOUND_NODES))
                return JobPlan(spec, _key(spec, topology=topology.id), memory_bytes)

    def _synthesis(self, spec: job_specs.SynthesisSpec, owner: str) -> JobPlan:
        method = method_named(spec.method)
        for option in spec.options().non_default():
            if option not in method.options:
                rule = f"{method.name} has the options {', '.join(method.options)}"
                raise InvalidInput(rule, f"{option}: {getattr(spec, option)}", f"leave out `{option}`")
        if method.name == "bfb" and spec.chunks is not None and spec.chunks > MAX_CHUNKS:
            rule = f"chunks per shard must be 1 to {MAX_CHUNKS}"
            raise InvalidInput(rule, spec.chunks, "choose a number in that range")
        network = self.networks.plan(spec.topology, owner)
        topology, collective = network.topology, _collective(spec, network.topology)
        if collective.name not in method.collectives:
            rule = f"{method.name} makes {', '.join(method.collectives)}"
            raise InvalidInput(rule, spec.collective, "choose another method or collective")
        return JobPlan(spec, _key(spec, topology=topology.id), network.memory_bytes)

    def _synthesis_result(self, key: str) -> dict[str, Any]:
        """Return the document of a synthesis that has a schedule file."""
        result = self._store.result(key)
        if result is None or SCHEDULE_FILE not in result.files:
            rule = "`result` must be the key of a finished synthesis"
            raise InvalidInput(rule, key, "take it from the field `result` of a job that is done")
        return result.document


def _collective(spec: job_specs.CollectiveSpec, topology: Topology) -> Collective:
    if spec.root >= topology.compute_count:
        rule = f"a root must be one of the ranks 0 to {topology.compute_count - 1}"
        raise InvalidInput(rule, spec.root, "choose a rank of the network")
    return spec.parsed_collective()


def _key(spec: job_specs.AnyJobSpec, **network: str) -> str:
    return content_id({"format": f"chorale-{spec.kind}/{VERSIONS.get(spec.kind, 1)}", **network, **spec.facts()})
