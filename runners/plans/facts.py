"""What stands for the hardware of plans where they are executed here: the environment of a measurement says so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from chorale.runners.measurement.machine import Facts
from chorale.synth.programs.plans.plan import ExecutionPlan, Kind, Operation

MEMORY = "memory shared by the processes of ranks"
PORTS = "memory shared by the processes of ranks, written by a proxy thread of the sending rank"
SWITCH = "emulated: the rank that asks reads, adds and stores the memory of all ranks of the group"

_STAND_INS: dict[Kind, tuple[str, str]] = {
    "memory": ("memory_channels", MEMORY),
    "port": ("port_channels", PORTS),
    "switch": ("switch_channels", SWITCH),
}


def plan_facts(plans: Iterable[ExecutionPlan]) -> Facts:
    """Return, for each kind of channels that `plans` use, what it is here; nothing without plans."""
    used = {operation.kind for plan in plans for operation in _with_channels(plan)}
    return {key: text for kind, (key, text) in _STAND_INS.items() if kind in used}


def _with_channels(plan: ExecutionPlan) -> Iterator[Operation]:
    for body in plan.ranks:
        for block in body.blocks:
            for operation in block.every_operation():
                if operation.action.moves or operation.channels:
                    yield operation
