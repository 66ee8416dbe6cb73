"""Defines collective operations: where each shard starts and must end, and whether contributions are added.

A custom collective consists of rules. Each rule names an output chunk and the input chunks whose sum it must contain.
The input and output of each rank consist of chunks of equal size. Output chunks without a rule may contain anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any

from chorale.synth.errors import InvalidInput, name_among

Cell = tuple[int, int]
"""(rank, index of a chunk in the input or output buffer of this rank)."""

MAX_RANKS = 2048  # this and the next two limits are for custom collectives
MAX_CHUNKS = 2**20  # per buffer
MAX_CONTRIBUTIONS = 2**20  # total over all outputs


@dataclass(frozen=True, slots=True)
class RequiredChunk:
    """A rule: output chunk `chunk` of `rank` must be the sum of the input chunks in the sorted tuple `sources`."""

    rank: int
    chunk: int
    sources: tuple[Cell, ...]


@dataclass(frozen=True)
class CustomCollective:
    """A collective defined by the required content of its outputs.

    input_chunks, output_chunks: number of chunks in each rank's input and output buffer
    required: rules for output chunks, sorted by rank and chunk; a rule has at most `ranks` sources
    """

    name: str
    ranks: int
    input_chunks: int
    output_chunks: int
    required: tuple[RequiredChunk, ...]

    def __post_init__(self) -> None:
        for what, value, largest in (
            ("ranks", self.ranks, MAX_RANKS),
            ("input_chunks", self.input_chunks, MAX_CHUNKS),
            ("output_chunks", self.output_chunks, MAX_CHUNKS),
        ):
            if not 1 <= value <= largest:
                raise InvalidInput(f"{what} of a collective must be 1 to {largest}", value, "change it")
        if not self.required:
            raise InvalidInput("the collective requires no result", "", "list the required chunks under `outputs`")
        if sum(len(each.sources) for each in self.required) > MAX_CONTRIBUTIONS:
            raise InvalidInput(f"outputs must have at most {MAX_CONTRIBUTIONS} sources", "more", "use fewer chunks")
        for each in self.required:
            self._check(each)
        cells = [(each.rank, each.chunk) for each in self.required]
        for first, second in pairwise(cells):
            if first >= second:
                rule = "outputs must be named once each, in order"
                raise InvalidInput(rule, f"chunk {second[1]} of rank {second[0]}", "name it once")

    def _check(self, each: RequiredChunk) -> None:
        place = f"output chunk {each.chunk} of rank {each.rank}"
        if not (0 <= each.rank < self.ranks and 0 <= each.chunk < self.output_chunks):
            rule = f"outputs must be of {self.ranks} ranks and {self.output_chunks} chunks"
            raise InvalidInput(rule, place, "name one of these")
        if not each.sources or len(each.sources) > self.ranks:
            rule = f"an output must be the sum of 1 to {self.ranks} chunks, as many as there are ranks"
            raise InvalidInput(rule, f"{len(each.sources)} for {place}", "name its sources")
        if len(set(each.sources)) < len(each.sources):
            raise InvalidInput("a sum contains a chunk twice: {}", place, "name each source once")
        for rank, chunk in each.sources:
            if not (0 <= rank < self.ranks and 0 <= chunk < self.input_chunks):
                rule = f"sources must be of {self.ranks} ranks and {self.input_chunks} input chunks"
                raise InvalidInput(rule, f"chunk {chunk} of rank {rank} for {place}", "name one of these")

    @property
    def chunks(self) -> int:
        """Number of chunks in the vector: the larger of the input and output chunk counts."""
        return max(self.input_chunks, self.output_chunks)

    @property
    def reduces(self) -> bool:
        """Whether any output chunk is the sum of several input chunks."""
        return any(len(each.sources) > 1 for each in self.required)

    @cached_property
    def labels(self) -> Labels:
        """The input chunks, grouped into families (see `Labels`). O(contributions + ranks * input chunks)."""
        parent: dict[Cell, Cell] = {}

        def root(cell: Cell) -> Cell:
            while (above := parent.setdefault(cell, cell)) != cell:
                parent[cell] = parent[above]
                cell = parent[cell]
            return cell

        for each in self.required:
            first = root(each.sources[0])
            for other in each.sources[1:]:
                low, high = sorted((first, root(other)))
                parent[high] = first = low
        groups: dict[Cell, list[Cell]] = {}
        for rank in range(self.ranks):
            for chunk in range(self.input_chunks):
                groups.setdefault(root((rank, chunk)), []).append((rank, chunk))
        members = {rank * self.chunks + chunk: tuple(cells) for (rank, chunk), cells in groups.items()}
        family = {cell: number for number, cells in members.items() for cell in cells}
        member = {cell: index for cells in members.values() for index, cell in enumerate(cells)}
        return Labels(family, member, members)

    def required_of(self, rank: int) -> tuple[RequiredChunk, ...]:
        """Return the rules for the output of `rank`."""
        first, end = (side(self.required, rank, key=lambda each: each.rank) for side in (bisect_left, bisect_right))
        return self.required[first:end]

    def to_json(self) -> dict[str, Any]:
        required = [[each.rank, each.chunk, [list(cell) for cell in each.sources]] for each in self.required]
        counts = [self.ranks, self.input_chunks, self.output_chunks]
        return {"name": self.name, "counts": counts, "required": required}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> CustomCollective:
        required = (
            RequiredChunk(rank, chunk, tuple((source[0], source[1]) for source in sources))
            for rank, chunk, sources in value["required"]
        )
        ranks, input_chunks, output_chunks = value["counts"]
        return CustomCollective(value["name"], ranks, input_chunks, output_chunks, tuple(required))

    def in_parts(self, parts: int) -> CustomCollective:
        """Return the same collective with each chunk cut into `parts` smaller chunks."""
        if parts == 1:
            return self
        required = (
            RequiredChunk(
                each.rank,
                each.chunk * parts + part,
                tuple((rank, chunk * parts + part) for rank, chunk in each.sources),
            )
            for each in self.required
            for part in range(parts)
        )
        return replace(
            self,
            input_chunks=self.input_chunks * parts,
            output_chunks=self.output_chunks * parts,
            required=tuple(required),
        )


@dataclass(frozen=True, slots=True)
class Labels:
    """Groups input chunks into families. Chunks that occur in the same sum, directly or via other sums, share a family.

    family:  maps each (rank, input chunk) to the number of its family, which is r * `CustomCollective.chunks` + c if
             (r, c) is the family's first member
    member:  maps each (rank, input chunk) to its index in its family
    members: maps each family's number to its input chunks in ascending order
    """

    family: Mapping[Cell, int]
    member: Mapping[Cell, int]
    members: Mapping[int, tuple[Cell, ...]]

    @property
    def largest(self) -> int:
        """Number of members in the largest family."""
        return max(map(len, self.members.values()))


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
"""Collectives in which each shard has its own source and targets: in dispatch, each token goes to several experts."""
UNEVEN = (CollectiveName.ALLTOALLV, CollectiveName.ALLGATHERV, CollectiveName.REDUCE_SCATTERV, *ROUTED)
"""Collectives in which shards may have different sizes, as in MPI_Alltoallv."""
STANDARD = tuple(name for name in CollectiveName if name not in (*UNEVEN, CollectiveName.CUSTOM))
"""Collectives that are fully defined by their name and, for broadcast and reduce, the root."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over ranks 0 to N - 1. `root` is only set for broadcast and reduce.

    The vector of M bytes is cut into N shards of M / N bytes, and each shard into equal chunks. In allgather,
    reduce_scatter and allreduce, shard s belongs to rank s.

    broadcast: every shard starts at rank `root` and must end at every rank.
    reduce: every rank holds a contribution to every shard; every sum must end at rank `root`.
    allgather: shard s starts at rank s and must end at every rank.
    reduce_scatter: every rank holds a contribution to shard s; the sum must end at rank s.
    allreduce: every rank holds a contribution to every shard; every sum must end at every rank.
    alltoall: the vector of each rank s is cut into N shards; shard s * N + t starts at rank s and must end at t.
    alltoallv, allgatherv, reduce_scatterv: like the versions without v, but shard i has `sizes[i]` chunks. M is the
    total size of all shards; for alltoallv, which has one shard per pair of ranks, M is the total size of the shards
    that a rank sends, averaged over all ranks.
    dispatch: shard i has `sizes[i]` chunks, starts at rank `members[i][0]` and must end at the ranks `members[i][1:]`.
    The first rank may also be a target. M is defined as for alltoallv.
    combine: the reverse of dispatch. The ranks `members[i][1:]` hold contributions to shard i, and the sum must end at
    rank `members[i][0]`.
    custom: defined by the field `custom`; only for programs that do not come from a schedule.
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
    """Return the collective `name`, which must be in `UNEVEN`, with `sizes[i]` chunks in shard i.

    `members` is required for the collectives in `ROUTED` and not allowed for others. Raises InvalidInput if an argument
    is invalid, for example if all sizes are 0.

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
"""Maps names from other libraries to Chorale's. Spellings such as `all-reduce` and `AllReduce` need no entry."""


ALLGATHER = Collective(CollectiveName.ALLGATHER)
REDUCE_SCATTER = Collective(CollectiveName.REDUCE_SCATTER)
ALLREDUCE = Collective(CollectiveName.ALLREDUCE)
ALLTOALL = Collective(CollectiveName.ALLTOALL)


def require_collective(maker: str, collective: Collective, supported: Iterable[CollectiveName]) -> None:
    """Raise InvalidInput unless `collective` is in `supported`.

    maker: name of the component, such as a method, that only supports these collectives; used in the error message
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
