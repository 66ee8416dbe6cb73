"""Checks whether the GPUs of a group can access each other's memory, and if so prepares its plans on them."""

import hashlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

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
"""With 1, torch lets ranks share a GPU."""


def device_transport(
    member: GroupMember, name: str, texts: Mapping[bytes, int], stands_in: bool
) -> DeviceTransport | None:
    """Return the transport that runs the plans in `texts`, or None on all ranks if plans cannot run; all ranks call it.

    Plans cannot run if a rank has no GPU, if GPUs cannot access each other's memory, or if a rank fails to prepare its
    plans; the last case is reported on stderr.

    name:      name for this table, different from all names used before in this group
    texts:     text of each plan -> largest size in bytes that it has to handle
    stands_in: whether CPUs replace the GPUs
    """
    exchange, transport, reason = member.exchanges(f"plans-{name}"), None, ""
    facts = [] if stands_in else exchange(_facts())
    sharing = _sharing(facts)
    if not stands_in and sharing == 0:
        return None
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
        plans = GroupPlans(device, member.rank, len(member.members), requests, DeviceOptions(limit_s=member.limit_s))
        transport = DeviceTransport(device.name, STAND_IN if stands_in else "kernel", plans)
    except Exception as error:  # after any error, no rank runs plans
        reason = f"{type(error).__name__}: {error}"
    for rank, (other,) in enumerate(member.exchanges(f"ready-{name}")([reason])):
        if other:
            if member.rank == 0:
                sys.stderr.write(f"chorale: no plans run on a group of the job, of which rank {rank} says: {other}\n")
            return None
    return transport


def _facts() -> list[str]:
    """Return host name, GPU and its number of multiprocessors; an empty list if there is no GPU that can run plans."""
    if not torch.cuda.is_available() or torch.version.hip:
        return []
    own, others = torch.cuda.current_device(), range(torch.cuda.device_count())
    if not all(torch.cuda.can_device_access_peer(own, other) for other in others if other != own):
        return []
    facts = torch.cuda.get_device_properties(own)
    return [socket.gethostname(), str(facts.uuid), str(facts.multi_processor_count)]


def _sharing(facts: Sequence[Sequence[str]]) -> int:
    """Return the largest number of ranks on one GPU; 0 if plans cannot run because a rank has no GPU, ranks are on
    several hosts, or a GPU is shared without torch's permission (see OVERLAPPING).
    """
    if not facts or not all(facts) or len({host for host, *_ in facts}) > 1:
        return 0
    most = max(Counter(gpu for _, gpu, _ in facts).values())
    return most if most == 1 or os.environ.get(OVERLAPPING) == "1" else 0
