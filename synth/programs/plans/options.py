"""Options of plans: how data are moved, and facts about the machines."""

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput

MAX_GROUP = 64
GRANULE_BYTES = 16
MAX_PIPELINE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Choices for one-sided runtimes; other runtimes ignore them.

    reads:          whether receivers read data that stays in place until they have it, instead of being written to
    group:          number of thread blocks that share the chunks of a block of the program
    pipeline_bytes: bytes of the parts in which chunks go through the steps of a block; 0 for complete chunks
    boxes:          box of each rank; ranks of different boxes have ports between them; () if all are in one box
    resident_blocks: number of thread blocks of a rank that can run at once; further blocks are not shared; None: no
                    bound
    threads:        threads of a thread block; None for the default of the executor
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
            rule = "a plan has either pipelines or block groups, not both: {}"
            raise InvalidInput(rule, f"groups of {self.group}", "use one of the two")

    def joined_by_port(self, first: int, second: int) -> bool:
        """Return whether two ranks are in different boxes."""
        return bool(self.boxes) and self.boxes[first] != self.boxes[second]


WHOLE_CHUNKS = PlanOptions()
"""Senders write complete chunks, with one thread block for each block of the program, in one box."""
