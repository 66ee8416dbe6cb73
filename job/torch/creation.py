"""Create a group: its inner group, the table on which all ranks agree, and the engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chorale.job import current_report
from chorale.job.group import require_one_table
from chorale.job.record import recorder_of
from chorale.job.settings import JobSettings, job_table
from chorale.job.table.lookup import Fallback, GroupEntries
from chorale.job.table.model import Table
from chorale.job.torch.device import device_transport
from chorale.job.torch.functions import extend_torch
from chorale.job.torch.inner import InnerGroup, inner_group, meeting_host
from chorale.job.torch.process_group import ChoraleGroup
from chorale.job.torch.programs import GroupPrograms
from chorale.job.torch.rails import network_of_table
from chorale.job.torch.recording import RecordingGroup, StatusFile, report_at_end
from chorale.job.torch.reload import GroupMember, StoreExchange, TableReload
from chorale.job.torch.transport import BatchedTransport, EngineTransport, LoadedTable
from chorale.job.torch.work import WorkQueue
from chorale.runners.engine.library import TORCH_VARIABLES, Devices
from chorale.synth.errors import InvalidInput

_MEETING_S = 120.0
_RELOAD_S = 30.0
"""Time that ranks wait for one another during a reload before they continue with the current table."""


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
    batches: creates a group for batched sends and receives; if it is None, the engine is the only transport
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
        group = replace(member, limit_s=min(limit_s, _RELOAD_S))
        programs.reload = TableReload(group, settings.table, digest, loader.another, settings.reload_s)
    return programs


@dataclass(slots=True)
class _Loader:
    """Loads tables for one member of a group and connects it to the other members.

    batched:   transports that serve all tables, by device type
    job_ranks: number of ranks of the first table, 0 without a table
    """

    member: GroupMember
    settings: JobSettings
    devices: Devices
    batched: Mapping[str, BatchedTransport] = field(default_factory=dict)
    job_ranks: int = 0
    turns: int = 0

    def first(self, table: Table | None, digest: str, exchange: StoreExchange) -> LoadedTable:
        """Load the first table of the group; `table` is None in a job without one. Raises the errors of GroupEngine."""
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
            limit_s = min(self.member.limit_s, _MEETING_S)
            transport = EngineTransport(table, digest, members, self.member.rank, exchange, self.devices, limit_s)
            loaded = LoadedTable(digest, entries, {"cpu": transport}, (transport,), digests=plans, network=network)
        if not plans or settings.transport not in ("auto", "stand-in"):
            return loaded
        texts = {}  # text of each plan -> size in bytes of the largest vector for which it gets memory
        for name in plans:
            largest = [entry.max_bytes or 2**62 for entry in table.entries if entry.program == name]
            texts[table.programs[name].text] = min(settings.plan_bytes, *largest)
        self.turns += 1
        kernels = device_transport(self.member, f"{digest[:12]}-{self.turns}", texts, settings)
        owned = () if isinstance(kernels, Fallback) else (kernels,)
        return replace(loaded, owned=(*loaded.owned, *owned), plans=kernels)

    def another(self, table: Table, digest: str, exchange: StoreExchange) -> LoadedTable:
        """Load a table to which the group may switch. Raises InvalidInput if it is for another number of ranks."""
        if table.ranks != self.job_ranks:
            rule = f"a new table must be for the {self.job_ranks} ranks of the job"
            raise InvalidInput(rule, f"{table.ranks}", "write one for them")
        loaded = self.first(table, digest, exchange)
        for transport in self.batched.values():
            transport.add(table.programs)
        return replace(loaded, transports={**self.batched, **loaded.transports})


def _at_end(settings: JobSettings) -> Callable[[], None]:
    """Set up this process's report and status file. Return the function to call at the end of the job."""
    write = report_at_end(settings.report)
    status = StatusFile(Path(settings.status)) if settings.status else None

    def end() -> None:
        write()
        if status is not None:
            status.close()

    return end
