"""Makes schedules on grids of ranks with the algorithms Swing, bucket, recursive doubling, and halving and doubling.

Swing: a rank's peers alternate between its two sides, so that they stay close on a torus. Source: De Sensi et al.,
    "Swing: Short-cutting Rings for Higher Bandwidth Allreduce", 2024 (arXiv 2401.09356), "the Swing paper" below.

Bucket: rings along one dimension after another. On each line, every position passes partial sums on to the next one.
Source: Sack and Gropp, "Collective algorithms for multiported torus networks", 2015; Swing paper, sections 2.3.4, 5.2.

Recursive doubling, and recursive halving and doubling (Rabenseifner): dimensions are used in an order that suits tori.
Peers are at distance 1, 2, 4, …, and each step of recursive halving moves half as many blocks as the previous step.
Sources: Thakur, Rabenseifner, Gropp, 2005; Sack and Gropp, 2015; Swing paper, sections 2.3.2, 2.3.3 and 4.1 (mirrored).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import (
    ALLGATHER,
    ALLREDUCE,
    REDUCE_SCATTER,
    Collective,
    CollectiveName,
    require_collective,
)
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import (
    ExchangeRounds,
    LineReduceScatter,
    LineStep,
    Positions,
    dimension_by_dimension,
    grid_collectives,
    grid_shape,
    halving_steps,
    require_allreduce,
    require_line_size,
    round_robin,
    synchronised_dimensions,
    vector_exchanges,
    whole_vector_step,
)
from chorale.synth.topology.topology import Topology


def swing_distance(step: int) -> int:
    """Return Swing's signed distance in `step`: 1 - 2 + 4 - … = (1 - (-2)^(step + 1)) / 3 (rho in the Swing paper).

    Its absolute value is the distance between the peers in `step` (section 3.1.1).
    """
    return int((1 - (-2) ** (step + 1)) // 3)


def swing_peers(size: int) -> list[Positions]:
    """Return the peer of each position (int64[size]) in each of ceil(log2 size) steps, for an even `size`.

    In step s, the peer is `swing_distance(s)` positions ahead of an even position and behind an odd one, modulo size
    (Swing paper, equation 2).
    """
    position = np.arange(size)
    sign = np.where(position % 2 == 0, 1, -1)
    return [(position + sign * swing_distance(step)) % size for step in range((size - 1).bit_length())]


def swing_line(size: int) -> LineReduceScatter:
    """Return Swing's reduce_scatter on a line of `size` >= 2 positions.

    Takes ceil(log2 n) steps, where n is `size`, or `size` - 1 if `size` is odd. If the size is odd, the last position
    has no peer. Instead, it exchanges about half of the remaining blocks in every step directly with the positions to
    which these blocks belong (Swing paper, section 3.2, figure 4). O(size^2).
    """
    require_line_size(size)
    even = size - size % 2
    steps = halving_steps(swing_peers(even), np.arange(even))
    first = 0
    for number, step in enumerate(steps if size % 2 else ()):
        end = first + (even - first + 1) // 2 if number + 1 < len(steps) else even
        group, odd = np.arange(first, end), np.full(end - first, even)
        columns = ((step.src, odd, group), (step.dst, group, odd), (step.block, group, odd))
        steps[number] = LineStep(*(np.concatenate(parts) for parts in columns))
        first = end
    return LineReduceScatter(size, tuple(steps))


def swing(topology: Topology, collective: Collective, all_ports: bool = True) -> CollectivePattern:
    """Return bandwidth-optimal Swing on the topology's grid: reduce_scatter, allgather, allreduce, broadcast or reduce.

    Supports any number of dimensions of any size. In each dimension, a reduce_scatter takes ceil(log2 size) steps, or
    ceil(log2(size - 1)) if the size is odd. With `all_ports`, two collectives start in each dimension, one of them
    mirrored (section 4); otherwise, there is a single collective. broadcast and reduce follow the tree along which a
    reduce_scatter collects the root's shard.
    """
    lines = [swing_line(size) for size in grid_shape(topology)]
    parts = grid_collectives(lines, round_robin, all_ports, collective, "swing")
    return CollectivePattern(topology, collective, "swing", {"all_ports": all_ports}, parts)


def swing_latency(topology: Topology, collective: Collective, all_ports: bool = True) -> CollectivePattern:
    """Return latency-optimal Swing: an allreduce that exchanges complete vectors, in log2 N steps for powers of two.

    Dimensions of other sizes are first folded onto the largest power of two, in one step each, and unfolded at the end.
    broadcast and reduce are the same as in `swing`, where they take no more steps. Source: Swing paper, section 3.1.2.
    """
    return _exchanges(topology, collective, "swing-latency", swing, swing_peers, all_ports)


def _exchanges(
    topology: Topology, collective: Collective, method: str, rooted: Callable[..., CollectivePattern],
    peers: Callable[[int], list[Positions]], all_ports: bool,
) -> CollectivePattern:  # fmt: skip
    """Return an allreduce that exchanges complete vectors between `peers`, or the broadcast or reduce from `rooted`."""
    if collective.root is not None:
        parts = rooted(topology, collective, all_ports).subcollectives
    else:
        require_allreduce(collective, method)
        lines = [ExchangeRounds.of(size, peers(1 << size.bit_length() - 1)) for size in grid_shape(topology)]
        parts = vector_exchanges(lines, all_ports)
    return CollectivePattern(topology, collective, method, {"all_ports": all_ports}, parts)


def ring_line(size: int) -> LineReduceScatter:
    """Return the ring reduce_scatter on a line of `size` >= 2 positions in size - 1 steps.

    In step t, position a sends its partial sum of block a - 1 - t to position a + 1, modulo size. O(size^2).
    """
    require_line_size(size)
    position = np.arange(size)
    following = (position + 1) % size
    return LineReduceScatter(
        size, tuple(LineStep(position, following, (position - 1 - step) % size) for step in range(size - 1))
    )


def bucket(
    topology: Topology, collective: Collective, synchronised: bool = True, all_ports: bool = True
) -> CollectivePattern:
    """Return the bucket reduce_scatter, allgather or allreduce on the topology's grid.

    With `all_ports`, two collectives start in each dimension, one per direction. A collective that has finished in one
    dimension moves on to the next. If `synchronised`, all collectives wait for those in the longest dimension before
    they move on, so no two collectives share a link. A reduce_scatter then takes dimensions * (longest size - 1) steps,
    in which shorter dimensions send their blocks in pieces. This is bandwidth-optimal on tori with equal sizes >= 3.

    Otherwise, each collective moves on immediately, so a reduce_scatter takes as many steps as the sum of size - 1 over
    all dimensions. If sizes differ, a collective shares links with slower collectives. This variant is the baseline
    "traditional torus schedule" of Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications",
    section 5.3.
    """
    method = "bucket" if synchronised else "traditional-torus"
    require_collective(method, collective, (ALLGATHER.name, REDUCE_SCATTER.name, ALLREDUCE.name))
    lines = [ring_line(size) for size in grid_shape(topology)]
    order = synchronised_dimensions if synchronised else dimension_by_dimension
    parts = grid_collectives(lines, order, all_ports, collective, method)
    parameters = {"all_ports": all_ports, "synchronised": synchronised}
    return CollectivePattern(topology, collective, method, parameters, parts)


def doubling_peers(size: int) -> list[Positions]:
    """Return the peer of each position a in each step s < log2 size: a XOR 2^s. `size` must be a power of two."""
    return [np.arange(size) ^ (1 << step) for step in range(size.bit_length() - 1)]


def halving_line(size: int, returns: bool) -> LineReduceScatter:
    """Return the recursive-halving reduce_scatter on a line of `size` >= 2 positions.

    If `size` is not a power of two, let p' be the largest power of two below it. Each position a >= p' first sends
    its data to position a - p', which then handles the blocks of both positions. With `returns`, position a keeps its
    own data for block a, and finally adds the sum of the block that position a - p' sends back. Otherwise, the sum
    stays at position a - p', which is enough for an allreduce. O(size^2).

    Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005; Swing
    paper, section 2.3.3.
    """
    require_line_size(size)
    active = 1 << size.bit_length() - 1
    block = np.arange(size)
    steps = halving_steps(doubling_peers(active), np.where(block < active, block, block - active))
    if active < size:
        folded = np.arange(active, size)
        src, sent = (part.ravel() for part in np.meshgrid(folded, np.arange(size), indexing="ij"))
        kept = (sent != src) | (not returns)
        steps = [LineStep(src[kept], src[kept] - active, sent[kept]), *steps]
        steps += [LineStep(folded - active, folded, folded)] if returns else []
    return LineReduceScatter(size, tuple(steps))


def rabenseifner(topology: Topology, collective: Collective, all_ports: bool = False) -> CollectivePattern:
    """Return recursive halving (reduce_scatter), doubling (allgather) or both (allreduce) on the topology's grid.

    Peers are at distance 1, 2, 4, … in alternating dimensions. Halving and doubling take log2 N steps each if all sizes
    are powers of two. A dimension of any other size takes as many steps as the power of two below it, plus one for
    each phase (plus two for a reduce_scatter or allgather alone). By default, only one port is used. With `all_ports`,
    two collectives start in every dimension, one of them mirrored. broadcast and reduce follow the tree along which a
    reduce_scatter collects the root's shard.
    """
    returns = collective.name != CollectiveName.ALLREDUCE
    lines = [halving_line(size, returns) for size in grid_shape(topology)]
    parts = grid_collectives(lines, round_robin, all_ports, collective, "rabenseifner")
    return CollectivePattern(topology, collective, "rabenseifner", {"all_ports": all_ports}, parts)


def recursive_doubling(topology: Topology, collective: Collective, all_ports: bool = False) -> CollectivePattern:
    """Return the allreduce that exchanges complete vectors with the same peers as `rabenseifner`, in log2 N steps.

    Dimensions whose size is not a power of two are first folded onto the largest power of two below it, in one step
    each, and unfolded at the end. broadcast, reduce and `all_ports` are the same as in `rabenseifner`.
    """
    return _exchanges(topology, collective, "recursive-doubling", rabenseifner, doubling_peers, all_ports)


def one_shot(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return the allreduce in which every rank sends its complete vector to all other ranks in a single step.

    It has the lowest latency if ranks can access each other's memory, but each rank receives and adds N - 1 vectors.
    """
    require_allreduce(collective, "one-shot")
    ranks = topology.compute_count

    def pairs() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        src, dst = np.nonzero(~np.eye(ranks, dtype=np.bool_))
        return src, dst

    step = whole_vector_step(pairs, ranks, "one-shot")
    return CollectivePattern(topology, collective, "one-shot", {}, ([step],))
