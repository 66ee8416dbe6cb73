"""Options for lowering schedules to programs."""

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import PlanOptions, Protocol, exact_protocol

MAX_CHANNELS = 1024
MAX_PROCESSORS = 65536
_RANGES = {
    "channels": (1, MAX_CHANNELS),
    "instances": (1, 1024),
    "threads": (32, 1024),
    "vector_bytes": (8, 16),
    "chunks": (1, 2**20),
    "sm_count": (1, MAX_PROCESSORS),
    "min_bytes": (0, 2**62),
    "max_bytes": (0, 2**62),
}


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """Options for lowering a schedule. Lowering fails if the program would exceed the limits of the target.

    target:    name of the target, see `chorale.synth.targets.registry`
    channels:  number of channels over which the transfers between two ranks in a step are distributed
    instances: number of parallel copies of the schedule, each with its own part of the data and its own channels
    protocol:  the runtime's wire protocol
    in_place:  whether input and output share memory
    sm_count:  number of the device's streaming multiprocessors, which is the number of a rank's blocks that can run
               simultaneously; None for the target's default
    fuse:      whether a rank receives and forwards data in one instruction if possible, instead of in two blocks
    chunks:    chunks per shard in each instance (`chorale.synth.lowering.vector_layout`); None to keep the schedule's
    min_bytes, max_bytes: smallest and largest vector size in bytes for which the program is used; `max_bytes` 0 means
                          no limit
    reads, block_group, pipeline_bytes, threads, vector_bytes: options of one-sided targets, explained in
               `chorale.synth.programs.program`
    ranks_per_box: number of ranks that can access each other's memory, for one-sided targets; None: derived from the
               topology
    """

    target: str
    channels: int = 1
    instances: int = 1
    protocol: Protocol = "Simple"
    in_place: bool = True
    min_bytes: int = 0
    max_bytes: int = 0
    sm_count: int | None = None
    fuse: bool = False
    chunks: int | None = None
    reads: bool = False
    block_group: int = 1
    pipeline_bytes: int = 0
    ranks_per_box: int | None = None
    threads: int | None = None
    vector_bytes: int = 16

    def __post_init__(self) -> None:
        exact_protocol(self.protocol)
        PlanOptions(self.reads, self.block_group, self.pipeline_bytes)
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidInput(f"{name} must be between {low} and {high}", value, "choose a value in this range")
        if self.max_bytes and self.max_bytes < self.min_bytes:
            values = f"min_bytes {self.min_bytes}, max_bytes {self.max_bytes}"
            raise InvalidInput("max_bytes must not be below min_bytes", values, "use 0 for no upper limit")

    @property
    def moves_differently(self) -> bool:
        """Whether any option is set that only one-sided targets support."""
        moved = self.reads, self.block_group, self.pipeline_bytes, self.ranks_per_box, self.threads, self.vector_bytes
        return moved != (False, 1, 0, None, None, 16)
