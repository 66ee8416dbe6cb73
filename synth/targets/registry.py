"""Lists all targets, finds them by name, and computes the resources that a program uses."""

from dataclasses import dataclass

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.names import name_among
from chorale.synth.programs.limits import written_steps
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.targets.base import Target, XmlTarget
from chorale.synth.targets.mscclpp_text import MscclppJson
from chorale.synth.targets.xml_targets import MscclExecutorXml, MscclXml, OneCclXml


@dataclass(frozen=True, slots=True)
class Resources:
    """A program's resource use, each the maximum over its ranks. `steps_max`: steps or operations of a thread block."""

    channels: int
    threadblocks_max: int
    steps_max: int
    scratch_chunks_max: int


def resources_of(program: AnyProgram) -> Resources:
    """Return the number of channels, blocks, steps and scratch chunks that `program` uses."""
    return Resources(
        channels=program.channels,
        threadblocks_max=max(len(rank.blocks) for rank in program.ranks),
        steps_max=max(_steps(program), default=0),
        scratch_chunks_max=max(rank.scratch_chunks for rank in program.ranks),
    )


def _steps(program: AnyProgram) -> list[int]:
    if isinstance(program, ExecutionPlan):
        return [sum(1 for _ in block.every_operation()) for body in program.ranks for block in body.blocks]
    assert isinstance(program, Program)
    limits = target_named(program.target).limits
    return [int(written_steps(rank.columns, limits).max(initial=0)) for rank in program.ranks]


XML_TARGETS: tuple[XmlTarget, ...] = (MscclExecutorXml(), MscclXml(), OneCclXml())
"""All XML targets. A document is read by the first target in this list that recognises it."""
_ALL: tuple[Target, ...] = (*XML_TARGETS, MscclppJson())
TARGET_ALIASES = {
    "msccl": "msccl-xml",
    "mscclexecutor": "msccl-executor-xml",
    "msccl++": "mscclpp-json",
    "mscclpp": "mscclpp-json",
    "oneccl": "oneccl-xml",
}
"""Maps names of runtimes (lower case, without separators) to names of targets."""
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}


def target_named(name: str) -> Target:
    return TARGETS[name_among("target", name, TARGETS, TARGET_ALIASES)]


def is_in_place_by_default(collective: Collective, target: str) -> bool:
    """Return whether programs that execute `collective` on `target` are in place by default."""
    return collective.name != CollectiveName.ALLTOALL or target_named(target).limits.alltoall_in_place
