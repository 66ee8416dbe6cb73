"""Creates a process group with its inner group, its table (the same on all ranks), its engine and its GPU memory."""

import hashlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chorale.job import current_report
from chorale.job.group import StoreExchange, require_one_table
from chorale.job.record import recorder_of
from chorale.job.settings import JobSettings, job_table
from chorale.job.table.layout import Fallback, GroupEntries, Table
from chorale.job.torch.inner import InnerGroup, extend_torch, inner_group, meeting_host
from chorale.job.torch.process_group import ChoraleGroup
from chorale.job.torch.programs import GroupPrograms
from chorale.job.torch.rails import network_of_table
from chorale.job.torch.recording import RecordingGroup, StatusFile, report_at_end
from chorale.job.torch.reload import GroupMember, TableReload
from chorale.job.torch.transport import BatchedTransport, DeviceTransport, EngineTransport, LoadedTable
from chorale.job.torch.work import WorkQueue
from chorale.runners.device.memory import CudaDevice, PlanDevice, ProcessorDevice
from chorale.runners.device.plans import GroupPlans
from chorale.runners.engine.library import TORCH_VARIABLES, DataType, Devices
from chorale.runners.plans.rank_plans import Arithmetic
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.targets.lift import lift_code


def create_group(options: Any) -> ChoraleGroup:
    """Create the process group for torch's `options` (a DistributedBackendOptions); all its ranks call this together.

    Raises InvalidInput on all ranks if their tables differ or if one of them cannot join.
    """
    extend_torch()
    rank, ranks = options.group_rank, options.group_size
    settings = JobSettings.from_environment()
    members = tuple(options.global_ranks_in_group) or tuple(range(ranks))
    batches = lambda: inner_group(options, settings.inner, "batches")  # noqa: E731
    programs = group_programs(options.store, members, rank, options.timeout, settings, batches)
    inner = inner_group(options, settings.inner)
    is_whole = not dist.is_initialized()
    current_report().ranks = ranks if is_whole else dist.get_world_size()
    at_end = _at_end(settings) if is_whole and members[rank] == 0 else lambda: None
    recorder = recorder_of(rank, ranks) if is_whole else recorder_of(dist.get_rank(), dist.get_world_size())
    if recorder is None:
        return ChoraleGroup(rank, ranks, inner, programs, at_end)
    recording = RecordingGroup(rank, ranks, inner, programs, at_end)
    recording.record_in(recorder, members)
    return recording


def group_programs(
    store: Any,
    members: Sequence[int],
    rank: int,
    timeout: timedelta,
    settings: JobSettings,
    batches: Callable[[], InnerGroup] | None = None,
) -> GroupPrograms:
    """Return the programs for the group of `members` (ranks of the job). All members call this together.

    rank:    position of this process in `members`
    store:   torch store that only this group uses
    timeout: time limit for connecting, and for each run
    batches: function that creates an inner group for batched messages; with None, only the engine runs programs
    """
    limit_s = timeout.total_seconds()
    member = GroupMember(rank, tuple(members), store, limit_s)
    exchange = member.exchange()
    devices = Devices(settings.interface, TORCH_VARIABLES, meeting_host(store))
    loader = _Loader(member, settings, devices)
    try:
        table, digest = job_table(settings.table) if settings.table else (None, "")
        current_report().table = digest or None
        loaded = loader.first(table, digest, exchange)
    except Exception as error:
        exchange.give_up(f"{type(error).__name__}: {error}")
        raise
    for_all = settings.transport == "batched"
    if (
        table is not None
        and batches is not None
        and (for_all or (settings.transport != "engine" and torch.accelerator.is_available()))
    ):
        inner = batches()
        transport = BatchedTransport(inner.group, rank, table.programs)
        loader.batched = {device: transport for device in inner.backends if for_all or device != "cpu"}
        loaded = replace(loaded, transports={**loader.batched, **loaded.transports})
    queue = WorkQueue(f"chorale-{'-'.join(map(str, members[:8]))}")
    programs = GroupPrograms(loaded, settings.strict, limit_s, queue)
    if settings.table is not None and settings.reload_s > 0:
        group = replace(member, limit_s=min(limit_s, 30.0))  # after that, ranks continue with the current table
        programs.reload = TableReload(group, settings.table, digest, loader.another, settings.reload_s)
    return programs


