"""Options for lowering schedules to programs."""

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import PlanOptions, Protocol, exact_protocol

MAX_CHANNELS = 1024
MAX_INSTANCES = 1024
MAX_PROCESSORS = 65536
MAX_CHUNKS = 2**20


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """How to lower a schedule. The target's limits decide whether the options can be used.

    target:    name of the target, see `chorale.synth.targets.registry`
    channels:  number of channels among which each connection's transfers in a step are divided
    instances: number of parallel copies of the schedule, each with its own part of the data and its own channels
    protocol:  the runtime's wire protocol
    in_place:  whether input and output share memory
    sm_count:  number of the device's streaming multiprocessors, which is the number of a rank's blocks that can run
               simultaneously; None for the target's default
    fuse:      whether a rank receives and forwards data in one instruction if possible, instead of in two blocks
    chunks:    chunks per shard in each instance, see `chorale.synth.lowering.vector_layout`; None: as in the schedule
    min_bytes, max_bytes: smallest and largest vector size for which the program is used; `max_bytes` 0 means no limit
    reads, block_group, pipeline_bytes, threads, vector_bytes: for one-sided targets, see
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
        _between("channels", self.channels, 1, MAX_CHANNELS)
        _between("instances", self.instances, 1, MAX_INSTANCES)
        exact_protocol(self.protocol)
        PlanOptions(self.reads, self.block_group, self.pipeline_bytes)
        if self.threads is not None:
            _between("threads", self.threads, 32, 1024)
        _between("vector_bytes", self.vector_bytes, 8, 16)
        if self.chunks is not None:
            _between("chunks", self.chunks, 1, MAX_CHUNKS)
        if self.sm_count is not None:
            _between("sm_count", self.sm_count, 1, MAX_PROCESSORS)
        _between("min_bytes", self.min_bytes, 0, 2**62)
        _between("max_bytes", self.max_bytes, 0, 2**62)
        if self.max_bytes and self.max_bytes < self.min_bytes:
            values = f"min_bytes {self.min_bytes}, max_bytes {self.max_bytes}"
            raise InvalidInput("max_bytes must not be below min_bytes", values, "use 0 for no upper limit")

    @property
    def moves_differently(self) -> bool:
        """Whether any option is set that only one-sided targets support."""
        moved = self.reads, self.block_group, self.pipeline_bytes, self.ranks_per_box, self.threads, self.vector_bytes
        return moved != (False, 1, 0, None, None, 16)


def _between(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidInput(f"{name} must be between {low} and {high}", value, "choose a value in this range")
