"""The plan of a breadth-first broadcast: loads, chunks per shard and step times, before chunks are assigned to links.

Kernels get the in-links of nodes in rows and integer capacities. A task solves all steps of a block of nodes; it is a
pure function and can be pickled. One pass over a node's hop counts gives the flow problems of all its steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from math import gcd, lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.topology.distance import distances_to, hops_along
from chorale.synth.topology.topology import Topology

MAX_PAIRS = 2**29
"""Maximum number of node pairs. Each distance takes two bytes, so the table takes up to 1 GiB."""
MAX_CHUNKS = 2**15
MAX_HOPS = 2**16 - 2


@dataclass(frozen=True, slots=True, eq=False)
class BfbNetwork:
    """The network in the form that kernels read: in-links of node u start at `tails[offsets[u]:offsets[u + 1]]`.

    Links are numbered as in the topology (sorted by target).
    Attributes:
        key: cache key that identifies the network.
        capacities: int64 per link; bandwidth = capacity * unit, with the largest unit that makes them integers.
        rows: None for a complete network. Otherwise only the first `nodes` nodes are solved, and `rows` has the hop
            counts from every shard to these nodes, then to their in-neighbours. `tails` contains row numbers.
    """

    key: str
    offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    capacities: NDArray[np.int64]
    unit: Fraction
    rows: NDArray[np.uint16] | None = None

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def shards(self) -> int:
        return self.nodes if self.rows is None else self.rows.shape[1]

    @property
    def words(self) -> int:
        """Number of 64-bit words that are needed for one bit per in-link of a node."""
        return (int(np.diff(self.offsets).max()) + 63) // 64


def network_of(topology: Topology) -> BfbNetwork:
    """Return `topology` in the form that the kernels need. Raises InvalidInput if BFB does not support it."""
    capacities, unit = _capacities(topology)
    nodes = topology.compute_count
    if nodes * nodes > MAX_PAIRS:
        gib = f"{2 * nodes * nodes / 2**30:.1f} GiB"
        rule = "bfb keeps a table of hop counts of at most 1 GiB"
        way_out = f"use at most {int(MAX_PAIRS**0.5)} nodes, or a topology with known symmetries such as a torus"
        raise InvalidInput(rule, f"{nodes} nodes, which need {gib}", way_out)
    offsets = topology.links.incoming_offsets(nodes)
    return BfbNetwork(topology.id, offsets, topology.links.src.copy(), capacities, unit)


def network_of_nodes(topology: Topology, chosen: NDArray[np.int64]) -> BfbNetwork:
    """Return the part of `topology` that determines what the nodes `chosen` receive, renumbered from 0.

    It consists of their in-links and the hop counts to both ends of these links. If rank 0 is the first of `chosen`,
    its links keep their ids, because links are sorted by target. O(nodes considered * links).
    """
    capacities, unit = _capacities(topology)
    first = topology.links.incoming_offsets(topology.node_count)
    links = np.concatenate([np.arange(first[node], first[node + 1]) for node in chosen.tolist()])
    targets, row_of_tail = np.unique(topology.links.src[links], return_inverse=True)
    hops = distances_to(topology, np.concatenate([chosen, targets]))
    if int(hops.max()) >= MAX_HOPS:
        raise InvalidInput(f"bfb counts up to {MAX_HOPS} hops", int(hops.max()), "use a smaller topology")
    offsets = np.cumsum([0, *np.diff(first)[chosen]])
    tails = (row_of_tail + len(chosen)).astype(np.int32)
    key = f"nodes {chosen.tolist()} of {topology.id}"
    return BfbNetwork(key, offsets, tails, capacities[links], unit, np.ascontiguousarray(hops, dtype=np.uint16))


def _capacities(topology: Topology) -> tuple[NDArray[np.int64], Fraction]:
    """Return (capacity of each link (int64) as a multiple of the unit, unit of bandwidth).

    Raises InvalidInput for switches, and if sums would exceed 64 bits.
    """
    if topology.switch_count:
        rule = "bfb needs a network without switches, but this one has {}"
        raise InvalidInput(rule, f"{topology.switch_count} switches", "use the method forest, or auto")
    integer, scale = topology.links.integer_bandwidths()
    common = reduce(gcd, (int(value) for value in np.unique(integer)))
    capacities, nodes = integer // common, topology.compute_count
    largest = int(capacities.max())
    if largest * nodes * MAX_CHUNKS * largest >= 2**62:
        rule = "bandwidths must have a common unit of which every link is a modest multiple (64-bit sums)"
        raise InvalidInput(
            rule, f"a largest multiple of {largest} at {nodes} nodes", "round the bandwidths to fewer digits"
        )
    return capacities, Fraction(common, scale)


class Problems(NamedTuple):
    """Kernel input: in-links of nodes in rows (see `BfbNetwork`), and hop counts `rows[u, v]` from the root of shard v
    to u.

    There may be more rows, for nodes in `tails` that are not solved.
    """

    offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    capacities: NDArray[np.int64]
    rows: Matrix[np.uint16]
    words: int


_memory: dict[str, tuple[Problems, int]] = {}


def problems_of(network: BfbNetwork) -> tuple[Problems, int]:
    """Return the kernel input for `network` and its number of steps, which is the largest hop count.

    The last result is cached, because many tasks share the hop counts.
    """
    if network.key not in _memory:
        _memory.clear()
        rows = hops_along((network.offsets, network.tails)) if network.rows is None else network.rows
        problems = Problems(network.offsets, network.tails, network.capacities, rows, network.words)
        _memory[network.key] = problems, int(rows.max())
    return _memory[network.key]


BLOCKS = 64


Block = tuple[int, int]
"""The nodes from the first number up to, but without, the second."""


def blocks_of(nodes: int) -> list[Block]:
    """Return at most `BLOCKS` blocks of nodes. They are the same for any number of workers, and so are the results."""
    count = min(nodes, BLOCKS)
    return list(pairwise(nodes * index // count for index in range(count + 1)))


class Loads(NamedTuple):
    """The largest time of each step over some nodes, as a fraction `top` / `bottom` in shards (or chunks) per capacity.

    node:  the node with this time
    links: its critical in-links as bits
    """

    top: NDArray[np.int64]
    bottom: NDArray[np.int64]
    node: NDArray[np.int64]
    links: NDArray[np.uint64]

    def time(self, step: int) -> Fraction:
        return Fraction(int(self.top[step]), int(self.bottom[step]))


WholeChunks = tuple[BfbNetwork, int, Loads]
"""Input for assigning whole chunks to links: network, chunks per shard, and the time of each step."""


def block_loads(network: BfbNetwork, block: Block) -> Loads:
    """Return the least time of each step for the nodes in `block`, if shards are divisible."""
    return Loads(*native.least_loads(*block, *problems_of(network)))


def block_chunk_times(shared: WholeChunks, block: Block) -> Loads:
    """Return the least step times for whole chunks in a block of nodes, but at least the times in `shared`."""
    network, chunks, start = shared
    times = start.top.copy(), start.bottom.copy()
    return Loads(*native.integral_chunk_times(*block, problems_of(network)[0], chunks, *times))


def block_transfers(shared: WholeChunks, block: Block) -> tuple[NDArray[np.unsignedinteger], ...]:
    """Return the transfers to a block of nodes as columns (step, link, shard, lo, hi) of small unsigned integers."""
    network, chunks, loads = shared
    times = loads.top.copy(), loads.bottom.copy()
    step, rows = native.assign_chunks(*block, problems_of(network)[0], chunks, *times)
    types = map(np.min_scalar_type, (len(loads.top), len(network.tails), network.shards, chunks, chunks))
    return tuple(column.astype(dtype) for column, dtype in zip((step, *rows.reshape(-1, 4).T), types, strict=True))


def chunk_times(
    network: BfbNetwork, loads: Loads, chunks: int, executor: Executor, progress: Progress | None = None
) -> Loads:
    """Return the least time of each step with `chunks` whole chunks per shard, in chunks per capacity.

    If all links are identical, this is exactly ceil(chunks * time for divisible shards), because the transportation
    polytope is integral (theorem 20 of the paper only gives a bound). For different capacities, the flow problems are
    solved again.
    """
    top, bottom = loads.top * chunks, loads.bottom
    if np.all(network.capacities == 1):
        return loads._replace(top=-(-top // bottom), bottom=np.ones_like(bottom))
    start = loads._replace(top=top)
    shared = network, chunks, start
    return merge_loads([start, *executor.map(block_chunk_times, blocks_of(network.nodes), shared, progress)])


def best_chunks(network: BfbNetwork, loads: Loads, executor: Executor) -> tuple[int, Loads]:
    """Return the smallest number of chunks per shard that is as fast as divisible shards, and the loads with it.

    In a step of time U, a critical link of capacity c carries exactly c * U, which must be whole chunks. For identical
    links this is also sufficient. Otherwise multiples are tried in turn, and the common denominator for all links
    always works. Raises InvalidInput above `MAX_CHUNKS`.
    """
    needed = sufficient = 1  # lcm of the denominators of capacity * step time: critical links, all links
    for step in range(len(loads.top)):
        time, critical = loads.time(step), network.capacities[critical_links(network, loads, step)]
        for capacity in np.unique(network.capacities).tolist():
            denominator = (capacity * time).denominator
            sufficient = lcm(sufficient, denominator)
            needed = lcm(needed, denominator if capacity in critical else 1)
    for chunks in range(needed, min(sufficient, MAX_CHUNKS) + 1, needed):
        chosen = chunk_times(network, loads, chunks, executor)
        if np.array_equal(chosen.top * loads.bottom, loads.top * chunks * chosen.bottom):
            return chunks, chosen
    rule = f"without --chunks, bfb needs at most {MAX_CHUNKS} chunks per shard to reach its optimum"
    raise InvalidInput(
        rule, f"a topology that needs more ({sufficient} suffice)", "choose a number with --chunks, such as 12"
    )


def merge_loads(parts: list[Loads]) -> Loads:
    """Return the largest time of each step over all blocks, with its node and links (the first one if several tie)."""
    best = Loads._make(column.copy() for column in parts[0])
    for part in parts[1:]:
        larger = (part.bottom > 0) & ((best.bottom == 0) | (part.top * best.bottom > best.top * part.bottom))
        for column, other in zip(best, part, strict=True):
            column[larger] = other[larger]
    return best


def critical_links(network: BfbNetwork, loads: Loads, step: int) -> list[int]:
    """Return the ids of the in-links that determine the time of `step`."""
    node = int(loads.node[step])
    first = int(network.offsets[node])
    degree = int(network.offsets[node + 1]) - first
    words = [int(word) for word in loads.links[step]]
    return [first + link for link in range(degree) if words[link // 64] >> (link % 64) & 1]


@dataclass(frozen=True, slots=True, eq=False)
class BfbPlan:
    """Loads, chunks per shard and step times of a breadth-first broadcast."""

    network: BfbNetwork
    loads: Loads  # for divisible shards
    chunks: int
    chosen: Loads  # for indivisible chunks

    @property
    def steps(self) -> int:
        return len(self.loads.top)


def make_plan(network: BfbNetwork, executor: Executor, chunks: int | None, progress: Progress | None) -> BfbPlan:
    """Return the plan for the nodes of `network`. `chunks` has the same meaning as in `bfb_allgather`."""
    if chunks is not None and not 1 <= chunks <= MAX_CHUNKS:
        raise InvalidInput(f"chunks per shard must be 1 to {MAX_CHUNKS}", chunks, "choose a number in that range")
    loads = merge_loads(executor.map(block_loads, blocks_of(network.nodes), network, progress))
    if chunks is None:
        return BfbPlan(network, loads, *best_chunks(network, loads, executor))
    return BfbPlan(network, loads, chunks, chunk_times(network, loads, chunks, executor, progress))


def transfer_columns(plan: BfbPlan, executor: Executor, progress: Progress | None) -> list[NDArray[np.unsignedinteger]]:
    """Return the columns of `Transfers` for everything that nodes receive, sorted by node, step and shard."""
    shared = plan.network, plan.chunks, plan.chosen
    parts = executor.map(block_transfers, blocks_of(plan.network.nodes), shared, progress)
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return [*joined, np.zeros(len(joined[0]), dtype=np.uint8)]


def certificate_of(plan: BfbPlan) -> Mapping[str, Any]:
    """Return the certificate: the node and links that determine each step's load, and each step's time in chunks."""
    network = plan.network

    def reasons(loads: Loads) -> list[Mapping[str, Any]]:
        return [
            {
                "value": str(loads.time(step) / network.unit),
                "node": int(loads.node[step]),
                "links": critical_links(network, loads, step),
            }
            for step in range(plan.steps)
        ]

    return {"kind": "bfb-steps", "loads": reasons(plan.loads), "times": reasons(plan.chosen)}
