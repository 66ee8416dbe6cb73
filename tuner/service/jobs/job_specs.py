"""What clients may ask: one model per body, every field with its range."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_COUNT = 2**20

Topology = Annotated[
    str | dict[str, Any],
    Field(
        description="A spec such as torus:4x4, or a document of the format chorale-topology/1.",
        examples=["torus:4x4"],
    ),
]
CollectiveText = Literal["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce", "alltoall"]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Latency = Annotated[float, Field(ge=0, le=10**6)]
Priority = Annotated[int, Field(ge=0, le=9, description="Among the caller's own jobs, higher ones start first.")]


class JobSpec(BaseModel):
    """The body of a request that becomes a job: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    priority: Priority = 5


class SynthesisSpec(JobSpec):
    """Design, verify and prove a schedule, as `chorale synth` does."""

    topology: Topology
    method: str = Field(max_length=64, examples=["bfb"])
    collective: CollectiveText = "allgather"
    root: int = Field(default=0, ge=0, le=MAX_COUNT)
    k: Count | None = Field(default=None, description="Trees per root; null: the smallest optimal number.")
    chunks: Count | None = Field(default=None, description="Chunks per shard; null: the smallest optimal number.")
    objective: Literal["height", "trees", "balanced"] = "height"
    seed: int = Field(default=0, ge=0, lt=2**31)
    size_bytes: int | None = Field(default=None, ge=1, le=2**50, description="Weigh link latencies at this size.")


class BoundSpec(JobSpec):
    """The least time of a collective with the cut that proves it, as `chorale bound` gives it."""

    topology: Topology
    collective: CollectiveText = "allgather"
    root: int = Field(default=0, ge=0, le=MAX_COUNT)
    k: Count | None = None


class FindSpec(JobSpec):
    """Topologies of a size and degree, as `chorale find` finds them among known bases."""

    nodes: int = Field(ge=2, le=MAX_COUNT, examples=[64])
    degree: int = Field(ge=1, le=64, examples=[4])
    bidirectional: bool = False


class ProgramSpec(JobSpec):
    """Lower the schedule of a finished synthesis to a program of a runtime, as `chorale lower` does."""

    result: str = Field(pattern=r"^[0-9a-f]{64}$", description="Key of the result of a synthesis.")
    target: str = Field(max_length=64, examples=["msccl-xml"])
    channels: int = Field(default=1, ge=1, le=1024)
    instances: int = Field(default=1, ge=1, le=1024)
    protocol: Literal["Simple", "LL", "LL128"] = "Simple"
    in_place: bool = True


class PriceSpec(JobSpec):
    """What the schedule of a finished synthesis costs at sizes of the whole vector, as `chorale simulate` tells it."""

    result: str = Field(pattern=r"^[0-9a-f]{64}$", description="Key of the result of a synthesis.")
    sizes_bytes: list[Annotated[int, Field(ge=1, le=2**40)]] = Field(min_length=1, max_length=64)
    alpha_us: Latency = 0
    link_latency_us: Latency = 0.1
    hop_us: Latency = 0.3
    link_gbps: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        default=None, description="Gbit/s of a link, for networks that give no bandwidths."
    )


class CampaignBody(BaseModel):
    """A campaign file, as YAML would be read: see `chorale tune --schema`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    campaign: dict[str, Any]
    resume: bool = False
