"""Requests for schedules and programs, and the results or failures of building them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from chorale.synth.collective import Collective
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology

_NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """Which schedule to synthesize; `depth`: parts that every transfer is then cut into, one after the other."""

    topology: Topology
    collective: Collective
    method: str
    options: Options = _NO_OPTIONS
    depth: int = 1

    @property
    def id(self) -> str:
        """Content id of everything that the schedule file depends on, the spec of the topology too."""
        return content_id(
            {
                "topology": self.topology.id,
                "spec": self.topology.spec,
                "collective": str(self.collective),
                "method": self.method,
                "options": {item.name: _canonical(getattr(self.options, item.name)) for item in fields(Options)},
                "depth": self.depth,
            }
        )


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A program of the schedule `source`, lowered with the options `lowering`."""

    source: ScheduleRequest
    lowering: LoweringOptions

    @property
    def id(self) -> str:
        """Content id of everything that the program depends on."""
        return content_id({"source": self.source.id, "lowering": asdict(self.lowering)})


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A verified schedule, lowered, written as text, read back and checked.

    schedule:      the schedule as a Parquet file
    program_id:    content id of the schedule's id and all lowering options: equal ids mean the same instructions
    program_text:  the program in the dialect of its target
    time_per_byte: T_B / M as a rational, in 1 / bandwidth_unit of the topology
    """

    schedule_id: str
    schedule: bytes
    program_id: str
    program: Program
    program_text: str
    time_per_byte: str
    steps: int
    chunks_per_shard: int


class BuildFailureKind(StrEnum):
    """Why a request gave no program."""

    INVALID = "invalid"  # the parameters do not fit together or exceed a limit
    UNSOUND = "unsound"  # the result failed verification: a fault of the method
    CRASH = "crash"  # an unexpected error, or the worker died


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """A request that gave no program, as a value; `message` is one line."""

    kind: BuildFailureKind
    message: str

    @staticmethod
    def of(error: Exception) -> BuildFailure:
        """Return `error` as a failure of a request."""
        if isinstance(error, InvalidInput):
            return BuildFailure(BuildFailureKind.INVALID, str(error))
        if isinstance(error, CheckFailed):
            return BuildFailure(BuildFailureKind.UNSOUND, str(error))
        message = str(error) if isinstance(error, ChoraleError) else f"{type(error).__name__}: {error}"
        return BuildFailure(BuildFailureKind.CRASH, " ".join(message.split()))


def program_id(schedule_id: str, lowering: LoweringOptions) -> str:
    """Return the content id of what lowering makes of a schedule; sizes that a program is meant for do not count."""
    return content_id(
        {
            "schedule": schedule_id,
            "target": lowering.target,
            "channels": lowering.channels,
            "instances": lowering.instances,
            "protocol": lowering.protocol,
            "in_place": lowering.in_place,
            "sm_count": lowering.sm_count,
            "fuse": lowering.fuse,
        }
    )


def _canonical(value: Any) -> Any:
    return value.id if isinstance(value, Schedule) else value
