"""The set of ports of an algorithm: a plain and a mirrored collective for each dimension to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.grid.exchange import Exchange, ExchangeRounds
from chorale.synth.grid.line import LineReduceScatter
from chorale.synth.grid.order import Turn, round_robin
from chorale.synth.grid.port import InSequence, SubCollective, TimeReversed
from chorale.synth.grid.scatter import GridReduceScatter, ReduceToRoot

LineT = TypeVar("LineT", LineReduceScatter, ExchangeRounds)

Order = Callable[[Sequence[int], int], list[Turn | None]]
"""From the number of steps of each dimension and the dimension to begin with to the order of all steps."""


def reduce_scatters(lines: Sequence[LineReduceScatter], order: Order, all_ports: bool) -> list[GridReduceScatter]:
    """Return the collectives that run side by side (Swing paper, section 4.1).

    With `all_ports` one begins in each dimension, and each has a mirror image, which goes the other way around; a
    grid whose sizes are all 2 has no other way around. Else there is the one that begins in the first dimension.
    """
    counts = [len(line.steps) for line in lines]
    return [GridReduceScatter(tuple(way), tuple(order(counts, first))) for first, way in _beginnings(lines, all_ports)]


def vector_exchanges(lines: Sequence[ExchangeRounds], all_ports: bool) -> list[Exchange]:
    """Return the exchanges of whole vectors that run side by side, like `scatter_ports`."""
    counts = [len(line.peers) for line in lines]
    return [Exchange(tuple(way), tuple(round_robin(counts, first))) for first, way in _beginnings(lines, all_ports)]


def _beginnings(lines: Sequence[LineT], all_ports: bool) -> Iterator[tuple[int, Sequence[LineT]]]:
    """Yield the dimension that each port begins in, and its lines: plain, then mirrored."""
    mirrored = [line.mirrored() for line in lines]
    for first in range(len(lines) if all_ports else 1):
        yield first, lines
        if all_ports and any(line.size > 2 for line in lines):
            yield first, mirrored


def subcollective_for(scatter: GridReduceScatter, collective: Collective, method: str) -> SubCollective:
    """Return the port that makes `collective` of a reduce_scatter.

    allgather is the reduce_scatter backwards, allreduce one after the other, reduce the tree of the root's shard with
    the whole vector, broadcast the same tree backwards. Raises InvalidInput for alltoall.
    """
    if collective.root is not None:
        tree = ReduceToRoot(scatter, collective.root)
        return tree if collective.reduces else TimeReversed(tree)
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return scatter
    if collective.name == CollectiveName.ALLGATHER:
        return TimeReversed(scatter)
    if collective.name == CollectiveName.ALLREDUCE:
        return InSequence(scatter, TimeReversed(scatter))
    known = "allgather, reduce_scatter, allreduce, broadcast or reduce"
    raise InvalidInput(f"{method} makes {known}", collective.name.value, f"choose {known}")


def require_allreduce(collective: Collective, method: str) -> None:
    """Raise InvalidInput unless `collective` is allreduce."""
    if collective.name != CollectiveName.ALLREDUCE:
        raise InvalidInput(f"{method} makes allreduce, broadcast or reduce", collective.name.value, "choose allreduce")
