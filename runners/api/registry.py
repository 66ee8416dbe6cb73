"""Finds runners by name and creates them with options; declares the runners that do not use GPUs."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, ValidationError

from chorale.runners.api.base import Runner
from chorale.runners.api.config import (
    FROM_REQUESTS,
    MODELLED,
    MODELLED_COLLECTIVES,
    SERVER_ONLY,
    ByteCount,
    Capabilities,
    ExactNumber,
    FabricConfig,
    MeasurerRequest,
    RunnerConfig,
    TimeSource,
)
from chorale.runners.device.config import DeviceConfig
from chorale.runners.local.config import LocalConfig
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.nccl.config import NcclConfig
from chorale.runners.process_launch.slurm import require_one_process
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput, name_among
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.topology import Topology

DEFAULT_LINK_MBPS = Fraction(1000)
"""Default link rate of campaigns on networks without stated rates. If latencies are 0, speedups do not depend on it."""

Microseconds: TypeAlias = Annotated[Fraction, ExactNumber(ge=0, le=10**6), Field(json_schema_extra={"default": 0})]


class SimulatedConfig(RunnerConfig):
    """Options of the simulated runner, which computes times from the cost of messages; see `SimulatedRunner`."""

    name: ClassVar[str] = "simulated"
    summary: ClassVar[str] = "a cost model"
    capabilities: ClassVar[Capabilities] = Capabilities(
        TimeSource.MODEL, buffers=True, unprivileged=True, any_program=True, switches=True
    )

    link_mbps: Annotated[Fraction, ExactNumber(gt=0, le=10**6)] | None = Field(
        default=None,
        description="Rate of a link in Mbit/s; by default the network's, or in campaigns 1000 if it has none.",
    )
    alpha_us: Microseconds = Field(default=Fraction(0), description="Cost of a message.")
    link_latency_us: Microseconds = Field(default=Fraction(0), description="Latency of a link.")
    hop_us: Microseconds = Field(default=Fraction(0), description="Cost of each hop of a message.")
    buffer_bytes: Annotated[int, Field(ge=1), ByteCount] | None = Field(
        default=None, description="Buffer of each connection, such as 4MiB; by default a chunk is one message."
    )
    target: Literal["oneccl-xml", "mscclpp-json"] = Field(
        default="oneccl-xml",
        description="Format of programs: oneccl-xml for sends and receives, mscclpp-json for plans of MSCCL++.",
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


class RecordedConfig(RunnerConfig):
    """Options of the recorded runner, which replays published measurements; see `RecordedRunner`."""

    name: ClassVar[str] = "recorded"
    summary: ClassVar[str] = "measurements of an earlier run on GPUs"
    capabilities: ClassVar[Capabilities] = Capabilities(TimeSource.RECORD, buffers=True, unprivileged=True)

    generator: Annotated[str, FROM_REQUESTS] = Field(
        default="ForestColl", description="Generator of the recorded schedules whose times programs get."
    )
    buffer_bytes: Annotated[int, Field(ge=1), ByteCount] | None = Field(
        default=None, description="Buffer of each connection, 64KiB to 8MiB; by default the runtime's 4MiB."
    )
    schedule: Annotated[str | None, FROM_REQUESTS] = Field(
        default=None, description="Name of the recorded schedule whose times every program gets."
    )

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ("rccl",)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.recorded.runner import RecordedRunner  # noqa: PLC0415 - only needed to run something

        return RecordedRunner(None, self.generator, self.buffer_bytes, self.schedule)


ONECCL_ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    CollectiveName.ALLREDUCE: ("ring", "recursive_doubling", "nreduce"),
    CollectiveName.ALLGATHER: ("ring", "flat"),
    CollectiveName.REDUCE_SCATTER: ("ring", "naive"),
    CollectiveName.BROADCAST: ("double_tree", "naive"),
    CollectiveName.REDUCE: ("tree", "rabenseifner"),
    CollectiveName.ALLTOALL: ("naive", "scatter"),
}
"""Collective -> the oneCCL algorithms to measure. At every size, one of them is oneCCL's fastest."""


