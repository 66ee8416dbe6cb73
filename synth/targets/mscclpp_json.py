"""The JSON execution plans of MSCCL++ (microsoft/mscclpp): puts, signals, packets and switches between GPUs.

The format has no version; the loaders of 0.8.0 to 0.10 are its definition, and what lowering writes is read by all of
them. Reading takes all operations. Keys that the loader ignores (`root`, `origin`) are ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_structure import require_valid_structure
from chorale.synth.programs.limits import TargetLimits
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import MAX_BLOCK_OPERATIONS, OFFSET_BYTES, TARGET
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import Program
from chorale.synth.targets.mscclpp_text import plan_text

ALIGNMENT_BYTES = 16

LIMITS = TargetLimits(
    ranks=128,
    channels=1024,
    threadblocks=1024,
    resident_threadblocks=108,
    waitable_threadblocks=1024,
    blocks_per_direction=1024,
    steps=2**20,  # longer blocks are cut
    waits=2**20,
    single_wait=False,
    count=2**20,
    offset=2**20,
    elements_per_rank=1_000_000,
    elements=1_000_000,
    fused_reductions=None,
    largest_max_bytes=OFFSET_BYTES - 1,
    one_sided_operations=MAX_BLOCK_OPERATIONS,
    alltoall_in_place=True,
    alignment_bytes=ALIGNMENT_BYTES,
    message_buffers=None,
)


@dataclass(frozen=True, slots=True)
class MscclppJson:
    """Target `mscclpp-json`. Limits: every block is on the GPU at once, with up to 1024 threads."""

    name: str = TARGET
    limits: TargetLimits = LIMITS

    def emit(self, program: Program) -> str:
        """Return the text of `program` as one-sided operations; InvalidInput where the executor would not take it."""
        require_valid_structure(program, self.limits, self.name)
        plan = plan_of(program)
        for violation in plan_structure_violations(plan):
            rule = f"a plan must fit {self.name} ({violation.rule})"
            raise InvalidInput(rule, violation.message, "lower it with more channels, or fewer chunks")
        return plan_text(plan)
