"""Defines what every runner declares: its options, its programs' target, its capabilities and its requirements."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

from chorale.runners.api.base import ResourceRequest, Runner
from chorale.runners.api.units import parse_size
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational, rational_text
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.library_call import LibrarySettings
from chorale.synth.topology.topology import Topology

CPU_TARGET = "oneccl-xml"
"""The program target of all runners without GPUs."""
MODELLED = "modelled"
"""Name for the algorithm that the library itself would choose. Its times come from the library's published model."""
MODELLED_COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")


class TimeSource(StrEnum):
    """The ways in which a runner can get its times."""

    MACHINE = "machine"  # ranks execute programs; times depend on other load on the machine
    MODEL = "model"  # nothing is executed: a cost model of the network
    RECORD = "record"  # nothing is executed: measurements of an earlier run elsewhere


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Describes what a runner can do, and other properties on which the rest of Chorale depends.

    times:         where the runner's times come from
    protocols:     whether times depend on the wire protocol
    buffers:       whether times depend on the size of connections' buffers
    unprivileged:  whether the runner only starts Chorale's own processes, so that every user of a service may use it
    any_program:   whether the runner executes programs for every XML target, not only for its own target, both in
                   place and out of place
    switches:      whether the runner can emulate switches that reduce or multicast data, with a process for each switch
    library_settings: whether settings of a library's own algorithms can be candidates
    """

    times: TimeSource = TimeSource.MACHINE
    protocols: bool = False
    buffers: bool = False
    unprivileged: bool = False
    any_program: bool = False
    switches: bool = False
    library_settings: bool = False

    @property
    def is_live(self) -> bool:
        """Return whether the runner really executes programs. If so, it needs exclusive use of its machine."""
        return self.times is TimeSource.MACHINE


@dataclass(frozen=True, slots=True)
class MeasurerRequest:
    """A user's request for Ray cluster nodes on which to measure.

    node: resources to reserve on each node, except GPUs
    gpus: GPUs to reserve on each node; None for as many as the runner uses
    count: number of nodes that measure at the same time
    """

    node: ResourceRequest = field(default_factory=lambda: ResourceRequest(cpus=0))
    gpus: float | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Exposure:
    """Says whether requests to a service may set an option that takes free text. Without an `Exposure`, they may not.

    from_requests: False for options that act on the service's machine, such as paths, commands, variables and hosts:
                   only the service's own settings may set them. True for harmless names, such as `schedule`.
    """

    from_requests: bool


SERVER_ONLY = Exposure(from_requests=False)
"""Marks options that requests to a service may not set. The service does not show their values to callers either."""
FROM_REQUESTS = Exposure(from_requests=True)
"""Marks free-text options that requests to a service may set."""


class RunnerConfig(BaseModel, ABC):
    """Base class of runner declarations. Its fields are the runner's options; an instance describes a runner to create.

    To add a runner, write a subclass and add a line to `chorale.runners.api.registry`. The runner is then available on
    the command line and in the `runner` section of campaigns. The module of a subclass is imported whenever a campaign
    is read, so it must not import the code that executes programs, except in `create`.

    name:         name of the runner; the value of `kind` in campaigns
    summary:      a few words that describe the runner in lists
    is_nested:    whether the runner's options are in their own subsection, named after the runner, inside a campaign's
                  `runner` section
    not_compared: options that do not affect measured times
    preconditions: checks of `chorale doctor` that must pass, in the order in which users should fix failures

    Every option that takes text, a path or a mapping must be marked with an `Exposure`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: ClassVar[str]
    summary: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities()
    is_nested: ClassVar[bool] = False
    not_compared: ClassVar[frozenset[str]] = frozenset()
    preconditions: ClassVar[tuple[str, ...]] = ()

    @property
    def link_rate_mbps(self) -> float | Fraction | None:
        """Return the rate in Mbit/s of a link of bandwidth 1, or None if no option gives it."""
        return None

    @property
    def executes_plans(self) -> bool:
        """Return whether these options allow measuring MSCCL++ plans together with other programs."""
        return False

    @property
    def uses_cluster(self) -> bool:
        """Return whether ranks may run on nodes of a Ray cluster other than the node of the runner's process."""
        return False

    def lowering(self) -> LoweringOptions:
        """Return lowering options with the target, placement and device limits that the runner requires. The other
        options have their defaults.
        """
        return LoweringOptions(CPU_TARGET)

    def for_network(self, topology: Topology) -> Self:
        """Return a copy of this configuration in which the options that depend on the network are set."""
        return self

    def resources(self, request: MeasurerRequest, topology: Topology) -> ResourceRequest:
        """Return the resources of a cluster node that the runner's process occupies while it exists."""
        node = request.node
        return ResourceRequest(node.cpus, request.gpus or 0.0, node.resources, node.labels, node.patience_s)

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        """Return the library algorithms to compare candidates with: either the library's own choice, or several
        algorithms, of which the fastest at each size counts.

        Returns () if the runner has no library. In that case, programs for MPI's algorithms replace it.
        """
        return ()

    def settings_fault(self, collective: CollectiveName, settings: LibrarySettings, boxes: int) -> str | None:
        """Return a one-line reason why a campaign on a network of `boxes` boxes cannot try these library settings, or
        None if it can.
        """
        return f"the {self.name} runner has no library with settings: use the nccl runner"

    def check_plan(self, request: MeasurerRequest, topology: Topology) -> None:
        """Raise InvalidInput if the requested nodes do not match the runner's options and the number of ranks."""

    def conditions(self) -> dict[str, Any]:
        """Return the options that affect measured times and differ from their defaults: name -> value."""
        return self.model_dump(exclude=set(self.not_compared), exclude_defaults=True)

    @abstractmethod
    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        """Create the runner; the caller closes it.

        home:    folder where the runner stores probe results; None for $CHORALE_HOME or ./chorale-data
        request: cluster nodes that the runner itself reserves; None if it reserves none
        """


