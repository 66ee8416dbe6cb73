"""Defines the job specifications that requests contain, limits the memory that jobs may need, and builds networks."""

import hashlib
import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge
from pydantic import Field

from chorale.synth import Collective, InvalidInput, LoweringOptions, Options, Topology, parse_collective
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.formats.files import from_bytes
from chorale.synth.topology.registry import TooLarge
from chorale.synth.topology.spec import parse_topology, plan_topology
from chorale.tuner.config.values import Strict
from chorale.tuner.service.jobs.planning import Planning

BASE_BYTES = 340 * 2**20
"""Memory of a worker in bytes, after all imports and with its kernels loaded."""

BYTES_PER_PAIR = 52
"""Peak memory of a synthesis in bytes per pair of nodes, for the columns of transfers, their sorted copies and the
replay. Measured: 33 for hypercube:12 with bfb, 52 for a switched fabric of 4,096 ranks with forest."""


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits for one job, request or campaign. A job may use twice its estimated memory, plus what its process uses
    at the start.

    Args:
        max_nodes: Maximum number of nodes of a network.
        max_links: Maximum number of links of a network.
        max_memory_gib: Maximum estimated memory of a job, in GiB.
        max_job_s: Seconds after which a job is stopped.
        max_campaign_minutes: Maximum search time of a campaign, in minutes.
    """

    max_nodes: Annotated[int, Ge(2)] = 16_384
    max_links: Annotated[int, Ge(2)] = 2**21  # includes links of switches; checked before the network is built
    max_memory_gib: Annotated[int, Ge(1)] = 8
    max_job_s: Annotated[int, Ge(1)] = 3600  # includes waiting for cluster resources
    max_campaign_minutes: Annotated[int, Ge(1)] = 1440


def memory_estimate(nodes: int) -> int:
    """Return an estimated upper limit of the peak memory for a synthesis on `nodes` nodes, in bytes."""
    return BASE_BYTES + BYTES_PER_PAIR * nodes**2


def require_affordable(nodes: int, links: int, subject: str, limits: JobLimits) -> None:
    estimate = memory_estimate(nodes)
    value = f"{subject}: {nodes} nodes, about {estimate / 2**30:,.1f} GiB"
    if nodes > limits.max_nodes:
        rule = f"a job must have at most {limits.max_nodes} nodes"
        raise InvalidInput(rule, value, "use the `chorale` command on your own machine, or ask for a higher limit")
    if estimate > limits.max_memory_gib * 2**30:
        rule = f"a job must need at most {limits.max_memory_gib:.1f} GiB of memory"
        raise InvalidInput(rule, value, "choose a smaller network, or ask for a higher limit")
    if links > limits.max_links:
        rule = f"a network must have at most {limits.max_links} links"
        raise InvalidInput(rule, f"{subject}: {links} links", "choose a network with fewer links")


DOCUMENT_SPEC = "file:network"
"""Spec that stands for a network sent as a document. Schedules for such a network contain the complete network."""

CACHED_LINKS = 2**22
"""Maximum total number of links of all cached networks. This many links take about 50 MB."""

NetworkSource: TypeAlias = str | dict[str, Any]
"""A spec, a document of the format chorale-topology/1, or `{"file": TEXT}` with a dump or the output of a tool."""


class NetworkPlanner:
    """Builds the networks that requests name, within the limits, and caches the most recent ones. Thread-safe.

    cached_links: maximum total number of links of all cached networks; a larger network is never cached
    planning:     the processes in which networks are built
    """

    def __init__(self, limits: JobLimits, cached_links: int = CACHED_LINKS, planning: Planning | None = None) -> None:
        self.limits = limits
        self.planning = planning or Planning()
        self._cached_links = cached_links
        self._cache: OrderedDict[str, Topology] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, source: NetworkSource, owner: str = "") -> Topology:
        """Return the network that `owner` requested by a spec or a document. No files are read.

        The size is checked before the network is built. Raises InvalidInput if the network is invalid or its estimated
        memory exceeds the limits.
        """
        topology = self.cached(source)
        if topology is None:
            topology = self.planning.call(owner, built_network, source, self.limits)
            if len(topology.links) <= self._cached_links:
                with self._lock:
                    self._cache[_source_key(source)] = topology
                    while sum(len(entry.links) for entry in self._cache.values()) > self._cached_links:
                        self._cache.popitem(last=False)
        return topology

    def cached(self, source: NetworkSource) -> Topology | None:
        """Return the network of `source` if it is cached from an earlier `plan`, else None."""
        key = _source_key(source)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
            return self._cache.get(key)


def built_network(source: NetworkSource, limits: JobLimits) -> Topology:
    """Return the network of a spec or a document. Its size is checked before and, for a document, after it is built."""
    if isinstance(source, dict):
        nodes, links = (source.get(key) for key in ("nodes", "links"))
        count = [len(entries) if isinstance(entries, list) else 0 for entries in (nodes, links)]
        require_affordable(count[0], count[1], "the network", limits)
        topology = network_of(source)
        require_affordable(topology.node_count, len(topology.links), "the network", limits)
        return topology
    try:
        plan = plan_topology(source)
    except TooLarge as error:
        require_affordable(error.nodes, error.links, str(error.value), limits)
        raise
    require_affordable(plan.nodes, plan.links, source, limits)
    return check_topology(plan.build())


def network_of(source: NetworkSource) -> Topology:
    """Build and check the network of a spec or a document. The caller must have checked its size."""
    if isinstance(source, str):
        return parse_topology(source)
    if isinstance(source.get("file"), str):
        return from_bytes(source["file"].encode(), DOCUMENT_SPEC)
    return from_bytes(json.dumps(source).encode(), DOCUMENT_SPEC)


def _source_key(source: NetworkSource) -> str:
    """Return a short key for the cache: a hash, because documents may be megabytes long."""
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


class JobSpec(Strict):
    """The fields that all job requests share. Unknown keys are errors, and so is a `kind` other than the route's."""

    priority: Priority = 5

    def facts(self) -> dict[str, Any]:
        """Return all fields on which the result's content key depends, except the network; floats become exact text."""
        facts = self.model_dump(exclude={"kind", "priority", "topology"})
        return {name: repr(value) if isinstance(value, float) else value for name, value in facts.items()}