class OneCclConfig(FabricConfig):
    """Options of the oneccl runner, which runs programs over oneCCL; see `OneCclRunner`."""

    name: ClassVar[str] = "oneccl"
    summary: ClassVar[str] = "over oneCCL, on the fabric that is up or a cluster"
    preconditions: ClassVar[tuple[str, ...]] = ("linux", "oneccl", "g++")
    capabilities: ClassVar[Capabilities] = Capabilities(buffers=True)

    @property
    def uses_cluster(self) -> bool:
        """Return whether ranks may run on a cluster: True unless the options choose a fabric or loopback."""
        return self.fabric is None and self.where not in ("fabric", "loopback")

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ONECCL_ALGORITHMS.get(collective, ())

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.oneccl.runner import OneCclRunner  # noqa: PLC0415 - only needed to run something

        require_one_process()
        return OneCclRunner(self.fabric, self.where)


class MpiConfig(FabricConfig):
    """Options of the mpi runner, which runs programs in MPI jobs; see `MpiRunner`."""

    name: ClassVar[str] = "mpi"
    summary: ClassVar[str] = "over MPI, on the fabric that is up or a cluster"
    capabilities: ClassVar[Capabilities] = Capabilities(any_program=True)
    preconditions: ClassVar[tuple[str, ...]] = ("mpi4py", "mpiexec")

    hosts: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Cluster hosts with commas between, or @FILE; default: hosts of the scheduler's job."
    )
    transport: Literal["mpi", "tcp"] = Field(
        default="mpi",
        description="Transport of programs: MPI messages, or the engine's TCP (shared memory within a host).",
    )
    interface: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Network device of the engine's TCP; by default the first that is up."
    )

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ("mpi",)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.mpi.runner import MpiRunner  # noqa: PLC0415 - only needed to run something

        return MpiRunner(self.fabric, self.where, self.hosts, self.transport, self.interface)


_DECLARED: tuple[type[RunnerConfig], ...] = (
    *(LocalConfig, SimulatedConfig, RecordedConfig, OneCclConfig, MpiConfig, NcclConfig, DeviceConfig, MscclConfig),
)
RUNNERS: Mapping[str, type[RunnerConfig]] = {runner.name: runner for runner in _DECLARED}

_ALIASES = {"sim": "simulated", "simulator": "simulated", "rccl": "nccl"} | dict.fromkeys(
    ("mpich", "openmpi", "mpirun"), "mpi"
)


def runner_named(text: str) -> str:
    """Return the name of the runner to which `text` refers. Raises UnknownName if there is none."""
    return name_among("runner", text, RUNNERS, _ALIASES)


def runner_config(name: str, options: Mapping[str, Any] | None = None) -> RunnerConfig:
    """Return the runner configuration for `name` with `options` (values or text; None means the default).

    Raises InvalidInput for an unknown name or option, and for a value that an option does not accept.
    """
    declared = RUNNERS[runner_named(name)]
    given = {option: value for option, value in (options or {}).items() if value is not None}
    unknown = [option for option in given if option not in declared.model_fields]
    if unknown:
        way_out = f"its options are {', '.join(declared.model_fields)}"
        raise InvalidInput(f"the {name} runner has no option '{{}}'", unknown[0], way_out)
    try:
        return declared.model_validate(given)
    except ValidationError as error:
        fault = error.errors()[0]
        option = str(fault["loc"][0])
        message = fault["msg"].removeprefix("Value error, ").replace("Input should", "the value should", 1)
        rule = f"the option {option} of the {declared.name} runner: {message}"
        raise InvalidInput(rule, fault["input"], f"{option}: {declared.model_fields[option].description}") from None


def create_runner(name: str, options: Mapping[str, Any] | None = None, home: Path | None = None) -> Runner:
    """Return a new runner, which the caller must close. See `runner_config`, and `RunnerConfig.create` for `home`."""
    return runner_config(name, options).create(home)


def is_simulated(runner: str | None) -> bool:
    """Return whether times of the runner called `runner` come from a model instead of measurements."""
    return runner is not None and runner in RUNNERS and RUNNERS[runner].capabilities.times is TimeSource.MODEL


def runner_text(runner: str) -> str:
    """Return the runner's name as shown to users, with a note if its times are simulated."""
    return f"{runner} runner" + (": these times are simulated, not measured" if is_simulated(runner) else "")
