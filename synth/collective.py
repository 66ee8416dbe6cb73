"""Collective operations: which shard starts where and must end where, reduced or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from chorale.synth.errors import InvalidInput
from chorale.synth.names import name_among

if TYPE_CHECKING:
    from chorale.synth.custom_collective import CustomCollective


class CollectiveName(StrEnum):
    """The collectives under the names that commands and files use."""

    ALLGATHER = "allgather"
    REDUCE_SCATTER = "reduce_scatter"
    ALLREDUCE = "allreduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALLTOALL = "alltoall"
    ALLTOALLV = "alltoallv"
    ALLGATHERV = "allgatherv"
    REDUCE_SCATTERV = "reduce_scatterv"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    CUSTOM = "custom"

    @property
    def reduces(self) -> bool:
        """Whether the operation adds contributions of several ranks."""
        return self in _REDUCING

    @property
    def is_uneven(self) -> bool:
        """Whether its shards have different sizes."""
        return self in UNEVEN


_REDUCING = (
    CollectiveName.REDUCE_SCATTER,
    CollectiveName.ALLREDUCE,
    CollectiveName.REDUCE,
    CollectiveName.REDUCE_SCATTERV,
    CollectiveName.COMBINE,
)
ROUTED = (CollectiveName.DISPATCH, CollectiveName.COMBINE)
"""The collectives in which each shard has its own ranks: tokens for several experts."""
UNEVEN = (CollectiveName.ALLTOALLV, CollectiveName.ALLGATHERV, CollectiveName.REDUCE_SCATTERV, *ROUTED)
"""The collectives whose shards may have different sizes, as in MPI."""
STANDARD = tuple(name for name in CollectiveName if name not in (*UNEVEN, CollectiveName.CUSTOM))
"""The collectives whose name says what they do."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ranks 0 to N - 1; `root` only for broadcast and reduce.

    The vector of M bytes is cut into shards of M / N bytes (allgather, reduce_scatter, allreduce: shard s
    belongs to rank s), each cut into equal chunks.

    allgather: shard s starts at rank s and must end at every rank.
    reduce_scatter: every rank holds a contribution to shard s; the sum must end at rank s.
    allreduce: every rank holds a contribution to every shard; every sum must end at every rank.
    alltoall: the vector of each rank s is cut into N shards; shard s * N + t starts at rank s and must end at t.
    alltoallv, allgatherv, reduce_scatterv: the same with `sizes[i]` chunks in shard i. The vector of M bytes is all
    shards together; for alltoallv, which has a shard for each pair of ranks, the average of the shards of a rank.
    dispatch: shard i has `sizes[i]` chunks, starts at rank `members[i][0]` and must end at the ranks `members[i][1:]`;
    combine: these ranks hold contributions, and the sum must end at `members[i][0]`. The first rank may occur again as
    a target. The vector is counted as for alltoallv.
    custom: as `custom` defines; only for programs, which need no schedule.
    """

    name: CollectiveName
    root: int | None = None
    custom: CustomCollective | None = None
    sizes: tuple[int, ...] | None = None
    members: tuple[tuple[int, ...], ...] | None = None

    @property
    def reduces(self) -> bool:
        """Whether the operation adds contributions of several ranks."""
        return self.name.reduces if self.custom is None else self.custom.reduces

    @property
    def is_rooted(self) -> bool:
        return self.name in (CollectiveName.BROADCAST, CollectiveName.REDUCE)

    @property
    def is_alltoall(self) -> bool:
        """Whether every rank sends different data to every other rank."""
        return self.name in (CollectiveName.ALLTOALL, CollectiveName.ALLTOALLV)

    def __str__(self) -> str:
        if self.custom is not None:
            return f"{self.name.value} {self.custom.name}"
        return self.name.value if self.root is None else f"{self.name.value}(root={self.root})"


def custom_collective(custom: CustomCollective) -> Collective:
    """Return the collective that `custom` defines."""
    return Collective(CollectiveName.CUSTOM, custom=custom)


def uneven_collective(
    name: CollectiveName, sizes: Iterable[int], members: Iterable[Iterable[int]] | None = None
) -> Collective:
    """Return the collective `name`, one of `UNEVEN`, whose shards have `sizes` chunks.

    Raises InvalidInput without chunks, and unless `members` are given for `ROUTED`, and only for these.

    >>> str(uneven_collective(CollectiveName.ALLGATHERV, (3, 0, 1)))
    'allgatherv'
    """
    counts = tuple(int(size) for size in sizes)
    if name not in UNEVEN:
        raise InvalidInput("sizes are for " + ", ".join(UNEVEN), name.value, "choose one of these")
    if min(counts, default=0) < 0 or not any(counts):
        raise InvalidInput(
            "sizes of shards must not be negative, nor all 0", counts[:8], "enter a size above 0 for some shard"
        )
    groups = None if members is None else tuple(tuple(int(rank) for rank in ranks) for ranks in members)
    if (groups is None) == (name in ROUTED) or (groups is not None and not _fit(groups, len(counts))):
        rule = f"each shard of {' and '.join(ROUTED)}, and of no other collective, must have a source and targets"
        raise InvalidInput(rule, f"{name.value} with {len(groups or ())} groups", "give the ranks of each shard")
    return Collective(name, sizes=counts, members=groups)


def _fit(members: Sequence[Sequence[int]], shards: int) -> bool:
    """Return whether each of `shards` has a source and different targets, one of them another rank."""
    parts = (ranks for ranks in members if len(set(ranks[1:])) < len(ranks) - 1 or set(ranks[1:]) <= {ranks[0]})
    return len(members) == shards and all(members) and next(parts, None) is None


COLLECTIVE_ALIASES = {"bcast": "broadcast", "a2a": "alltoall"}
"""Names of other libraries; spellings such as `all-reduce` and `AllReduce` need no entry."""


ALLGATHER = Collective(CollectiveName.ALLGATHER)
REDUCE_SCATTER = Collective(CollectiveName.REDUCE_SCATTER)
ALLREDUCE = Collective(CollectiveName.ALLREDUCE)
ALLTOALL = Collective(CollectiveName.ALLTOALL)


def require_collective(maker: str, collective: Collective, supported: Iterable[CollectiveName]) -> None:
    """Raise InvalidInput unless `collective` is `supported` by `maker`, for example a method."""
    if collective.name in (names := tuple(supported)):
        return
    *others, last = (name.value for name in names)
    choice = f"{', '.join(others)} or {last}" if others else last
    raise InvalidInput(f"{maker} makes {choice}, not {{}}", collective.name.value, f"choose {choice}")


def parse_collective(text: str, root: int = 0) -> Collective:
    """Return the collective called `text`; `root` is used where the collective has one.

    >>> parse_collective("all-reduce") == ALLREDUCE
    True
    >>> str(parse_collective("broadcast", root=2).name), parse_collective("broadcast", root=2).root
    ('broadcast', 2)
    """
    name = CollectiveName(name_among("collective", text, STANDARD, COLLECTIVE_ALIASES))
    collective = Collective(name)
    return Collective(name, root) if collective.is_rooted else collective


def stored_collective(
    text: str, root: int, sizes: Iterable[int], members: Iterable[Iterable[int]] | None = None
) -> Collective:
    """Return the collective called `text` in a file, with the sizes and members of its shards if it is uneven."""
    if text in UNEVEN:
        return uneven_collective(CollectiveName(text), map(int, sizes), members)
    return parse_collective(text, root)
