"""Declares the simulated runner and its options."""

from fractions import Fraction
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field

from chorale.runners.api.base import Runner
from chorale.runners.api.config import ByteCount, Capabilities, ExactNumber, MeasurerRequest, RunnerConfig, TimeSource
from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.topology import Topology

DEFAULT_LINK_MBPS = Fraction(1000)
"""Campaigns' default on networks without bandwidths; without latencies, speedups do not depend on it."""

MODELLED = "modelled"
"""The library's own choice on a network with bandwidths, with the time from its published model."""
MODELLED_COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")

Microseconds: TypeAlias = Annotated[Fraction, ExactNumber(ge=0, le=10**6), Field(json_schema_extra={"default": 0})]


class SimulatedConfig(RunnerConfig):
    """Options of the simulated runner: the exact cost of messages; see `SimulatedRunner`."""

    name: ClassVar[str] = "simulated"
    summary: ClassVar[str] = "a cost model"
    capabilities: ClassVar[Capabilities] = Capabilities(
        TimeSource.MODEL, buffers=True, unprivileged=True, any_program=True, switches=True
    )

    link_mbps: Annotated[Fraction, ExactNumber(gt=0, le=10**6)] | None = Field(
        default=None,
        description="Rate of a link in Mbit/s; by default the network's own, in campaigns 1000 where it gives none.",
    )
    alpha_us: Microseconds = Field(default=Fraction(0), description="Cost of a message.")
    link_latency_us: Microseconds = Field(default=Fraction(0), description="Latency of a link.")
    hop_us: Microseconds = Field(default=Fraction(0), description="Cost of each hop of a message.")
    buffer_bytes: Annotated[int, Field(ge=1), ByteCount] | None = Field(
        default=None, description="Buffer of each connection, such as 4MiB; by default a chunk is one message."
    )
    target: Literal["oneccl-xml", "mscclpp-json"] = Field(
        default="oneccl-xml",
        description="What programs are lowered to: oneccl-xml sends and receives, mscclpp-json are plans of MSCCL++.",
    )

    def lowering(self) -> LoweringOptions:
        return LoweringOptions(self.target)

    @property
    def executes_plans(self) -> bool:
        return True

    @property
    def link_rate_mbps(self) -> Fraction | None:
        return self.link_mbps

    def for_network(self, topology: Topology) -> Self:
        if self.link_mbps is not None or topology.bandwidth_unit != "link":
            return self
        return self.model_copy(update={"link_mbps": DEFAULT_LINK_MBPS})

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        is_modelled = topology.bandwidth_unit != "link" and collective in MODELLED_COLLECTIVES
        return (MODELLED,) if is_modelled else ()

    def network_model(self) -> NetworkModel:
        rate_gbps = None if self.link_mbps is None else self.link_mbps / 1000
        return NetworkModel(self.alpha_us / 10**6, self.link_latency_us / 10**6, self.hop_us / 10**6, rate_gbps)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.simulated.runner import SimulatedRunner  # noqa: PLC0415 - only needed to run something

        return SimulatedRunner(self.network_model(), self.buffer_bytes)
