"""Checks whether a group's GPUs can access each other's memory and, if so, prepares the group's plans on them."""

import hashlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from chorale.job.settings import JobSettings
from chorale.job.table.lookup import Fallback
from chorale.job.torch.reload import GroupMember
from chorale.job.torch.transport import DeviceTransport
from chorale.runners.device.memory import CudaDevice, PlanDevice, ProcessorDevice
from chorale.runners.device.plans import DeviceOptions, GroupPlans, RequestedPlan
from chorale.runners.engine.library import DataType
from chorale.runners.plans.rank_plans import Arithmetic
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.targets.lift import lift_code

STAND_IN = "CPUs that stand in for GPUs"

OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""Environment variable; if it is 1, torch lets ranks share a GPU."""


def device_transport(
    member: GroupMember, name: str, texts: Mapping[bytes, int], settings: JobSettings
) -> DeviceTransport | Fallback:
    """Return the transport that runs the plans in `texts`, or on all ranks why there is none; all ranks call it.

    Plans cannot run if a rank has no GPU, if GPUs cannot access each other's memory, or if a rank fails to prepare its
    plans. The first rank of the group reports the reason on stderr.

    name:  name for this table, different from all names used before in this group
    texts: text of each plan -> largest size in bytes that it has to handle
    """
    exchange, transport, reason = member.exchanges(f"plans-{name}"), None, ""
    stands_in = settings.transport == "stand-in"
    facts = [] if stands_in else exchange(_facts())
    sharing = max(Counter(gpu for _, gpu, _ in filter(None, facts)).values(), default=0)
    if not stands_in and (obstacle := obstacle_of(facts, sharing)):
        if member.rank == 0:
            sys.stderr.write(f"chorale: no plans run on a group of the job: {obstacle}\n")
        return Fallback.HOSTS if len({host for host, *_ in filter(None, facts)}) > 1 else Fallback.PLAN
    try:
        device: PlanDevice
        if stands_in:
            device = ProcessorDevice(member.rank, exchange)
            most_blocks = device.most_blocks
        else:
            own = f"chorale-{'-'.join(map(str, member.members))}-{name}"
            device = CudaDevice(member.rank, len(member.members), dist.PrefixStore(own, member.store), own, sharing)
            most_blocks = min(int(blocks) for _, _, blocks in facts) // sharing
        device.prepare(Arithmetic(DataType.FLOAT32))  # fails here, not later, if there is no compiler
        requests = {}
        for text, most_bytes in texts.items():
            plan = lift_code(text)
            assert isinstance(plan, ExecutionPlan)
            if max(len(body.blocks) for body in plan.ranks) <= most_blocks:  # all of them must run at the same time
                requests[hashlib.sha256(text).hexdigest()] = RequestedPlan(plan, min(most_bytes, plan.max_bytes))
        options = DeviceOptions(limit_s=member.limit_s, keeps_wide=settings.wide_sums)
        plans = GroupPlans(device, member.rank, len(member.members), requests, options)
        transport = DeviceTransport(device.name, STAND_IN if stands_in else "kernel", plans)
    except Exception as error:  # after any error, no rank runs plans
        reason = f"{type(error).__name__}: {error}"
    for rank, (other,) in enumerate(member.exchanges(f"ready-{name}")([reason])):
        if other:
            if member.rank == 0:
                sys.stderr.write(f"chorale: no plans run on a group of the job, of which rank {rank} says: {other}\n")
            return Fallback.PLAN
    return transport or Fallback.PLAN


def _facts() -> list[str]:
    """Return host name, GPU and its number of multiprocessors; an empty list if there is no GPU that can run plans."""
    if not torch.cuda.is_available() or torch.version.hip:
        return []
    own, others = torch.cuda.current_device(), range(torch.cuda.device_count())
    if not all(torch.cuda.can_device_access_peer(own, other) for other in others if other != own):
        return []
    facts = torch.cuda.get_device_properties(own)
    return [socket.gethostname(), str(facts.uuid), str(facts.multi_processor_count)]


def obstacle_of(facts: Sequence[Sequence[str]], sharing: int) -> str:
    """Return why plans cannot run, or "". facts: `_facts` of all ranks; sharing: largest number of ranks on one GPU"""
    if missing := [str(rank) for rank, fact in enumerate(facts) if not fact]:
        return f"no NVIDIA GPU that reaches the others of its host at ranks {', '.join(missing)}"
    if (hosts := len({host for host, *_ in facts})) > 1:
        return f"its ranks are on {hosts} hosts, and plans need memory that all GPUs reach; give the table programs"
    return "" if sharing == 1 or os.environ.get(OVERLAPPING) == "1" else f"ranks share a GPU; set {OVERLAPPING}=1"
