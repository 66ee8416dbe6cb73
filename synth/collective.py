"""Collective operations: at which rank each shard starts and must end, and whether contributions are added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from chorale.synth.errors import InvalidInput, name_among

if TYPE_CHECKING:
    from chorale.synth.custom_collective import CustomCollective


class CollectiveName(StrEnum):
    """Names of the collectives, as used in commands and files."""

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
        """Whether the operation adds up contributions from several ranks."""
        return self in _REDUCING

    @property
    def is_uneven(self) -> bool:
        """Whether shards may have different sizes, as in MPI_Alltoallv."""
        return self in UNEVEN


_REDUCING = (
    CollectiveName.REDUCE_SCATTER,
    CollectiveName.ALLREDUCE,
    CollectiveName.REDUCE,
    CollectiveName.REDUCE_SCATTERV,
    CollectiveName.COMBINE,
)
ROUTED = (CollectiveName.DISPATCH, CollectiveName.COMBINE)
"""Collectives in which each shard has its own set of ranks, such as tokens that go to several experts."""
UNEVEN = (CollectiveName.ALLTOALLV, CollectiveName.ALLGATHERV, CollectiveName.REDUCE_SCATTERV, *ROUTED)
"""Collectives in which shards may have different sizes, as in MPI."""
STANDARD = tuple(name for name in CollectiveName if name not in (*UNEVEN, CollectiveName.CUSTOM))
"""Collectives that are fully defined by their name (and a root)."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ranks 0 to N - 1. `root` is only set for broadcast and reduce.

    The vector of M bytes is cut into shards of M / N bytes (allgather, reduce_scatter, allreduce: shard s
    belongs to rank s), each cut into equal chunks.

    allgather: shard s starts at rank s and must end at every rank.
    reduce_scatter: every rank holds a contribution to shard s; the sum must end at rank s.
    allreduce: every rank holds a contribution to every shard; every sum must end at every rank.
    alltoall: the vector of each rank s is cut into N shards; shard s * N + t starts at rank s and must end at t.
    alltoallv, allgatherv, reduce_scatterv: like the collectives above, but shard i has `sizes[i]` chunks. M is the
    total size of all shards; for alltoallv, which has one shard per pair of ranks, M is the total size of the shards
    that a rank sends, averaged over all ranks.
    dispatch: shard i has `sizes[i]` chunks, starts at rank `members[i][0]` and must end at the ranks `members[i][1:]`.
    The first rank may also be a target. M is defined as for alltoallv.
    combine: the reverse of dispatch. The ranks `members[i][1:]` hold contributions to shard i, and the sum must end at
    rank `members[i][0]`.
    custom: defined by `custom`. Only for programs that do not come from a schedule.
    """

    name: CollectiveName
    root: int | None = None
    custom: CustomCollective | None = None
    sizes: tuple[int, ...] | None = None
    members: tuple[tuple[int, ...], ...] | None = None

    @property
    def reduces(self) -> bool:
        """Whether the operation adds up contributions from several ranks."""
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
    return Collective(CollectiveName.CUSTOM, custom=custom)


def uneven_collective(
    name: CollectiveName, sizes: Iterable[int], members: Iterable[Iterable[int]] | None = None
) -> Collective:
    """Return the collective `name` (one of `UNEVEN`) with `sizes[i]` chunks in shard i.

    `members` is required for the collectives in `ROUTED` and not allowed for others. Raises InvalidInput otherwise, or
    if there are no chunks.

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
    fits = all(  # each shard has a source and distinct targets, at least one of which is another rank
        ranks and len(set(ranks[1:])) == len(ranks) - 1 and not set(ranks[1:]) <= {ranks[0]} for ranks in groups or ()
    )
    if (groups is None) == (name in ROUTED) or len(counts if groups is None else groups) != len(counts) or not fits:
        rule = f"each shard of {' and '.join(ROUTED)}, and of no other collective, must have a source and targets"
        raise InvalidInput(rule, f"{name.value} with {len(groups or ())} groups", "give the ranks of each shard")
    return Collective(name, sizes=counts, members=groups)


COLLECTIVE_ALIASES = {"bcast": "broadcast", "a2a": "alltoall"}
"""Names that other libraries use. Spellings such as `all-reduce` and `AllReduce` need no entry."""


ALLGATHER = Collective(CollectiveName.ALLGATHER)
REDUCE_SCATTER = Collective(CollectiveName.REDUCE_SCATTER)
ALLREDUCE = Collective(CollectiveName.ALLREDUCE)
ALLTOALL = Collective(CollectiveName.ALLTOALL)


def require_collective(maker: str, collective: Collective, supported: Iterable[CollectiveName]) -> None:
    """Raise InvalidInput unless `collective` is in `supported`.

    maker: name of the method or other component that lacks support, for the message
    """
    if collective.name in (names := tuple(supported)):
        return
    *others, last = (name.value for name in names)
    choice = f"{', '.join(others)} or {last}" if others else last
    raise InvalidInput(f"{maker} makes {choice}, not {{}}", collective.name.value, f"choose {choice}")


def parse_collective(text: str, root: int = 0) -> Collective:
    """Return the collective called `text`. `root` is ignored if the collective has no root.

    >>> parse_collective("all-reduce") == ALLREDUCE
    True
    >>> str(parse_collective("broadcast", root=2).name), parse_collective("broadcast", root=2).root
    ('broadcast', 2)
    """
    name = CollectiveName(name_among("collective", text, STANDARD, COLLECTIVE_ALIASES))
    collective = Collective(name)
    return Collective(name, root) if collective.is_rooted else collective
