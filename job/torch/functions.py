"""Extends torch.distributed functions that only accept certain backends, so that they accept this one as well."""

from functools import cache, wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from chorale.job.torch.inner import DelegatingGroup


@cache
def extend_torch() -> None:
    """Make torch's `split_group` and `monitored_barrier` work for groups of this backend; others work as before."""
    for function in (_split_group, _monitored_barrier):
        name = function.__name__.removeprefix("_")
        given = getattr(distributed_c10d, name)
        for module in (dist, distributed_c10d):
            setattr(module, name, _extended(given, function))


def _extended(given: Any, function: Any) -> Any:
    @wraps(given)
    def call(group: Any = None, *arguments: Any, **more: Any) -> Any:
        group = more.pop("parent_pg", more.pop("group", group)) or dist.group.WORLD
        chosen = function if isinstance(group, DelegatingGroup) else given
        return chosen(group, *arguments, **more)

    return call


def _split_group(
    parent: Any,
    split_ranks: list[list[int]] | None = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **_: Any,
) -> Any:
    """Create the groups in `split_ranks` (positions in `parent`, no rank in two lists). Return this rank's group, or
    None if it is in no list.
    """
    positions = [rank for ranks in split_ranks or () for rank in ranks]
    members = dist.get_process_group_ranks(parent)
    if not positions or len(set(positions)) < len(positions) or not set(positions) <= set(range(len(members))):
        rule = f"split_ranks must be lists of ranks below {len(members)}, each rank in one of them at most"
        raise ValueError(f"{rule}; got {split_ranks}")
    chosen = [ranks for ranks in split_ranks or () if parent.getRank() in ranks]
    if not chosen:
        return None
    ranks = [members[rank] for rank in chosen[0]]
    more = {"group_desc": group_desc, "use_local_synchronization": True}
    return dist.new_group(ranks, timeout, "chorale", pg_options, **more)


def _monitored_barrier(group: Any, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
    timeout = timeout or distributed_c10d._get_default_timeout("gloo")
    return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)
