"""The BFB loads of generalized Kautz graphs from their arithmetic, in time that grows about as their number of nodes.

Walks of t links from v, each from x to -d x - a with a = 1, ..., d modulo N, end in d^t consecutive nodes, each
reached once: first(t, v) to first(t, v) + d^t - 1, where first(t, v) = (-d)^t v, less d^t if t is odd. So the set of
nodes whose walks of t links reach u changes by few nodes from u to u + 1. One pass over all u, in which those nodes
enter and leave, keeps count of who is heard when and over which links.

Source of the graphs: Imase, Itoh, "A design for directed graphs with minimum diameter" (1983).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix


class _KautzWalks(NamedTuple):
    """Walks by length t, up to T.

    order:  int32[T + 1, N]: nodes v by the first node that their walks of t links reach
    starts: int64[T + 1, N + 1]: where those with each such first node begin in `order`
    width: int64[T + 1], d^t;  factor: int64[T + 1], (-d)^t mod N;  offset: int64[T + 1], first(t, 0) mod N
    solution: int64[d]: for b = 0, ..., d - 1 the least w with -d w = b modulo N, if any
    common: the greatest common divisor of d and N
    """

    order: Matrix[np.int32]
    starts: Matrix[np.int64]
    width: NDArray[np.int64]
    factor: NDArray[np.int64]
    offset: NDArray[np.int64]
    solution: NDArray[np.int64]
    common: int


class _HeardWalks(NamedTuple):
    """What walks bring to the present node u.

    lengths: int64 per v: bit t is set if a walk of t links from v ends in u
    number:  int8[T + 1, N]: the link on which that walk arrives, for lengths below T, of which one ends here at most
    lasts:   int64 per v: the set of links on which its walks of T links arrive
    counts:  int64[T + 1, d]: nodes first heard in step t over each link
    in_last: int64[2^d]: those first heard in step T over each set of links
    """

    lengths: NDArray[np.int64]
    number: Matrix[np.int8]
    lasts: NDArray[np.int64]
    counts: Matrix[np.int64]
    in_last: NDArray[np.int64]


@inlined
def _sort_by_first(walks: _KautzWalks, step: int) -> None:
    nodes = walks.order.shape[1]
    starts, order = walks.starts[step], walks.order[step]
    for node in range(nodes):
        starts[(walks.factor[step] * node + walks.offset[step]) % nodes + 1] += 1
    for node in range(nodes):
        starts[node + 1] += starts[node]
    free = starts.copy()
    for node in range(nodes):
        goal = (walks.factor[step] * node + walks.offset[step]) % nodes
        order[free[goal]] = node
        free[goal] += 1


@inlined
def _link_number(walks: _KautzWalks, step: int, node: int, begin: int) -> int:
    """Return the number of the link on which a walk of `step` links from `node` arrives, 0 to d - 1.

    begin: u when the walk first ended in u, not reduced modulo N. The number stays as u grows, until the walk ends
    there no more: a link into u from w with -d w = u + a has the number of u + a modulo d, and of w among the nodes
    with that property, counted from one that falls by 1 as u + a grows by d.
    """
    nodes, degree, common = walks.order.shape[1], len(walks.solution), walks.common
    residue = begin % degree
    counted = walks.solution[residue] - (begin - residue) // degree - 1
    tail = walks.factor[step - 1] * node + walks.offset[step - 1] + walks.width[step - 1] - 1
    return int(residue // common * common + (tail - counted) % nodes // (nodes // common))


@inlined
def _count(heard: _HeardWalks, node: int, change: int) -> None:
    """Add `change` to how many nodes are first heard as `node` is."""
    last = len(heard.counts) - 1
    for step in range(last):
        if (heard.lengths[node] >> step) & 1:
            heard.counts[step, heard.number[step, node]] += change
            return
    heard.in_last[heard.lasts[node]] += change


@inlined
def _change(walks: _KautzWalks, heard: _HeardWalks, step: int, node: int, begin: int) -> None:
    """Let a walk of `step` links from `node` that first ended in `begin` end in u from now on, or no more."""
    last = len(heard.counts) - 1
    number = 0
    if step > 0:
        number = _link_number(walks, step, node, begin)
    if step < last:
        heard.lengths[node] ^= 1 << step
        heard.number[step, node] = number
    else:
        heard.lasts[node] ^= 1 << number


@inlined
def _move(walks: _KautzWalks, heard: _HeardWalks, step: int, begin: int) -> None:
    """Change all walks of `step` links that first ended in `begin`."""
    place = begin % walks.order.shape[1]
    for position in range(walks.starts[step, place], walks.starts[step, place + 1]):
        node = walks.order[step, position]
        _count(heard, node, -1)
        _change(walks, heard, step, node, begin)
        _count(heard, node, 1)


@inlined
def _raise_loads(
    heard: _HeardWalks, sums: NDArray[np.int64], top: NDArray[np.int64], bottom: NDArray[np.int64]
) -> None:
    """Raise top / bottom of every step to the load of the present node."""
    last, degree = len(heard.counts) - 1, heard.counts.shape[1]
    for step in range(1, last):
        for link in range(degree):
            top[step] = max(top[step], heard.counts[step, link])
    sums[:] = heard.in_last
    for link in range(degree):
        for chosen in range(len(sums)):
            if (chosen >> link) & 1:
                sums[chosen] += sums[chosen ^ (1 << link)]
    for chosen in range(1, len(sums)):
        size = 0
        for link in range(degree):
            size += (chosen >> link) & 1
        if sums[chosen] * bottom[last] > top[last] * size:
            top[last], bottom[last] = sums[chosen], size


@inlined
def _walks(degree: int, nodes: int, common: int) -> _KautzWalks:
    last, reach = 0, 1
    while reach < nodes:
        reach *= degree
        last += 1
    walks = _KautzWalks(
        np.empty((last + 1, nodes), dtype=np.int32), np.zeros((last + 1, nodes + 1), dtype=np.int64),
        np.ones(last + 1, dtype=np.int64), np.ones(last + 1, dtype=np.int64), np.zeros(last + 1, dtype=np.int64),
        np.full(degree, -1, dtype=np.int64), common,
    )  # fmt: skip
    for tail in range(nodes):
        residue = (-degree * tail) % nodes
        if residue < degree and walks.solution[residue] < 0:
            walks.solution[residue] = tail
    for step in range(last + 1):
        if step > 0:
            walks.width[step] = walks.width[step - 1] * degree
            walks.factor[step] = (walks.factor[step - 1] * -degree) % nodes
            walks.offset[step] = (-walks.width[step] * (step & 1)) % nodes
        _sort_by_first(walks, step)
    return walks


@inlined
def _heard_at_0(walks: _KautzWalks) -> _HeardWalks:
    nodes, degree, lengths = walks.order.shape[1], len(walks.solution), len(walks.width)
    heard = _HeardWalks(
        np.zeros(nodes, dtype=np.int64), np.zeros((lengths, nodes), dtype=np.int8), np.zeros(nodes, dtype=np.int64),
        np.zeros((lengths, degree), dtype=np.int64), np.zeros(2**degree, dtype=np.int64),
    )  # fmt: skip
    for step in range(lengths):
        for begin in range(1 - walks.width[step], 1):
            place = begin % nodes
            for position in range(walks.starts[step, place], walks.starts[step, place + 1]):
                _change(walks, heard, step, walks.order[step, position], begin)
    for node in range(nodes):
        _count(heard, node, 1)
    return heard


@compiled
def kautz_loads(degree: int, nodes: int, common: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the BFB load of every step of genkautz:degree,nodes as p / q, in shards per link of capacity 1.

    common: the greatest common divisor of degree and nodes; 2 <= degree < nodes. Equal to `loads_of_low_diameter` of
    the built network. Below the largest number of steps T every node arrives over one link; in step T over up to
    degree. O(nodes * (T^2 + degree * 2^degree)) time, O(nodes * T) memory.
    """
    walks = _walks(degree, nodes, common)
    heard = _heard_at_0(walks)
    last = len(walks.width) - 1
    top, bottom = np.zeros(last + 1, dtype=np.int64), np.ones(last + 1, dtype=np.int64)
    sums = np.zeros(2**degree, dtype=np.int64)
    _raise_loads(heard, sums, top, bottom)
    for node in range(1, nodes):
        for step in range(last + 1):
            _move(walks, heard, step, node - walks.width[step])
            _move(walks, heard, step, node)
        _raise_loads(heard, sums, top, bottom)
    steps = last
    while top[steps] == 0:
        steps -= 1
    return top[1 : steps + 1], bottom[1 : steps + 1]
