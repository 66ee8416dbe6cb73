"""Plans a breadth-first broadcast: computes the time of each step, chooses the number of chunks per shard, and assigns
chunks to links.

In each step, dividing the shards that reach a node among its incoming links is a flow problem. C++ kernels solve it;
their input is each node's incoming links with integer capacities and latencies in ticks. A task solves the flow
problems of all steps for a block of nodes. Tasks are pure functions and can be pickled.
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
from chorale.synth.topology.topology import Topology, bytes_per_second

MAX_TIMED_CHUNKS = 64
"""If latencies differ, more chunks per shard are only tried if no number up to this is nearly as fast as the best."""
MAX_PAIRS = 2**29
"""Maximum number of node pairs. Each distance takes two bytes, so the table takes up to 1 GiB."""
MAX_CHUNKS = 2**15
MAX_HOPS = 2**16 - 2
_USUAL_CHUNKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, MAX_TIMED_CHUNKS)
_MORE_CHUNKS = (96, 128, 192, 256, 384, 512, 1024, 2048, 4096)
_LARGEST_DENOMINATOR = 4096
_NEARLY = Fraction(101, 100)
BLOCKS = 64
Block = tuple[int, int]
"""(first, end): one task solves the flow problems of nodes `first` to `end` - 1."""


@dataclass(frozen=True, slots=True)
class LatencyTicks:
    """Converts ticks, the integer time unit of kernels, to seconds for vectors of `size_bytes`.

    shard_s: time of a shard on a link of capacity 1, in seconds
    grain:   number of ticks in `shard_s`
    first_s: smallest latency of any link, in seconds. Ticks do not include it, so it is added to the time of each step.
    """

    size_bytes: int
    shard_s: Fraction
    grain: int
    first_s: Fraction

    def seconds(self, ticks: Fraction, chunks: int) -> Fraction:
        """Convert the time of a step to seconds. `ticks` is in units of 1 / `chunks` of a tick."""
        return self.first_s + ticks / self.grain * self.shard_s / chunks


def delays_in_ticks(
    topology: Topology, size_bytes: int | None, unit: Fraction
) -> tuple[NDArray[np.int64], LatencyTicks | None]:
    """Return (delay of each link in ticks, conversion of ticks to seconds). A link of capacity 1 has bandwidth `unit`.

    A link's delay is its latency above the smallest latency, or 0 if `size_bytes` is None. Delays are exact: a shard's
    time is divided into the fewest ticks for which every delay is a whole number of ticks. Raises InvalidInput if
    bandwidths are not in bytes per second, or if delays in ticks would be too large for 64-bit numbers.
    """
    if size_bytes is None:
        return np.zeros(len(topology.links), dtype=np.int64), None
    if size_bytes < 1:
        raise InvalidInput("--size must be at least 1 byte", size_bytes, "give the size of the whole vector")
    shard_s = Fraction(size_bytes, topology.compute_count) / (unit * bytes_per_second(topology))
    first_s = min(topology.links.latencies_s)
    shards = [(latency_s - first_s) / shard_s for latency_s in topology.links.latencies_s]
    grain = lcm(*(delay.denominator for delay in shards))
    table = [int(delay * grain) for delay in shards]
    clock = LatencyTicks(size_bytes, shard_s, grain, first_s)
    require_magnitude(clock, topology.compute_count, max(table), 1)
    return np.array(table, dtype=np.int64)[topology.links.latency_class], clock


def require_magnitude(
    clock: LatencyTicks, shards: int, delay: int, capacity: int, chunks: int = MAX_TIMED_CHUNKS
) -> None:
    """Raise InvalidInput unless the times that kernels compute fit into 64 bits.

    Times are fractions (shards * grain + capacity * delay) * chunks / capacity, compared by cross-multiplication;
    `delay` is the largest delay in ticks, and `capacity` is the largest total capacity of the links into a node.
    """
    if (shards * clock.grain + capacity * delay) * capacity * chunks < 2**62:
        return
    rule = "(shards * ticks per shard + bandwidth into a node * largest delay) * bandwidth * chunks must be below 2^62"
    value = f"{shards} shards of {clock.grain} ticks, delays up to {delay}, bandwidth {capacity}, {chunks} chunks"
    advice = "round latencies and bandwidths to fewer digits, choose a size such as 1MiB, or fewer chunks"
    raise InvalidInput(rule, value, advice)


@dataclass(frozen=True, slots=True, eq=False)
class BfbNetwork:
    """A network in the form that kernels read. Links into node u start at the nodes `tails[offsets[u]:offsets[u + 1]]`.

    Links are numbered as in the topology, sorted by target.

    Attributes:
        key: cache key that identifies the network.
        capacities: int64 per link; bandwidth = capacity * unit, with the largest unit that makes them integers.
        delays: int64 per link, latency in ticks above the smallest latency; 0 if latencies are ignored.
        latency_ticks: length of a tick. None if latencies are ignored; a tick is then a shard's time at capacity 1.
        rows: None for a complete network. Otherwise, flow problems are solved only for the first `nodes` nodes, and
            each row contains the hop counts from every shard's origin to one node: first to each of these nodes, then
            to each of their in-neighbours. `tails` contains indices of rows.
    """

    key: str
    offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    capacities: NDArray[np.int64]
    delays: NDArray[np.int64]
    unit: Fraction
    latency_ticks: LatencyTicks | None = None
    rows: NDArray[np.uint16] | None = None

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def shards(self) -> int:
        return self.nodes if self.rows is None else self.rows.shape[1]

    @property
    def words(self) -> int:
        """Number of 64-bit words that hold one bit for each incoming link of a node."""
        return (int(np.diff(self.offsets).max()) + 63) // 64

    @property
    def has_delays(self) -> bool:
        return bool(np.any(self.delays))

    @property
    def grain(self) -> int:
        return 1 if self.latency_ticks is None else self.latency_ticks.grain

    def step_time(self, ticks: Fraction, chunks: int) -> Fraction:
        """Convert `ticks` to a time in seconds or, if latencies are ignored, in chunks / bandwidth."""
        return ticks / self.unit if self.latency_ticks is None else self.latency_ticks.seconds(ticks, chunks)

    def allows(self, chunks: int) -> bool:
        """Return whether computed times fit into 64 bits with this number of chunks per shard."""
        try:
            self.require_magnitude(chunks)
        except InvalidInput:
            return False
        return True

    def require_magnitude(self, chunks: int) -> None:
        """Raise InvalidInput unless computed times fit into 64 bits with this number of chunks per shard."""
        if self.latency_ticks is not None:
            inwards = np.add.reduceat(self.capacities, self.offsets[:-1])
            require_magnitude(self.latency_ticks, self.shards, int(self.delays.max()), int(inwards.max()), chunks)


def network_of(topology: Topology, size_bytes: int | None = None) -> BfbNetwork:
    """Return `topology` in the form that the kernels need. Raises InvalidInput if BFB does not support it.

    size_bytes: size of the complete vector in bytes; None to ignore latencies
    """
    capacities, unit = _capacities(topology)
    nodes = topology.compute_count
    if nodes * nodes > MAX_PAIRS:
        gib = f"{2 * nodes * nodes / 2**30:.1f} GiB"
        rule = "bfb keeps a table of hop counts of at most 1 GiB"
        way_out = f"use at most {int(MAX_PAIRS**0.5)} nodes, or a topology with known symmetries such as a torus"
        raise InvalidInput(rule, f"{nodes} nodes, which need {gib}", way_out)
    delays, clock = delays_in_ticks(topology, size_bytes, unit)
    offsets = topology.links.incoming_offsets(nodes)
    key = f"{topology.id} at {size_bytes}"
    return BfbNetwork(key, offsets, topology.links.src.copy(), capacities, delays, unit, clock)


def network_of_nodes(topology: Topology, chosen: NDArray[np.int64], size_bytes: int | None = None) -> BfbNetwork:
    """Return the part of `topology` that determines what the nodes `chosen` receive, with nodes renumbered from 0.

    This part consists of the links into these nodes and the hop counts to both ends of these links. If rank 0 is the
    first of `chosen`, its links keep their ids, because links are sorted by target. O(nodes considered * links).
    """
    capacities, unit = _capacities(topology)
    delays, clock = delays_in_ticks(topology, size_bytes, unit)
    first = topology.links.incoming_offsets(topology.node_count)
    links = np.concatenate([np.arange(first[node], first[node + 1]) for node in chosen.tolist()])
    targets, row_of_tail = np.unique(topology.links.src[links], return_inverse=True)
    hops = distances_to(topology, np.concatenate([chosen, targets]))
    if int(hops.max()) >= MAX_HOPS:
        raise InvalidInput(f"bfb counts up to {MAX_HOPS} hops", int(hops.max()), "use a smaller topology")
    offsets = np.cumsum([0, *np.diff(first)[chosen]])
    tails = (row_of_tail + len(chosen)).astype(np.int32)
    key = f"nodes {chosen.tolist()} of {topology.id} at {size_bytes}"
    rows = np.ascontiguousarray(hops, dtype=np.uint16)
    return BfbNetwork(key, offsets, tails, capacities[links], delays[links], unit, clock, rows)


def _capacities(topology: Topology) -> tuple[NDArray[np.int64], Fraction]:
    """Return (int64 per link: its capacity as a multiple of the unit; the unit, which is a bandwidth).

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
    """Kernel input: the links into each node (see `BfbNetwork`), and hop counts `rows[u, v]` from rank v to node u.

    Additional rows belong to nodes in `tails` for which no flow problem is solved.

    delays: int64 per link, in ticks, of which a shard takes `grain` on a link of capacity 1; 0 if latencies are ignored
    words:  number of 64-bit words that hold one bit for each incoming link of a node
    """

    offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    capacities: NDArray[np.int64]
    delays: NDArray[np.int64]
    grain: int
    rows: Matrix[np.uint16]
    words: int