class CollectiveSpec(JobSpec):
    """A job about a collective on a network."""

    topology: Network
    collective: CollectiveText = "allreduce"
    root: int = Field(default=0, ge=0, le=MAX_COUNT)

    def parsed_collective(self) -> Collective:
        return parse_collective(self.collective, self.root)


class SynthesisSpec(CollectiveSpec):
    """A job that designs, verifies and proves a schedule, as `chorale synth` does."""

    kind: Literal["synthesis"] = "synthesis"
    method: str = Field(max_length=64, examples=["bfb"])
    k: Count | None = Field(default=None, description="Trees per root; null: the smallest optimal number.")
    chunks: Count | None = Field(default=None, description="Chunks per shard; null: the smallest optimal number.")
    objective: Literal["height", "trees", "balanced"] = "height"
    seed: int = Field(default=0, ge=0, lt=2**31)
    size_bytes: int | None = Field(
        default=None, ge=1, le=2**50, description="Buffer size for which `auto` minimizes the time."
    )

    def options(self) -> Options:
        return Options(
            chunks=self.chunks, k=self.k, objective=self.objective, seed=self.seed, size_bytes=self.size_bytes
        )


class BoundSpec(CollectiveSpec):
    """A job that computes the shortest time of a collective and the cut that proves it, as `chorale bound` does."""

    kind: Literal["bound"] = "bound"
    k: Count | None = None


class FindSpec(JobSpec):
    """A job that finds topologies of a size and degree from known base graphs, as `chorale find` does."""

    kind: Literal["find"] = "find"
    nodes: int = Field(ge=2, le=MAX_COUNT, examples=[64])
    degree: int = Field(ge=1, le=64, examples=[4])
    bidirectional: bool = False


class ProgramSpec(JobSpec):
    """A job that lowers the schedule of a finished synthesis to a program for a runtime, as `chorale lower` does."""

    kind: Literal["program"] = "program"
    result: ResultKey
    target: str = Field(max_length=64, examples=["msccl-xml"])
    channels: int = Field(default=1, ge=1, le=1024)
    instances: int = Field(default=1, ge=1, le=1024)
    protocol: Literal["Simple", "LL", "LL128"] = "Simple"
    in_place: bool = True

    def options(self) -> LoweringOptions:
        return LoweringOptions(self.target, self.channels, self.instances, self.protocol, self.in_place)


class PriceSpec(JobSpec):
    """A job that simulates the schedule of a finished synthesis at given buffer sizes, as `chorale simulate` does."""

    kind: Literal["price"] = "price"
    result: ResultKey
    sizes_bytes: list[Annotated[int, Field(ge=1, le=2**40)]] = Field(min_length=1, max_length=64)
    alpha_us: Latency = 0
    link_latency_us: Latency = 0.1
    hop_us: Latency = 0.3
    link_gbps: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        default=None, description="Gbit/s of a link, for networks without bandwidths."
    )


class JudgeSpec(JobSpec):
    """A job that judges whether measured results of a collective are good, as `chorale judge` does."""

    kind: Literal["judge"] = "judge"
    topology: Network
    results: str = Field(max_length=2**20, description="Text of nccl-tests, rccl-tests, OSU or `chorale run --json`.")
    file_name: str = Field(default="results", max_length=255)
    collective: CollectiveText | None = None
    link_gbps: Annotated[float, Field(gt=0, le=10**6)] | None = None


AnyJobSpec: TypeAlias = Annotated[
    SynthesisSpec | BoundSpec | FindSpec | ProgramSpec | PriceSpec | JudgeSpec, Field(discriminator="kind")
]
"""The specification of a job of any `kind`."""
