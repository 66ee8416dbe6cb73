"""Specifications of jobs in requests, limits, estimates of memory, and the networks of jobs."""

import hashlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from chorale.synth.collective import Collective, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.registry import TooLarge
from chorale.synth.topology.spec import parse_topology, plan_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.service.jobs.planning import Planning

BASE_BYTES = 340 * 2**20
"""Memory of a worker after all imports, with its kernels loaded."""

BYTES_PER_PAIR = 52
"""Memory per pair of nodes, for columns of transfers, their sorted copies and the replay. Measured peaks: 33 for
hypercube:12 with bfb, 52 for a switched fabric of 4,096 ranks with forest."""

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of one job, request or campaign.

    memory_bytes: largest estimated memory of a job; its process may use up to twice that above its initial memory
    links:        largest number of links of a network including switches, which is known before the network is built
    plan_s, plan_bytes: time and memory for planning a request, in a separate process, before it is answered
    job_s:        time after which a job is stopped; includes waiting for resources of the cluster
    campaign_minutes: longest search of a campaign
    """

    nodes: int = 16_384
    memory_bytes: int = 8 * _GIB
    links: int = 2**21
    plan_s: float = 60.0
    plan_bytes: int = 2 * _GIB
    job_s: float = 3600.0
    campaign_minutes: float = 1440.0


def memory_estimate(nodes: int) -> int:
    """Return an upper estimate of the peak memory of a synthesis on `nodes` nodes, in bytes."""
    return BASE_BYTES + BYTES_PER_PAIR * nodes**2


def require_affordable(nodes: int, links: int, subject: str, limits: JobLimits) -> int:
    """Return the estimated memory for a network of this size, in bytes. Raises InvalidInput if it exceeds `limits`."""
    estimate = memory_estimate(nodes)
    value = f"{subject}: {nodes} nodes, about {_gib_text(estimate)}"
    if nodes > limits.nodes:
        rule = f"a job must have at most {limits.nodes} nodes"
        raise InvalidInput(rule, value, "use the `chorale` command on a machine of your own, or ask for a higher limit")
    if estimate > limits.memory_bytes:
        rule = f"a job must need at most {_gib_text(limits.memory_bytes)} of memory"
        raise InvalidInput(rule, value, "choose a smaller network, or ask for a higher limit")
    if links > limits.links:
        rule = f"a network must have at most {limits.links} links"
        raise InvalidInput(rule, f"{subject}: {links} links", "choose a network with fewer links")
    return estimate


def _gib_text(size_bytes: int) -> str:
    return f"{size_bytes / _GIB:,.1f} GiB"


DOCUMENT_SPEC = "file:network"
"""Spec of networks that were sent as documents. Schedules for them contain the complete network."""

CACHED_LINKS = 2**22
"""Largest total number of links of all cached networks; they take about 50 MB."""

NetworkSource: TypeAlias = str | dict[str, Any]
"""A spec, a document of the format chorale-topology/1, or `{"file": TEXT}` with the output of a machine's tool."""


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """A checked network within the limits. memory_bytes: estimated memory of a synthesis on it"""

    topology: Topology
    memory_bytes: int


class NetworkPlanner:
    """Plans and builds the networks of requests, and caches the most recent ones. Thread-safe.

    cached_links: largest total number of links of all cached networks; a larger network is never cached
    planning:     the processes in which networks are built
    """

    def __init__(self, limits: JobLimits, cached_links: int = CACHED_LINKS, planning: Planning | None = None) -> None:
        self.limits = limits
        self.planning = planning or Planning()
        self._cached_links = cached_links
        self._cache: OrderedDict[str, PlannedNetwork] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, source: NetworkSource, owner: str = "") -> PlannedNetwork:
        """Return the network of a spec or a document. No files are read. `owner` waits for a turn, see `Planning`.

        The size is checked before anything is built. Raises InvalidInput if the network is invalid or its estimated
        memory exceeds the limits.
        """
        key = _source_key(source)
        planned = self._cached(key)
        if planned is None:
            planned = self.planning.call(owner, built_network, source, self.limits)
            self._add(key, planned)
        return planned

    def cached(self, source: NetworkSource) -> Topology | None:
        """Return the network of an earlier `plan`; None if it is no longer cached."""
        planned = self._cached(_source_key(source))
        return None if planned is None else planned.topology

    def _cached(self, key: str) -> PlannedNetwork | None:
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
            return self._cache.get(key)

    def _add(self, key: str, planned: PlannedNetwork) -> None:
        if len(planned.topology.links) > self._cached_links:
            return
        with self._lock:
            self._cache[key] = planned
            while sum(len(entry.topology.links) for entry in self._cache.values()) > self._cached_links:
                self._cache.popitem(last=False)


def built_network(source: NetworkSource, limits: JobLimits) -> PlannedNetwork:
    """Return the network of a spec or a document. Its size is checked both before and after building it."""
    if isinstance(source, dict):
        nodes, links = (source.get(key) for key in ("nodes", "links"))
        count = [len(entries) if isinstance(entries, list) else 0 for entries in (nodes, links)]
        require_affordable(count[0], count[1], "the network", limits)
        topology = network_of(source)
        size = topology.node_count, len(topology.links)
        return PlannedNetwork(topology, require_affordable(*size, "the network", limits))
    try:
        plan = plan_topology(source)
    except TooLarge as error:
        require_affordable(error.nodes, error.links, str(error.value), limits)
        raise
    memory_bytes = require_affordable(plan.nodes, plan.links, source, limits)
    return PlannedNetwork(check_topology(plan.build()), memory_bytes)


