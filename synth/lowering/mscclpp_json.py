"""The JSON execution plans of MSCCL++ 0.9.0 (microsoft/mscclpp): puts and signals between GPUs that share memory.

The file has no version and the loader of a release is its definition, so one release is named here. Written are the
operations nop, signal, wait, put, copy, re, sem_acquire and sem_release over memory channels, which need peers to see
each other's memory: the GPUs of one box. Packets (LL), port channels (networks), switch channels (NVLS), reads from
peers and pipelines are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.check_structure import require_valid_structure
from chorale.synth.lowering.limits import TargetLimits
from chorale.synth.lowering.plans.check_structure import plan_structure_violations
from chorale.synth.lowering.plans.plan import MAX_BLOCK_OPERATIONS, OFFSET_BYTES, TARGET
from chorale.synth.lowering.plans.text import ALIGNMENT_BYTES, plan_text
from chorale.synth.lowering.plans.translate import plan_of
from chorale.synth.lowering.program import Program

LIMITS = TargetLimits(
    ranks=64,
    channels=1024,
    threadblocks=1024,
    resident_threadblocks=108,
    waitable_threadblocks=1024,
    blocks_per_direction=1024,
    steps=MAX_BLOCK_OPERATIONS,
    waits=MAX_BLOCK_OPERATIONS,
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
