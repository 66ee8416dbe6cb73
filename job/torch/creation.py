"""How a group comes into being: its inner group, the table on which all ranks agree, and the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from chorale.job import current_report
from chorale.job.group import GroupEngine, require_one_table
from chorale.job.settings import JobSettings, read_table
from chorale.job.table.lookup import GroupEntries
from chorale.job.table.model import Table
from chorale.job.torch.agreement import StoreExchange
from chorale.job.torch.batched import BatchedTransport
from chorale.job.torch.inner import InnerGroup, inner_group
from chorale.job.torch.process_group import ChoraleGroup
from chorale.job.torch.programs import GroupPrograms
from chorale.job.torch.reporting import report_at_end
from chorale.job.torch.transport import EngineTransport, Transport
from chorale.job.torch.work import WorkQueue

_MEETING_S = 120.0


def create_group(options: Any) -> ChoraleGroup:
    """Return a group as torch wants it by `options`, of torch's DistributedBackendOptions; all its ranks call this.

    Raises InvalidInput where ranks have different tables, and what else keeps a rank from taking part, on all of them.
    """
    rank, ranks = options.group_rank, options.group_size
    settings = JobSettings.from_environment()
    members = tuple(options.global_ranks_in_group) or tuple(range(ranks))
    batches = lambda: inner_group(options, settings.inner, "batches")  # noqa: E731
    programs = group_programs(options.store, members, rank, options.timeout, settings, batches)
    inner = inner_group(options, settings.inner)
    is_whole = not dist.is_initialized()
    current_report().ranks = ranks if is_whole else dist.get_world_size()
    at_end = report_at_end(settings.report) if members[rank] == 0 else _nothing
    return ChoraleGroup(rank, ranks, inner, programs, at_end if is_whole else _nothing)


def group_programs(
    store: Any,
    members: Sequence[int],
    rank: int,
    timeout: Any,
    settings: JobSettings,
    batches: Callable[[], InnerGroup] | None = None,
) -> GroupPrograms:
    """Return the programs for the group of `members`, ranks of the job; all of them call this, `rank` by position.

    store: of torch, for this group alone; timeout: for meeting, and for each run
    batches: makes a group for batched sends and receives; without it the engine is the only transport
    """
    exchange = StoreExchange(store, rank, len(members), timeout)
    try:
        table, digest = read_table(settings.table) if settings.table else (None, "")
        current_report().table = digest or None
        entries = GroupEntries.of(table, members) if table else None
        has_engine = _runs(entries) and (batches is None or settings.transport != "batched")
        engine = _engine(table, digest, members, rank, exchange, settings, timeout) if has_engine else None
        if engine is None:
            require_one_table(members, [texts[0] for texts in exchange([digest])])
    except Exception as error:
        exchange.give_up(f"{type(error).__name__}: {error}")
        raise
    transports: dict[str, Transport] = {}
    if table is not None and batches is not None and _runs(entries) and settings.transport != "engine":
        transports = _batched(batches, rank, table, settings.transport == "batched")
    if engine is not None:
        transports["cpu"] = EngineTransport(engine)
    name = f"chorale-{'-'.join(map(str, members[:8]))}"
    return GroupPrograms(entries, transports, settings.strict, timeout.total_seconds(), WorkQueue(name))


def _engine(
    table: Table | None,
    digest: str,
    members: Sequence[int],
    rank: int,
    exchange: StoreExchange,
    settings: JobSettings,
    timeout: Any,
) -> GroupEngine:
    assert table is not None
    limit_s = min(timeout.total_seconds(), _MEETING_S)
    return GroupEngine(table, digest, members, rank, exchange, settings.interface, limit_s)


def _batched(batches: Callable[[], InnerGroup], rank: int, table: Table, for_all: bool) -> dict[str, Transport]:
    """Return a transport for each device of the inner backends, but not for the processor's memory unless `for_all`."""
    if not for_all and not torch.accelerator.is_available():
        return {}
    inner = batches()
    transport = BatchedTransport(inner.group, rank, table.programs)
    return {device: transport for device in inner.backends if for_all or device != "cpu"}


def _runs(entries: GroupEntries | None) -> bool:
    return entries is not None and any(entry.program is not None for entry in entries.entries)


def _nothing() -> None:
    """The end of a group that writes no report."""
