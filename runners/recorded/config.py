"""Declares the recorded runner and its options."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from chorale.runners.api.base import Runner
from chorale.runners.api.config import FROM_REQUESTS, ByteCount, Capabilities, MeasurerRequest, RunnerConfig, TimeSource
from chorale.synth.collective import CollectiveName
from chorale.synth.topology.topology import Topology


class RecordedConfig(RunnerConfig):
    """Options of the recorded runner; see `RecordedRunner`."""

    name: ClassVar[str] = "recorded"
    summary: ClassVar[str] = "measurements of an earlier run on GPUs"
    capabilities: ClassVar[Capabilities] = Capabilities(TimeSource.RECORD, buffers=True, unprivileged=True)

    generator: Annotated[str, FROM_REQUESTS] = Field(
        default="ForestColl", description="Generator of the recorded schedules that represent programs."
    )
    buffer_bytes: Annotated[int, Field(ge=1), ByteCount] | None = Field(
        default=None, description="Buffer of each connection, 64KiB to 8MiB; by default the runtime's 4MiB."
    )
    schedule: Annotated[str | None, FROM_REQUESTS] = Field(
        default=None, description="Name of the recorded schedule that represents every program."
    )

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ("rccl",)

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.recorded.runner import RecordedRunner  # noqa: PLC0415 - only needed to run something

        return RecordedRunner(None, self.generator, self.buffer_bytes, self.schedule)
