"""Plan options: how data are moved, and properties of the machines."""

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput

MAX_GROUP = 64
GRANULE_BYTES = 16
MAX_PIPELINE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options for one-sided runtimes; other runtimes ignore them.

    reads:          whether receivers read data from their senders where possible, instead of senders writing it
    group:          number of thread blocks that share the work of each of the program's blocks
    pipeline_bytes: size in bytes of the parts in which a chunk passes through a block's steps; 0: complete chunks
    boxes:          box of each rank; () if all ranks are in one box. Ranks in different boxes communicate through
                    ports.
    resident_blocks: number of a rank's thread blocks that can run simultaneously, which limits how many blocks are
                     shared by groups; None: no limit
    threads:        threads per thread block; None for the executor's default
    vector_bytes:   bytes that a thread of Chorale's kernel reads or writes at once: 8 or 16
    """

    reads: bool = False
    group: int = 1
    pipeline_bytes: int = 0
    boxes: tuple[int, ...] = ()
    resident_blocks: int | None = None
    threads: int | None = None
    vector_bytes: int = GRANULE_BYTES

    def __post_init__(self) -> None:
        if not 1 <= self.group <= MAX_GROUP:
            rule = f"a group must have 1 to {MAX_GROUP} thread blocks"
            raise InvalidInput(rule, self.group, "choose a number in this range")
        if self.pipeline_bytes % GRANULE_BYTES or not 0 <= self.pipeline_bytes <= MAX_PIPELINE_BYTES:
            rule = f"parts of a pipeline must be multiples of {GRANULE_BYTES} bytes up to {MAX_PIPELINE_BYTES}"
            raise InvalidInput(rule, self.pipeline_bytes, "use 64KiB, or 0 for none")
        if self.group > 1 and self.pipeline_bytes:
            rule = "a plan has either pipelines or block groups, not both: {}"
            raise InvalidInput(rule, f"groups of {self.group}", "use one of the two")

    def joined_by_port(self, first: int, second: int) -> bool:
        """Return whether two ranks are in different boxes."""
        return bool(self.boxes) and self.boxes[first] != self.boxes[second]


WHOLE_CHUNKS = PlanOptions()
"""The default: senders write complete chunks, each block is one thread block, and all ranks are in one box."""