def network_of(source: NetworkSource) -> Topology:
    """Return the checked network of a spec or a document whose size was already checked."""
    if isinstance(source, str):
        return parse_topology(source)
    if isinstance(source.get("file"), str):
        return from_bytes(source["file"].encode(), DOCUMENT_SPEC)
    return from_bytes(json.dumps(source).encode(), DOCUMENT_SPEC)


def _source_key(source: NetworkSource) -> str:
    """Return a short cache key, because documents may be megabytes long."""
    return hashlib.sha256(json.dumps(source).encode()).hexdigest()


MAX_COUNT = 2**20

Network = Annotated[
    NetworkSource,
    Field(
        description="A spec such as torus:4x4, a document of the format chorale-topology/1, or {'file': TEXT} with a "
        "dump of NCCL or RCCL, or what nvidia-smi, rocm-smi, hwloc or ibnetdiscover printed.",
        examples=["torus:4x4"],
    ),
]
CollectiveText = Literal["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Latency = Annotated[float, Field(ge=0, le=10**6)]
Priority = Annotated[int, Field(ge=0, le=9, description="Among the caller's own jobs, higher ones start first.")]
ResultKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="Key of the result of a synthesis.")]


class JobSpec(BaseModel):
    """Common to all jobs. Unknown keys are errors, and so is a `kind` that differs from that of the route."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    priority: Priority = 5

    def facts(self) -> dict[str, Any]:
        """Return everything except the network on which the content key of the result depends. Floats are given as
        exact text.
        """
        facts = self.model_dump(exclude={"kind", "priority", "topology"})
        return {name: repr(value) if isinstance(value, float) else value for name, value in facts.items()}


class CollectiveSpec(JobSpec):
    """A job about a collective on a network."""

    topology: Network
    collective: CollectiveText = "allreduce"
    root: int = Field(default=0, ge=0, le=MAX_COUNT)

    def parsed_collective(self) -> Collective:
        """Return the collective with its root, if it has one."""
        return parse_collective(self.collective, self.root)


class SynthesisSpec(CollectiveSpec):
    """Design, verify and prove a schedule, as `chorale synth` does."""

    kind: Literal["synthesis"] = "synthesis"
    method: str = Field(max_length=64, examples=["bfb"])
    k: Count | None = Field(default=None, description="Trees per root; null: the smallest optimal number.")
    chunks: Count | None = Field(default=None, description="Chunks per shard; null: the smallest optimal number.")
    objective: Literal["height", "trees", "balanced"] = "height"
    seed: int = Field(default=0, ge=0, lt=2**31)
    size_bytes: int | None = Field(default=None, ge=1, le=2**50, description="Weigh link latencies at this size.")

    def options(self) -> Options:
        """Return the options of the method."""
        return Options(
            chunks=self.chunks, k=self.k, objective=self.objective, seed=self.seed, size_bytes=self.size_bytes
        )


class BoundSpec(CollectiveSpec):
    """The least time of a collective with the cut that proves it, as `chorale bound` gives it."""

    kind: Literal["bound"] = "bound"
    k: Count | None = None


class FindSpec(JobSpec):
    """Topologies of a size and degree, as `chorale find` finds them among known bases."""

    kind: Literal["find"] = "find"
    nodes: int = Field(ge=2, le=MAX_COUNT, examples=[64])
    degree: int = Field(ge=1, le=64, examples=[4])
    bidirectional: bool = False


class ProgramSpec(JobSpec):
    """Lower the schedule of a finished synthesis to a program of a runtime, as `chorale lower` does."""

    kind: Literal["program"] = "program"
    result: ResultKey
    target: str = Field(max_length=64, examples=["msccl-xml"])
    channels: int = Field(default=1, ge=1, le=1024)
    instances: int = Field(default=1, ge=1, le=1024)
    protocol: Literal["Simple", "LL", "LL128"] = "Simple"
    in_place: bool = True

    def options(self) -> LoweringOptions:
        """Return the options of the lowering."""
        return LoweringOptions(self.target, self.channels, self.instances, self.protocol, self.in_place)


class PriceSpec(JobSpec):
    """Simulated times of the schedule of a finished synthesis at buffer sizes, as by `chorale simulate`."""

    kind: Literal["price"] = "price"
    result: ResultKey
    sizes_bytes: list[Annotated[int, Field(ge=1, le=2**40)]] = Field(min_length=1, max_length=64)
    alpha_us: Latency = 0
    link_latency_us: Latency = 0.1
    hop_us: Latency = 0.3
    link_gbps: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        default=None, description="Gbit/s of a link, for networks that give no bandwidths."
    )


class JudgeSpec(JobSpec):
    """Whether results of a collective are good, as by `chorale judge`."""

    kind: Literal["judge"] = "judge"
    topology: Network
    results: str = Field(max_length=2**20, description="Text of nccl-tests, rccl-tests, OSU or `chorale run --json`.")
    file_name: str = Field(default="results", max_length=255)
    collective: CollectiveText | None = None
    link_gbps: Annotated[float, Field(gt=0, le=10**6)] | None = None


AnyJobSpec: TypeAlias = Annotated[
    SynthesisSpec | BoundSpec | FindSpec | ProgramSpec | PriceSpec | JudgeSpec, Field(discriminator="kind")
]
"""The specification of a job; `kind` tells which."""
