"""Specifications of jobs: the body of a request, which is stored with the job and sent to the worker."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from chorale.synth.collective import Collective, parse_collective
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.tuner.service.jobs.limits import NetworkSource

MAX_COUNT = 2**20

Network = Annotated[
    NetworkSource,
    Field(
        description="A spec such as torus:4x4, or a document of the format chorale-topology/1.",
        examples=["torus:4x4"],
    ),
]
CollectiveText = Literal["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Latency = Annotated[float, Field(ge=0, le=10**6)]
Priority = Annotated[int, Field(ge=0, le=9, description="Among the caller's own jobs, higher ones start first.")]
ResultKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", description="Key of the result of a synthesis.")]


class JobSpec(BaseModel):
    """Common to all jobs. Unknown keys are errors, and so is a `kind` other than that of the route.

    `kind` tells the specifications apart. The route implies it and the stored job has it beside the request, so it is
    in no JSON schema and no dump.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    priority: Priority = 5

    def facts(self) -> dict[str, Any]:
        """Return what the content key of the result depends on, but for the network: floats as exact text."""
        facts = self.model_dump(exclude={"priority", "topology"})
        return {name: repr(value) if isinstance(value, float) else value for name, value in facts.items()}


class CollectiveSpec(JobSpec):
    """A job about a collective on a network."""

    topology: Network
    collective: CollectiveText = "allgather"
    root: int = Field(default=0, ge=0, le=MAX_COUNT)

    def parsed_collective(self) -> Collective:
        """Return the collective with its root, if it has one."""
        return parse_collective(self.collective, self.root)


class SynthesisSpec(CollectiveSpec):
    """Design, verify and prove a schedule, as `chorale synth` does."""

    kind: SkipJsonSchema[Literal["synthesis"]] = Field(default="synthesis", exclude=True)
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

    kind: SkipJsonSchema[Literal["bound"]] = Field(default="bound", exclude=True)
    k: Count | None = None


class FindSpec(JobSpec):
    """Topologies of a size and degree, as `chorale find` finds them among known bases."""

    kind: SkipJsonSchema[Literal["find"]] = Field(default="find", exclude=True)
    nodes: int = Field(ge=2, le=MAX_COUNT, examples=[64])
    degree: int = Field(ge=1, le=64, examples=[4])
    bidirectional: bool = False


class ProgramSpec(JobSpec):
    """Lower the schedule of a finished synthesis to a program of a runtime, as `chorale lower` does."""

    kind: SkipJsonSchema[Literal["program"]] = Field(default="program", exclude=True)
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
    """What the schedule of a finished synthesis costs at buffer sizes, as `chorale simulate` tells it."""

    kind: SkipJsonSchema[Literal["price"]] = Field(default="price", exclude=True)
    result: ResultKey
    sizes_bytes: list[Annotated[int, Field(ge=1, le=2**40)]] = Field(min_length=1, max_length=64)
    alpha_us: Latency = 0
    link_latency_us: Latency = 0.1
    hop_us: Latency = 0.3
    link_gbps: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        default=None, description="Gbit/s of a link, for networks that give no bandwidths."
    )


AnyJobSpec: TypeAlias = Annotated[
    SynthesisSpec | BoundSpec | FindSpec | ProgramSpec | PriceSpec, Field(discriminator="kind")
]
"""The specification of a job, told apart by `kind`."""
