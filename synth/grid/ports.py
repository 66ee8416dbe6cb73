"""The set of ports of an algorithm: a plain and a mirrored collective for each dimension to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from synth.collective import Collective, CollectiveName
from synth.errors import InvalidInput
from synth.grid.exchange import Exchange, Rounds
from synth.grid.line import Line
from synth.grid.order import Turn, in_turns
from synth.grid.port import Backwards, InSequence, Port
from synth.grid.scatter import Scatter, Tree

Way = TypeVar("Way", Line, Rounds)

Order = Callable[[Sequence[int], int], list[Turn | None]]
"""From the number of steps of each dimension and the dimension to begin with to the order of all steps."""


def scatter_ports(lines: Sequence[Line], order: Order, all_ports: bool) -> list[Scatter]:
    """Return the collectives that run side by side (Swing paper, section 4.1).

    With `all_ports` one begins in each dimension, and each has a mirror image, which goes the other way around; a
    grid whose sizes are all 2 has no other way around. Else there is the one that begins in the first dimension.
    """
    counts = [len(line.steps) for line in lines]
    return [Scatter(tuple(way), tuple(order(counts, first))) for first, way in _beginnings(lines, all_ports)]


def exchange_ports(lines: Sequence[Rounds], all_ports: bool) -> list[Exchange]:
    """Return the exchanges of whole vectors that run side by side, like `scatter_ports`."""
    counts = [len(line.peers) for line in lines]
    return [Exchange(tuple(way), tuple(in_turns(counts, first))) for first, way in _beginnings(lines, all_ports)]


def _beginnings(lines: Sequence[Way], all_ports: bool) -> Iterator[tuple[int, Sequence[Way]]]:
    """Yield the dimension that each port begins in, and its lines: plain, then mirrored."""
    mirrored = [line.mirrored() for line in lines]
    for first in range(len(lines) if all_ports else 1):
        yield first, lines
        if all_ports and any(line.size > 2 for line in lines):
            yield first, mirrored


def collective_port(scatter: Scatter, collective: Collective, method: str) -> Port:
    """Return the port that makes `collective` of a reduce_scatter.

    allgather is the reduce_scatter backwards, allreduce one after the other, reduce the tree of the root's shard with
    the whole vector, broadcast the same tree backwards. Raises InvalidInput for alltoall.
    """
    if collective.root is not None:
        tree = Tree(scatter, collective.root)
        return tree if collective.reduces else Backwards(tree)
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return scatter
    if collective.name == CollectiveName.ALLGATHER:
        return Backwards(scatter)
    if collective.name == CollectiveName.ALLREDUCE:
        return InSequence(scatter, Backwards(scatter))
    known = "allgather, reduce_scatter, allreduce, broadcast or reduce"
    raise InvalidInput(f"{method} makes {known}", collective.name.value, f"choose {known}")


def require_allreduce(collective: Collective, method: str) -> None:
    """Raise InvalidInput unless `collective` is allreduce."""
    if collective.name != CollectiveName.ALLREDUCE:
        raise InvalidInput(f"{method} makes allreduce, broadcast or reduce", collective.name.value, "choose allreduce")
