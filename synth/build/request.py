"""Requests for schedules and programs, and the results and failures of builds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING

from chorale.synth.collective import Collective
from chorale.synth.errors import CheckFailed, ChoraleError, InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.methods.method import Options
from chorale.synth.topology.topology import Topology

if TYPE_CHECKING:
    from chorale.synth.lowering.options import LoweringOptions
    from chorale.synth.programs.program import AnyProgram

_NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class ScheduleRequest:
    """Describes a schedule to synthesize. After synthesis, every transfer is split into `depth` equal transfers."""

    topology: Topology
    collective: Collective
    method: str
    options: Options = _NO_OPTIONS
    depth: int = 1

    @property
    def id(self) -> str:
        """Content id (hash) of everything that determines the schedule and its file, including the topology's spec."""
        options = {item.name: getattr(self.options, item.name) for item in fields(Options)}
        return content_id(
            {
                "topology": self.topology.id,
                "spec": self.topology.spec,
                "collective": str(self.collective),
                "method": self.method,
                "options": {name: getattr(value, "id", value) for name, value in options.items()},
                "depth": self.depth,
            }
        )


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A program to build: the request for its schedule (`source`) and how to lower the schedule (`lowering`)."""

    source: ScheduleRequest
    lowering: LoweringOptions

    @property
    def id(self) -> str:
        return content_id({"source": self.source.id, "lowering": asdict(self.lowering)})


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A verified schedule and its checked program.

    schedule_id:   content id of the schedule
    schedule:      contents of the schedule's Parquet file
    program_id:    content id of the schedule and the lowering options (see the function `program_id`)
    program_text:  the program in the text format of its target
    time_per_byte: bandwidth time / vector size, as text such as 7/8; its unit is 1 / (bandwidth unit of the topology)
    """

    schedule_id: str
    schedule: bytes
    program_id: str
    program: AnyProgram
    program_text: str
    time_per_byte: str
    steps: int
    chunks_per_shard: int


class BuildFailureKind(StrEnum):
    INVALID = "invalid"  # the parameters contradict each other or exceed a limit
    UNSOUND = "unsound"  # the result failed verification because the method has a fault
    CRASH = "crash"  # an unexpected error, or the worker died


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """The reason why a build failed. `message` is one line of text."""

    kind: BuildFailureKind
    message: str

    @staticmethod
    def of(error: Exception) -> BuildFailure:
        if isinstance(error, InvalidInput):
            return BuildFailure(BuildFailureKind.INVALID, str(error))
        if isinstance(error, CheckFailed):
            return BuildFailure(BuildFailureKind.UNSOUND, str(error))
        message = str(error) if isinstance(error, ChoraleError) else f"{type(error).__name__}: {error}"
        return BuildFailure(BuildFailureKind.CRASH, " ".join(message.split()))


def program_id(schedule_id: str, lowering: LoweringOptions) -> str:
    """Return the content id of a lowered program. It ignores the options `chunks`, `min_bytes` and `max_bytes`."""
    moved = {name: getattr(lowering, name) for name in ("reads", "block_group", "pipeline_bytes", "ranks_per_box")}
    moved |= {} if lowering.threads is None else {"threads": lowering.threads}
    moved |= {} if lowering.vector_bytes == 16 else {"vector_bytes": lowering.vector_bytes}
    return content_id(
        {
            **(moved if lowering.moves_differently else {}),
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