_memory: dict[str, tuple[Problems, int]] = {}


def problems_of(network: BfbNetwork) -> tuple[Problems, int]:
    """Return the kernel input for `network` and its number of steps, which is the largest hop count.

    The last result is cached, because many tasks use the same hop counts.
    """
    if network.key not in _memory:
        _memory.clear()
        rows = hops_along((network.offsets, network.tails)) if network.rows is None else network.rows
        problems = Problems(
            network.offsets, network.tails, network.capacities, network.delays, network.grain, rows, network.words
        )
        _memory[network.key] = problems, int(rows.max())
    return _memory[network.key]


def blocks_of(nodes: int) -> list[Block]:
    """Divide the nodes into at most `BLOCKS` blocks, regardless of the number of workers, for reproducible results."""
    count = min(nodes, BLOCKS)
    return list(pairwise(nodes * index // count for index in range(count + 1)))


class Loads(NamedTuple):
    """The time that some nodes need for each step: `top` / `bottom` ticks. All columns have one entry or row per step.

    node:  the node that needs this time, because it is the slowest
    links: bit set of this node's critical incoming links, which determine its time
    """

    top: NDArray[np.int64]
    bottom: NDArray[np.int64]
    node: NDArray[np.int64]
    links: NDArray[np.uint64]

    def time(self, step: int) -> Fraction:
        return Fraction(int(self.top[step]), int(self.bottom[step]))


WholeChunks = tuple[BfbNetwork, int, Loads]
"""Input of the tasks that assign whole chunks to links: network, chunks per shard, and the time of each step."""


def block_loads(network: BfbNetwork, block: Block) -> Loads:
    """Return the least time of each step for the nodes in `block`, if shards are infinitely divisible."""
    return Loads(*native.least_loads(*block, *problems_of(network)))


def block_chunk_times(shared: WholeChunks, block: Block) -> Loads:
    """Return each step's least time for the nodes in `block` with whole chunks, but at least the time in `shared`."""
    network, chunks, start = shared
    times = start.top.copy(), start.bottom.copy()
    return Loads(*native.integral_chunk_times(*block, problems_of(network)[0], chunks, *times))


def block_transfers(shared: WholeChunks, block: Block) -> tuple[NDArray[np.unsignedinteger], ...]:
    """Return the transfers to a block of nodes: columns (step, link, shard, lo, hi) in the smallest unsigned types."""
    network, chunks, loads = shared
    times = loads.top.copy(), loads.bottom.copy()
    step, rows = native.assign_chunks(*block, problems_of(network)[0], chunks, *times)
    types = map(np.min_scalar_type, (len(loads.top), len(network.tails), network.shards, chunks, chunks))
    return tuple(column.astype(dtype) for column, dtype in zip((step, *rows.reshape(-1, 4).T), types, strict=True))


def chunk_times(
    network: BfbNetwork, loads: Loads, chunks: int, executor: Executor, progress: Progress | None = None
) -> Loads:
    """Return the least time of each step with `chunks` whole chunks per shard, in ticks / `chunks`.

    If all links are identical, each time is exactly ceil(chunks * time for divisible shards), because the
    transportation polytope is integral (theorem 20 of Zhao et al. only gives a bound). If capacities or delays differ,
    the flow problems are solved again.
    """
    top, bottom = loads.top * chunks, loads.bottom
    if not network.has_delays and np.all(network.capacities == 1):
        return loads._replace(top=-(-top // bottom), bottom=np.ones_like(bottom))
    start = loads._replace(top=top)
    shared = network, chunks, start
    return merge_loads([start, *executor.map(block_chunk_times, blocks_of(network.nodes), shared, progress)])


def best_chunks(network: BfbNetwork, loads: Loads, executor: Executor) -> tuple[int, Loads]:
    """Return (smallest number of chunks per shard that is as fast as divisible shards, loads with this number).

    In a step that takes time U, a critical link of capacity c and delay a carries exactly c * (U - a), which must be a
    whole number of chunks. If all links are identical, this condition is also sufficient. Otherwise, multiples of the
    smallest number that meets the condition are tried, up to the common denominator for all links, which always
    suffices. If delays differ, this denominator may be as large as the number of bytes, so only numbers up to
    `MAX_TIMED_CHUNKS` are tried, and if all fail, `_nearly_best_chunks` chooses a number. Raises InvalidInput if more
    than `MAX_CHUNKS` would be needed.
    """
    needed = sufficient = 1  # lcm of denominators of capacity * (time - delay) / grain, of critical and of all links
    kinds = set(zip(network.capacities.tolist(), network.delays.tolist(), strict=True))
    for step in range(len(loads.top)):
        time = loads.time(step)
        critical = critical_links(network, loads, step)
        critical_kinds = {(int(network.capacities[link]), int(network.delays[link])) for link in critical}
        for capacity, delay in kinds:
            if delay < time:
                denominator = (capacity * (time - delay) / network.grain).denominator
                sufficient = lcm(sufficient, denominator)
                needed = lcm(needed, denominator if (capacity, delay) in critical_kinds else 1)
    most = MAX_TIMED_CHUNKS if network.has_delays else MAX_CHUNKS
    for chunks in range(needed, min(sufficient, most) + 1, needed):
        chosen = chunk_times(network, loads, chunks, executor)
        if np.array_equal(chosen.top * loads.bottom, loads.top * chunks * chosen.bottom):
            return chunks, chosen
    if network.has_delays:
        return _nearly_best_chunks(network, loads, executor)
    rule = f"without --chunks, bfb needs at most {MAX_CHUNKS} chunks per shard to reach its optimum"
    raise InvalidInput(
        rule, f"a topology that needs more ({sufficient} suffice)", "choose a number with --chunks, such as 12"
    )


def _nearly_best_chunks(network: BfbNetwork, loads: Loads, executor: Executor) -> tuple[int, Loads]:
    """Return (number of chunks per shard, its loads). The time is within 1 % of divisible shards, or the best found.

    Tries numbers up to 64, then larger ones up to 4096 for which times fit into 64 bits. These include numbers for
    which critical links carry nearly whole chunks.
    """
    shares = []  # number of shards that each critical link carries
    for step in range(len(loads.top)):
        time = loads.time(step)
        for link in critical_links(network, loads, step):
            capacity, delay = int(network.capacities[link]), int(network.delays[link])
            shares += [capacity * (time - delay) / network.grain] if delay < time else []
    most = _LARGEST_DENOMINATOR
    while most > MAX_TIMED_CHUNKS and not network.allows(most):
        most //= 2
    small = [share.limit_denominator(_LARGEST_DENOMINATOR).denominator for share in shares]
    beyond = sorted(number for number in {*_MORE_CHUNKS, *small, lcm(*small)} if MAX_TIMED_CHUNKS < number <= most)
    ideal = _total_time(network, loads, 1)
    best: tuple[Fraction, int, Loads] | None = None
    for chunks in (*_USUAL_CHUNKS, *beyond):
        chosen = chunk_times(network, loads, chunks, executor)
        total = _total_time(network, chosen, chunks)
        if best is None or total < best[0]:
            best = total, chunks, chosen
        if total <= ideal * _NEARLY:
            break
    assert best is not None
    return best[1:]


def _total_time(network: BfbNetwork, loads: Loads, chunks: int) -> Fraction:
    return sum((network.step_time(loads.time(step), chunks) for step in range(len(loads.top))), Fraction(0))


def merge_loads(parts: list[Loads]) -> Loads:
    """Return each step's largest time over all blocks, with its node and links. In a tie, the first block counts."""
    best = Loads._make(column.copy() for column in parts[0])
    for part in parts[1:]:
        larger = (part.bottom > 0) & ((best.bottom == 0) | (part.top * best.bottom > best.top * part.bottom))
        for column, other in zip(best, part, strict=True):
            column[larger] = other[larger]
    return best


def critical_links(network: BfbNetwork, loads: Loads, step: int) -> list[int]:
    """Return the ids of the links that determine the time of `step`: the critical links into the slowest node."""
    node = int(loads.node[step])
    first = int(network.offsets[node])
    degree = int(network.offsets[node + 1]) - first
    words = [int(word) for word in loads.links[step]]
    return [first + link for link in range(degree) if words[link // 64] >> (link % 64) & 1]


@dataclass(frozen=True, slots=True, eq=False)
class BfbPlan:
    network: BfbNetwork
    loads: Loads  # for divisible shards
    chunks: int
    chosen: Loads  # for indivisible chunks

    @property
    def steps(self) -> int:
        return len(self.loads.top)


def make_plan(network: BfbNetwork, executor: Executor, chunks: int | None, progress: Progress | None) -> BfbPlan:
    """Compute the plan of a breadth-first broadcast on `network`. `chunks` means the same as in `bfb_allgather`."""
    if chunks is not None and not 1 <= chunks <= MAX_CHUNKS:
        raise InvalidInput(f"chunks per shard must be 1 to {MAX_CHUNKS}", chunks, "choose a number in that range")
    network.require_magnitude(MAX_TIMED_CHUNKS if chunks is None else chunks)
    loads = merge_loads(executor.map(block_loads, blocks_of(network.nodes), network, progress))
    if chunks is None:
        return BfbPlan(network, loads, *best_chunks(network, loads, executor))
    return BfbPlan(network, loads, chunks, chunk_times(network, loads, chunks, executor, progress))


def parameters_of(chunks: int | None, size_bytes: int | None) -> Mapping[str, int | None]:
    return {"chunks": chunks} if size_bytes is None else {"chunks": chunks, "size_bytes": size_bytes}


def transfer_columns(plan: BfbPlan, executor: Executor, progress: Progress | None) -> list[NDArray[np.unsignedinteger]]:
    """Return the columns of `Transfers` for all data that nodes receive, sorted by node, step and shard."""
    shared = plan.network, plan.chunks, plan.chosen
    parts = executor.map(block_transfers, blocks_of(plan.network.nodes), shared, progress)
    joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return [*joined, np.zeros(len(joined[0]), dtype=np.uint8)]


def certificate_of(plan: BfbPlan) -> Mapping[str, Any]:
    """Return the certificate: step times for divisible shards and for whole chunks, with critical nodes and links."""
    network, clock = plan.network, plan.network.latency_ticks

    def reasons(loads: Loads, chunks: int) -> list[Mapping[str, Any]]:
        return [
            {
                "value": str(network.step_time(loads.time(step), chunks)),
                "node": int(loads.node[step]),
                "links": critical_links(network, loads, step),
            }
            for step in range(plan.steps)
        ]

    return {
        "kind": "bfb-steps",
        **({} if clock is None else {"size_bytes": clock.size_bytes}),
        "loads": reasons(plan.loads, 1),
        "times": reasons(plan.chosen, plan.chunks),
    }
