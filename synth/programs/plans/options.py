"""How a plan moves what a program sends: choices of the lowering, and what it knows of the machines."""

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput

MAX_GROUP = 64
GRANULE_BYTES = 16
MAX_PIPELINE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Choices for one-sided runtimes; programs of sends and receives have no use for them.

    reads:          whether receivers read what stays where it is until they have it, instead of being written to
    group:          how many thread blocks share the chunks of a block of the program
    pipeline_bytes: in parts of how many bytes chunks go through the steps of a block; 0: as a whole
    boxes:          the box of each rank; ranks of different boxes have ports between them. (): all are in one box
    threads:        of a thread block; None: as many as the executor takes
    resident_blocks: how many thread blocks of a rank may run at once; blocks beyond are not shared. None: no bound
    """

    reads: bool = False
    group: int = 1
    pipeline_bytes: int = 0
    boxes: tuple[int, ...] = ()
    resident_blocks: int | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.group <= MAX_GROUP:
            rule = f"a group must have 1 to {MAX_GROUP} thread blocks"
            raise InvalidInput(rule, self.group, "choose a number in this range")
        if self.pipeline_bytes % GRANULE_BYTES or not 0 <= self.pipeline_bytes <= MAX_PIPELINE_BYTES:
            rule = f"parts of a pipeline must be multiples of {GRANULE_BYTES} bytes up to {MAX_PIPELINE_BYTES}"
            raise InvalidInput(rule, self.pipeline_bytes, "use 64KiB, or 0 for none")
        if self.group > 1 and self.pipeline_bytes:
            rule = "a pipeline must not be shared by a group, which would go beyond the end of its share"
            raise InvalidInput(rule, f"groups of {self.group}", "use one of the two")

    @property
    def by_chunk(self) -> bool:
        """Whether every operation is on one chunk, so that shares of all operations are the same."""
        return self.group > 1 or self.pipeline_bytes > 0

    def joined_by_port(self, first: int, second: int) -> bool:
        """Return whether two ranks are in different boxes."""
        return bool(self.boxes) and self.boxes[first] != self.boxes[second]


WHOLE_CHUNKS = PlanOptions()
"""Senders write chunks as they are, with one thread block for each block of the program, in one box."""