@dataclass(slots=True)
class _Loader:
    """Loads tables for one member of a group and connects it to the other members.

    batched:   maps device types to transports that all tables share
    job_ranks: number of ranks of the first table, 0 without a table
    turns:     number of tables with plans that were loaded so far; it makes the names of transports unique
    """

    member: GroupMember
    settings: JobSettings
    devices: Devices
    batched: Mapping[str, BatchedTransport] = field(default_factory=dict)
    job_ranks: int = 0
    turns: int = 0

    def first(self, table: Table | None, digest: str, exchange: StoreExchange) -> LoadedTable:
        """Load the group's first table (None in a job without a table). Raises the same errors as GroupEngine."""
        members, settings = self.member.members, self.settings
        if table is None:
            require_one_table(members, [texts[0] for texts in exchange([digest])])
            return LoadedTable(digest, None)
        self.job_ranks = table.ranks
        current_report().note_orders(table.programs.values())
        entries = GroupEntries.of(table, members)
        named = {entry.program for entry in entries.entries if entry.program is not None}
        plans = frozenset(each for each in named if table.programs[each].is_plan)
        network = network_of_table(table, members)
        if named == plans or settings.transport == "batched":
            require_one_table(members, [texts[0] for texts in exchange([digest])])
            loaded = LoadedTable(digest, entries, digests=plans, network=network)
        else:
            limit_s = min(self.member.limit_s, 120.0)
            transport = EngineTransport(table, digest, members, self.member.rank, exchange, self.devices, limit_s)
            loaded = LoadedTable(digest, entries, {"cpu": transport}, (transport,), digests=plans, network=network)
        if not plans or settings.transport not in ("auto", "stand-in"):
            return loaded
        texts = {}  # text of each plan -> size in bytes of the largest vector for which memory is reserved
        for name in plans:
            largest = [entry.max_bytes or 2**62 for entry in table.entries if entry.program == name]
            texts[table.programs[name].text] = min(settings.plan_bytes, *largest)
        self.turns += 1
        kernels = device_transport(self.member, f"{digest[:12]}-{self.turns}", texts, settings)
        owned = () if isinstance(kernels, Fallback) else (kernels,)
        return replace(loaded, owned=(*loaded.owned, *owned), plans=kernels)

    def another(self, table: Table, digest: str, exchange: StoreExchange) -> LoadedTable:
        """Load another table for the group to switch to. Raises InvalidInput if its number of ranks is different."""
        if table.ranks != self.job_ranks:
            rule = f"a new table must be for the {self.job_ranks} ranks of the job"
            raise InvalidInput(rule, f"{table.ranks}", "write one for them")
        loaded = self.first(table, digest, exchange)
        for transport in self.batched.values():
            transport.add(table.programs)
        return replace(loaded, transports={**self.batched, **loaded.transports})


def _at_end(settings: JobSettings) -> Callable[[], None]:
    """Start this process's report and status file. Return a function that writes both; call it when the job ends."""
    write = report_at_end(settings.report)
    status = StatusFile(Path(settings.status)) if settings.status else None

    def end() -> None:
        write()
        if status is not None:
            status.close()

    return end


OVERLAPPING = "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"
"""Environment variable: if its value is 1, torch lets several ranks share a GPU."""


def device_transport(
    member: GroupMember, name: str, texts: Mapping[bytes, int], settings: JobSettings
) -> DeviceTransport | Fallback:
    """Return the transport that runs the plans in `texts`, or the reason why the group cannot run plans.

    All ranks must call this together. Plans are programs that run as GPU kernels. No plan can run if a rank has no GPU,
    if GPUs cannot access each other's memory, or if a rank fails to prepare its plans. The first rank of the group
    prints the reason on stderr.

    name:  name for this table that was not used before in this group
    texts: maps the text of each plan to the size in bytes of the largest vector for which memory is reserved
    """
    exchange, transport, reason = member.exchange(f"plans-{name}"), None, ""
    stands_in = settings.transport == "stand-in"
    facts = [] if stands_in else exchange(_facts())
    sharing = max(Counter(gpu for _, gpu, _ in filter(None, facts)).values(), default=0)
    missing = [str(rank) for rank, fact in enumerate(facts) if not fact]
    hosts, obstacle = len({host for host, *_ in filter(None, facts)}), ""
    if missing:
        obstacle = f"no NVIDIA GPU that can access its host's others at ranks {', '.join(missing)}"
    elif hosts > 1:
        obstacle = f"its ranks are on {hosts} hosts, but plans need memory that all GPUs can access; add programs"
    elif sharing > 1 and os.environ.get(OVERLAPPING) != "1":
        obstacle = f"ranks share a GPU; set {OVERLAPPING}=1"
    if obstacle:
        if member.rank == 0:
            sys.stderr.write(f"chorale: no plans run on a group of the job: {obstacle}\n")
        return Fallback.HOSTS if hosts > 1 else Fallback.PLAN
    try:
        device: PlanDevice
        if stands_in:
            device = ProcessorDevice(member.rank, exchange)
            most_blocks = device.most_blocks
        else:
            own = f"chorale-{'-'.join(map(str, member.members))}-{name}"
            device = CudaDevice(member.rank, len(member.members), dist.PrefixStore(own, member.store), own, sharing)
            most_blocks = min(int(blocks) for _, _, blocks in facts) // sharing
        device.prepare(Arithmetic(DataType.FLOAT32))  # without a compiler, this fails here and not later
        requests = {}
        for text, most_bytes in texts.items():
            plan = lift_code(text)
            assert isinstance(plan, ExecutionPlan)
            if max(len(body.blocks) for body in plan.ranks) <= most_blocks:  # all of them must run at the same time
                requests[hashlib.sha256(text).hexdigest()] = plan, min(most_bytes, plan.max_bytes)
        options = member.limit_s, settings.wide_sums
        plans = GroupPlans(device, member.rank, len(member.members), requests, *options)
        transport = DeviceTransport(device.name, "CPUs that stand in for GPUs" if stands_in else "kernel", plans)
    except Exception as error:  # after any error, no rank runs plans
        reason = f"{type(error).__name__}: {error}"
    for rank, (other,) in enumerate(member.exchange(f"ready-{name}")([reason])):
        if other:
            if member.rank == 0:
                sys.stderr.write(f"chorale: no plans run on a group of the job; its rank {rank} reports: {other}\n")
            return Fallback.PLAN
    return transport or Fallback.PLAN


def _facts() -> list[str]:
    """Return the host name, and the GPU's UUID and number of multiprocessors; [] without a GPU that can run plans."""
    if not torch.cuda.is_available() or torch.version.hip:
        return []
    own, others = torch.cuda.current_device(), range(torch.cuda.device_count())
    if not all(torch.cuda.can_device_access_peer(own, other) for other in others if other != own):
        return []
    facts = torch.cuda.get_device_properties(own)
    return [socket.gethostname(), str(facts.uuid), str(facts.multi_processor_count)]
