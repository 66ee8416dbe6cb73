"""Declares the msccl runner and its options."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from chorale.runners.api.base import Runner
from chorale.runners.api.config import SERVER_ONLY, ByteCount, Capabilities, MeasurerRequest
from chorale.runners.msccl.commands import MSCCL, require_runtime
from chorale.runners.nccl.config import GpuRanksConfig
from chorale.runners.process_launch.slurm import require_one_process
from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.options import MAX_PROCESSORS, LoweringOptions
from chorale.synth.topology.topology import Topology


class MscclConfig(GpuRanksConfig):
    """Options of the msccl runner; docs/guide/gpus.md describes what a cluster needs."""

    name: ClassVar[str] = "msccl"
    summary: ClassVar[str] = "GPUs with a runtime for MSCCL XML"
    preconditions: ClassVar[tuple[str, ...]] = ("gpus",)
    capabilities: ClassVar[Capabilities] = Capabilities(protocols=True, buffers=True)
    is_nested: ClassVar[bool] = True

    runtime: Literal["msccl", "executor", "rccl"] | None = Field(
        default=None,
        description="The library that executes programs; it determines their format. Default: by program, or msccl.",
    )
    library_folder: Annotated[str | None, SERVER_ONLY] = Field(
        default=None, description="Folder of the runtime's library on the nodes; by default the loader finds it."
    )
    in_place: bool = Field(
        default=True,
        description=(
            "Whether input and output of calls share memory: programs serve one kind only. PyTorch's all_reduce is in "
            "place, its all_gather and reduce_scatter are not."
        ),
    )
    sm_count: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PROCESSORS,
        description="Multiprocessors of a GPU, the largest number of thread blocks of a program. Default: 108.",
    )
    buffer_bytes: Annotated[int, Field(ge=1), ByteCount] | None = Field(
        default=None, description="Buffer of each connection, such as 4MiB; by default the runtime's."
    )

    @property
    def libraries(self) -> tuple[str, str]:
        library = require_runtime(self.runtime or MSCCL.name).library
        return library if self.library_folder is None else f"{self.library_folder}/{library}", ""

    def library_algorithms(self, collective: CollectiveName, topology: Topology) -> tuple[str, ...]:
        return ("nccl",)

    def lowering(self) -> LoweringOptions:
        runtime = require_runtime(self.runtime or MSCCL.name)
        blocks = [most for most in (self.sm_count, runtime.threadblocks) if most is not None]
        return LoweringOptions(runtime.target, in_place=self.in_place, sm_count=min(blocks, default=None))

    def conditions(self) -> dict[str, Any]:
        """Return the options that affect times. If the runtime chooses the buffer size, `buffer_bytes` is left out."""
        without = {*self.not_compared, *(["buffer_bytes"] if self.buffer_bytes is None else [])}
        return {**self.model_dump(exclude=without), "runtime": self.runtime or MSCCL.name}

    def create(self, home: Path | None = None, request: MeasurerRequest | None = None) -> Runner:
        from chorale.runners.msccl.runner import MscclRunner  # noqa: PLC0415 - only needed to run something

        require_one_process()
        return MscclRunner(self, (request or MeasurerRequest()).node)
