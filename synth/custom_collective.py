"""User-defined collectives: a rule for each output chunk says which input chunks are added up in it.

The input and output of each rank consist of chunks of equal size. Output chunks without a rule may contain anything.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from chorale.synth.errors import InvalidInput

Cell = tuple[int, int]
"""(rank, chunk index in one of its buffers)."""

MAX_RANKS = 2048
MAX_CHUNKS = 2**20  # per buffer
MAX_CONTRIBUTIONS = 2**20  # total over all outputs


@dataclass(frozen=True, slots=True)
class RequiredChunk:
    """A rule: output chunk `chunk` of `rank` must be the sum of the input chunks `sources`, which are sorted."""

    rank: int
    chunk: int
    sources: tuple[Cell, ...]


@dataclass(frozen=True)
class CustomCollective:
    """A collective defined by the required content of its outputs.

    input_chunks, output_chunks: chunks in each rank's input and output buffer; a vector has the larger number of chunks
    required: rules, sorted by rank and chunk, at most one per output chunk; a sum has at most `ranks` terms
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
        """Families of input chunks that are connected by sums. O(contributions + ranks * input chunks)."""
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
    """Families of input chunks. Two chunks are in the same family if sums connect them, possibly via other chunks.

    family:  for each (rank, input chunk), the number of its family: rank * chunks + chunk of the first member
    member:  for each (rank, input chunk), its index in the family
    members: for each family, its chunks in order
    """

    family: Mapping[Cell, int]
    member: Mapping[Cell, int]
    members: Mapping[int, tuple[Cell, ...]]

    @property
    def largest(self) -> int:
        """Number of members in the largest family."""
        return max(map(len, self.members.values()))