class FabricConfig(RunnerConfig, ABC):
    """Base class for the options of runners whose ranks run on a fabric, on a cluster, or all on this machine."""

    fabric: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Name of the fabric; by default the one for the topology."
    )
    where: Literal["fabric", "cluster", "loopback"] | None = Field(
        default=None, description="Default: a fabric if one is up, else the cluster. Loopback uses no network."
    )


def _bytes(value: Any) -> Any:
    return parse_size(value) if isinstance(value, str) else value


def _number(value: Any) -> Any:
    is_fraction = isinstance(value, Fraction) or (isinstance(value, str) and "/" in value)
    return float(parse_rational(value, "a number")) if is_fraction else value


def _exact(value: Any) -> Fraction:
    """Return a number as an exact fraction.

    Raises ValueError if `value` is not a number, or if `parse_rational` rejects the fraction's text p/q.
    """
    try:
        return parse_rational(rational_text(parse_rational(value, "a number")), "a number, as a fraction,")
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def _exact_json(value: Fraction) -> float | str:
    """Return `value` as a float if the float's shortest decimal text equals it exactly, otherwise as the text p/q."""
    decimal = float(value)
    return decimal if Fraction(str(decimal)) == value else rational_text(value)


def _names(value: Any) -> Any:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _variables(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    pairs = [word.partition("=") for word in value.split()]
    if not all(equals for _, equals, _ in pairs):
        raise ValueError("write NAME=VALUE, with blanks between several")
    return {name: text for name, _, text in pairs}


@dataclass(frozen=True, slots=True)
class ExactNumber:
    """Marks numbers that are used exactly as written: 3, 0.1, "0.1" and "1/3" become fractions."""

    ge: int | None = None
    gt: int | None = None
    le: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        bounds = {"minimum": self.ge, "exclusiveMinimum": self.gt, "maximum": self.le}
        number = {"type": "number", **{name: bound for name, bound in bounds.items() if bound is not None}}
        text = {"type": "string", "description": "A fraction or a decimal number.", "examples": ["1/3"]}
        return handler.generate_schema(
            Annotated[
                source,
                Field(ge=self.ge, gt=self.gt, le=self.le),
                BeforeValidator(_exact),
                PlainSerializer(_exact_json, return_type=float | str),
                WithJsonSchema({"anyOf": [number, text]}),
            ]
        )


Fractional = BeforeValidator(_number)
"""Marks numbers that may also be written as fractions, such as 100/3."""

ByteCount = BeforeValidator(_bytes)
"""Marks integers that may also be written as sizes, such as 4MiB."""

NameList = BeforeValidator(_names)
"""Marks lists of names that may also be written as comma-separated text."""

VariableList = BeforeValidator(_variables)
"""Marks environment variables that may also be written as text, such as `A=1 B=2`."""
