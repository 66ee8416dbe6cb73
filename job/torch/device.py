"""Whether the GPUs of a group reach each other's memory, and the plans that then run on them."""

import hashlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from chorale.job.torch.reload import StoreExchange
from chorale.job.torch.transport import DeviceTransport
from chorale.runners.device.memory import CudaDevice, Exchange, PlanDevice, ProcessorDevice
from chorale.runners.device.plans import DeviceOptions, GroupPlans, RequestedPlan
from chorale.runners.engine.library import DataType
from chorale.runners.plans.rank_plans import Arithmetic
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.targets.lift import lift_code

STAND_IN = "CPUs that stand in for GPUs"

OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""With 1, torch lets ranks share a GPU."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A rank among the members of a group, with torch's store for them alone; name: of this table, here for once."""

    rank: int
    members: tuple[int, ...]
    store: Any
    name: str
    limit_s: float

    def exchange(self, purpose: str = "plans") -> Exchange:
        """Return an exchange that serves again and again; all ranks have as many for a `purpose`."""
        turns = count()

        def exchange(texts: list[str]) -> list[list[str]]:
            name = f"{purpose}-{self.name}-{next(turns)}"
            return StoreExchange(self.store, self.rank, len(self.members), self.limit_s, name)(texts)

        return exchange


def device_transport(member: GroupMember, texts: Mapping[bytes, int], stands_in: bool) -> DeviceTransport | None:
    """Return what runs the plans in `texts`, each for vectors of at most so many bytes; all ranks call this.

    None on all ranks where one has no GPU, they do not all reach each other, or one cannot prepare its part, which is
    then said. stands_in: whether processors stand in for GPUs
    """
    exchange, made, reason = member.exchange(), None, ""
    facts = [] if stands_in else exchange(_facts())
    if not stands_in and _sharing(facts) == 0:
        return None
    try:
        made = _made(member, exchange, texts, facts)
    except Exception as error:  # whatever it is, no rank runs plans then
        reason = f"{type(error).__name__}: {error}"
    for rank, (other,) in enumerate(member.exchange("ready")([reason])):
        if other:
            if member.rank == 0:
                sys.stderr.write(f"chorale: no plans run on a group of the job, of which rank {rank} says: {other}\n")
            return None
    return made


def _made(
    member: GroupMember, exchange: Exchange, texts: Mapping[bytes, int], facts: Sequence[Sequence[str]]
) -> DeviceTransport:
    """Return what runs plans on GPUs of these facts, or where there are none on processors that stand in for them."""
    device: PlanDevice
    if facts:
        name = f"chorale-{'-'.join(map(str, member.members))}-{member.name}"
        store, sharing = dist.PrefixStore(name, member.store), _sharing(facts)
        device = CudaDevice(member.rank, len(member.members), store, name, sharing)
        most_blocks = min(int(blocks) for _, _, blocks in facts) // sharing
    else:
        device = ProcessorDevice(member.rank, exchange)
        most_blocks = device.most_blocks
    device.prepare(Arithmetic(DataType.FLOAT32))  # whether there is a compiler is known now
    return DeviceTransport(
        device.name, "kernel" if facts else STAND_IN, _group_plans(member, device, texts, most_blocks)
    )


def _group_plans(member: GroupMember, device: PlanDevice, texts: Mapping[bytes, int], most_blocks: int) -> GroupPlans:
    """Return the plans whose thread blocks all run at once, by digest; for others there is no room."""
    requests = {}
    for text, most_bytes in texts.items():
        plan = lift_code(text)
        assert isinstance(plan, ExecutionPlan)
        if max(len(body.blocks) for body in plan.ranks) <= most_blocks:
            requests[hashlib.sha256(text).hexdigest()] = RequestedPlan(plan, min(most_bytes, plan.max_bytes))
    return GroupPlans(device, member.rank, len(member.members), requests, DeviceOptions(limit_s=member.limit_s))


def _facts() -> list[str]:
    """Return host, GPU and how many thread blocks it runs at once; nothing where there is none that plans run on."""
    if not torch.cuda.is_available() or torch.version.hip:
        return []
    own, others = torch.cuda.current_device(), range(torch.cuda.device_count())
    if not all(torch.cuda.can_device_access_peer(own, other) for other in others if other != own):
        return []
    facts = torch.cuda.get_device_properties(own)
    return [socket.gethostname(), str(facts.uuid), str(facts.multi_processor_count)]


def _sharing(facts: Sequence[Sequence[str]]) -> int:
    """Return how many ranks share a GPU, 0 where plans cannot run: not all on GPUs of one host, or shared ones."""
    if not all(facts) or len({host for host, *_ in facts}) > 1:
        return 0
    most = max(Counter(gpu for _, gpu, _ in facts).values())
    return most if most == 1 or os.environ.get(OVERLAPPING) == "1" else 0
