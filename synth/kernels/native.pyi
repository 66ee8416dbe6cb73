"""Kernels written in C++, grouped by source file in `cpp`.

Arrays must have exactly the stated types and numbers of axes and be contiguous in the last axis; otherwise a TypeError
says what is expected. Arrays that a kernel writes must not be read-only. Kernels release the interpreter lock. Indices
are not checked, unless the extension is built with CXXFLAGS=-DCHORALE_CHECK_BOUNDS; then IndexError is raised.
"""

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import ResidualGraph
from chorale.synth.kernels.types import Matrix, Table
from chorale.synth.lowering.messages import Visits
from chorale.synth.methods.bfb.plan import Problems
from chorale.synth.methods.forest.packing import ArcTable, ResidualNetwork
from chorale.synth.methods.forest.switch_groups import SwitchGroups
from chorale.synth.methods.forest.switch_removal import PathPieces, Splits
from chorale.synth.methods.traffic.fabric import RailLoads
from chorale.synth.programs.check_execution import Code
from chorale.synth.topology.symmetry_search import MarkedLinks, OrderedCells
from chorale.synth.verify.replay import ActorTables

Ints = NDArray[np.int64]
Ranks = NDArray[np.int32]
Reals = NDArray[np.float64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

SOURCES: str
"""`sources_id` of the C++ files from which this extension module was built."""

# alltoall.cpp

def add_priced_loads(
    network: tuple[Ints, Ranks, Ints, Ranks, Ranks, Matrix[np.int64]],
    sources: Ranks,
    weights: Ints,
    prices: Reals,
    temperature: float,
    units: int,
    loads: Ints,
) -> tuple[float, float]:
    """Send the demand of `sources`, times `weights`, along cheap paths and add the exact load of each link to `loads`.

    O(links * log(links)) per source.

    Args:
        network: (incoming, src, outgoing, outgoing_links, dst, demand): the links grouped by target and by source, and
            the units that a source sends to each node: one row for all sources, or one row per source.
        prices: Each link's price, above 0; links are sorted by head.
        units: Number of indivisible units into which each unit of demand is divided.

    Returns:
        Two sums over all units of demand: the sum of their distances, and the sum of their smoothed distances, which
        are -temperature * log(sum over paths of exp(-price / temperature)). The derivatives of the second sum with
        respect to the prices are the loads, up to rounding.
    """

def price_distances(
    outgoing: Ints, outgoing_links: Ranks, dst: Ranks, prices: Reals, sources: Ranks, distances: Matrix[np.float64]
) -> None:
    """Write the cheapest distance from each source to each node to `distances`, [sources, nodes].

    O(sources * links * log(links)).
    """

def relieve_flows(
    incoming: Ints,
    outgoing: Ints,
    outgoing_links: Ranks,
    src: Ranks,
    dst: Ranks,
    source: Ints,
    target: Ints,
    amount: Ints,
    offsets: Ints,
    links: Ranks,
    room: Reals,
    rounds: int,
    flows: Matrix[np.float64],
) -> None:
    """Move parts of paths from links whose load exceeds their `room` to the cheapest paths, until this gains little.

    Path i carries `amount[i]` over `links[offsets[i]:offsets[i + 1]]`. Adds the resulting flows to `flows`, [sources,
    links]. At most `rounds` rounds. O(links * log(links)) per source and round, and per path that is moved.
    """

def copy_trees(
    outgoing: Ints,
    outgoing_links: Ranks,
    src: Ranks,
    dst: Ranks,
    ranks: int,
    source: Ints,
    offsets: Ints,
    targets: Ints,
    amount: Ints,
    room: Reals,
    rounds: int,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ranks]:
    """Grow a tree from each `source[i]` to `targets[offsets[i]:offsets[i + 1]]`, in which only ranks copy data.

    Trees with links whose load exceeds their `room` are grown again, in at most `rounds` rounds. O(links * log(links))
    per path of a tree.

    Returns:
        Columns of the edges: tree, sender, receiver, number of edges before it; then offsets of their links, and links.
    """

def route(
    incoming: Ints,
    outgoing: Ints,
    outgoing_links: Ranks,
    src: Ranks,
    dst: Ranks,
    demand: Matrix[np.int64],
    sources: Ranks,
    flows: Matrix[np.float64],
    units: int,
    capacity: Reals,
    debt: Reals,
    whole: Matrix[np.int64],
) -> None:
    """Round `flows` to integers that deliver `units` times the demand; write the integers to `whole`, [sources, links].

    debt: for each link, the sum of exact flows minus the sum of rounded flows so far; updated
    """

def peel(
    incoming: Ints, src: Ranks, demand: Ints, source: int, units: int, flow: Ints, rows: Matrix[np.int64], links: Ranks
) -> tuple[int, int]:
    """Split a source's flow into paths: from each rank, follow the widest remaining links back to the source.

    Repeats until `units` chunks have a path to each rank. Fills `rows` (start in `links`, target, first chunk, chunks)
    and `links`; returns the number of entries in both.
    """

def refine_colours(
    src: Ranks,
    dst: Ranks,
    link_class: Ranks,
    sources: Ranks,
    weights: Ints,
    rows: Matrix[np.uint64],
    capacities: Words,
    next_rows: Matrix[np.uint64],
    next_capacities: Words,
) -> None:
    """Write new colours, computed from `rows` and `capacities`, to `next_rows` and `next_capacities`.

    The new colour of a node or a class of links combines the old colour with the colours of the links.
    """

class ColourTable:
    """Numbers colours 0, 1, 2, … in order of first appearance."""

    def number(self, colours: Words) -> Ranks: ...
    @property
    def count(self) -> int: ...

# bfb.cpp

def least_loads(first: int, last: int, problems: Problems, steps: int) -> tuple[Ints, Ints, Ints, Matrix[np.uint64]]:
    """Return the largest load of each step over nodes `first` to `last` - 1, and the links that cause it.

    Returns:
        (p, q, node, links) per step: the load p / q in lowest terms, a node with this load, and its critical links.
        These need exactly p / q ticks to carry the shards that no other links can bring. q = 0 if nothing arrives in
        the step.
    """

def integral_chunk_times(
    first: int, last: int, problems: Problems, chunks: int, least_top: Ints, least_bottom: Ints
) -> tuple[Ints, Ints, Ints, Matrix[np.uint64]]:
    """Return the minimum time of each step for nodes `first` to `last` - 1, if chunks cannot be divided.

    Shards are cut into `chunks` equal chunks. A link of capacity c and delay a carries floor(c * (time - a) / grain)
    chunks, or none if time < a.

    Args:
        least_top, least_bottom: Numerator and denominator of a lower bound on each step's time, in ticks of a chunk.

    Returns:
        (p, q, node, links) per step: the time p / q, and the node and its links that need more time than the lower
        bound; the node is -1 if there is none.
    """

def assign_chunks(
    first: int, last: int, problems: Problems, chunks: int, top: Ints, bottom: Ints
) -> tuple[Ranks, Ranks]:
    """Assign every chunk that nodes `first` to `last - 1` receive to a link, within time top / bottom per step.

    Returns each row's step, and an array with each row's link, shard, lo and hi. Rows are ordered by node, step
    and shard. Raises ValueError if a step's chunks do not fit into its time.
    """

# bounds.cpp

def violated_cuts(
    graph: ResidualGraph, capacity: Ints, supply: Ints, sinks: Flags, settled: Flags, cuts: Matrix[np.bool_]
) -> int:
    """Test the cuts around every node in `sinks`; return the number of violated cuts, at most `len(cuts)`.

    All amounts and their sums must be below `LARGEST_AMOUNT`. O(sinks * flow), usually far less.

    Args:
        capacity: Each half-arc's capacity.
        supply: Per node, the number of trees that still have to leave it.
        sinks: Flags of the nodes that every tree must reach.
        settled: Flags of the sinks that need no further test; updated. If the last violated cut fills `cuts`, the
            flag of its sink is not set, so that the sink can be tested again after a repair.
        cuts: [rows, nodes]; row i receives the sink side T of the i-th violated cut: capacity into T is less than the
            supply outside T. T is the smallest such set for its sink.
    """

# finder.cpp

def loads_of_low_diameter(tails: Matrix[np.int32], chosen: Ints, max_steps: int) -> tuple[Ints, Ints]:
    """Return each step's BFB load, up to `max_steps`, as p / q in shards per link of capacity 1.

    tails:  [N, degree], tails of the in-links of every node; degree <= 8
    chosen: at least one node from every orbit

    A step's load is the largest n(S) / |S| over chosen nodes and sets S of in-links; n(S) counts the arriving shards
    that only S brings (full paper, theorem 19). A shard arrives at a node that does not have it yet, and a link brings
    it if the link's tail has it. Nodes whose load is clearly below the largest are skipped. Memory: N^2 / 4 bytes.
    Time: O(diameter * degree * N * N / 64); for nodes that are not skipped, 2^degree replaces degree.
    """

def best_generators(
    right: Matrix[np.int32], degree: int, two_way: bool, max_steps: int, trials: int, seed: int
) -> tuple[Ints, Matrix[np.int32]]:
    """Try `trials` random generator sets; return the minimum total load for each number of steps, with its generators.

    The same seed gives the same result. O(trials * N * degree), and O(steps * degree * 2^degree) for each graph that
    may beat the best one with the same number of steps.

    Args:
        right: Result of `chorale.synth.finder.cayley_search.multiplication_table`, [N, N].

    Returns:
        For each number of steps, the load as a multiple of 1 / `LOAD_UNIT` (`NO_LOAD` if no graph was found), as
        int64[max_steps + 1], and the generators, as int32[max_steps + 1, degree].
    """

# forest.cpp

def in_arc_shares(
    tails: Ranks, left: Ints, needs: Ints, hops: Matrix[np.uint16], node: int, first_arc: int, beside: bool
) -> tuple[Ranks, Ranks, Ints, Ints]:
    """Assign the trees that `node` must receive to its incoming arcs; return the columns of `InArcShares`, by root.

    left:  capacity of each incoming arc; reduced by the trees that are assigned to it
    needs: per root, the number of trees that the node must receive; reduced by those that are assigned
    """

def enter_blocks(
    k: int,
    network: tuple[Ints, Ranks, Ranks, int],
    roots: Ranks,
    ranks: Matrix[np.int32],
    capacities: tuple[Ints, Ints, Ranks],
) -> tuple[Ranks, Ints, Ranks]:
    """Choose the rank at which each root's data enters each block except the first, and the links to this rank.

    Args:
        k: trees per root.
        network: links, grouped by the node into which they lead: offsets per node, then source and length per link;
            then the number of ranks.
        ranks: [positions, blocks], the ranks of each block.
        capacities: for each orbit of links, the number of trees that a link can still carry (updated), and the number
            of images of one use that share a link; for each link, its orbit.

    Returns:
        Per root and block, the rank at which data enters; offsets of the paths to these ranks; links of the paths. The
        arrays are shorter if there is no capacity left for an entry.
    """

# lowering.cpp

def timetable(
    moves: tuple[Ints, Ints, Ints, Ranks, Ints], visits: Visits, latest_first: Ints, priority: Ints
) -> tuple[Ints, Ints]:
    """Return each row's start, and the number of its time interval. No row waits for another row in its interval.

    A free link starts the ready row with the lowest `priority`; if there are several, the one with the longest chain of
    rows that wait for it. The other links of a route send rows in order of arrival, because switches can buffer them.
    Times are integers below 2^53. O(visits + links of rows + rows * log(rows)).

    latest_first: all rows, ordered so that each row comes before the rows that it waits for
    """

def dependences(src: Ints, dst: Ints, count: Ints, cells: int) -> tuple[Ints, Ints]:
    """Return, for each instruction of a rank, the earlier instructions on which it depends.

    An instruction depends on an earlier one if it reads or writes a cell that the earlier one wrote, or writes a cell
    that it read. O(cells touched * log(dependences of an instruction)).

    Args:
        src, dst: First cell that each instruction reads and writes, -1 for none, in execution order.
        count: Number of cells.
        cells: Number of the rank's cells.

    Returns:
        (offsets, earlier): instruction i depends on earlier[offsets[i]:offsets[i + 1]], latest first.
    """

def is_needed(src: Ints, dst: Ints, count: Ints, needed_cells: Flags) -> Flags:
    """Return, for each instruction, whether a cell that it writes is read later or is one of `needed_cells`."""

def necessary_waits(src: Ints, dst: Ints, count: Ints, cells: int, block: Ints, blocks: int) -> tuple[Ints, Ints]:
    """Return those `dependences` that require a wait, in the form in which `dependences` returns them.

    O(dependences + (instructions on which others depend) * blocks).

    block: each instruction's block
    """

# programs.cpp

def execute(
    code: Code, longest: Ints, identity: Ints, members: Matrix[np.uint64], conditions: tuple[int, int, int]
) -> tuple[Ints, Matrix[np.uint64], Matrix[np.int64], Matrix[np.int64], Ints]:
    """Execute a program until all blocks have finished, no block can continue, or a fault is found.

    A block runs at the start, and again whenever a block that it may be waiting for has made progress. O(messages *
    blocks that wait for one another).

    Args:
        longest: Number of chunks in each connection's longest send.
        conditions: (messages that a connection holds, chunks per message, clocks that order accesses).
        identity, members: Initial `ChunkValues` of all ranks' memory.

    Returns:
        identity and members of the memory, then of two more cells: after a wrong sum, the sum and the value added to
        it;
        int64[blocks, 2]: the next instruction and how many of its chunks are done;
        int64[connections, 4]: first cell of the queue, cells of a slot, messages sent and received;
        int64[3]: kind of the fault (0: none), its block, and for a race the other block.
    """

# rails.cpp

def add_piece_loads(
    source: Ranks, target: Ranks, sender: Ranks, receiver: Ranks, amount: Ints, loads: RailLoads
) -> None:
    """Add the loads of pieces, whose paths `chorale.synth.methods.traffic.two_level.Pieces` describes. O(pieces)."""

def relieved(
    source: Ranks,
    target: Ranks,
    sender: Ranks,
    receiver: Ranks,
    amount: Ints,
    members: Matrix[np.int32],
    place: Ranks,
    rail: Ranks,
    lanes: Matrix[np.int64],
    nics: Matrix[np.int64],
    has_switch: bool,
    limit: float,
    rounds: int,
) -> tuple[Ranks, Ranks, Ranks, Ranks, Ints]:
    """Move parts of pieces to other paths until no lane or NIC carries more than `limit` * width, or this gains little.

    Deterministic. O(pieces * rounds), and O(places + some boxes) for each piece that is moved.

    Returns:
        Columns of the pieces: source, target, sender, receiver, amount.
    """

def split_over_rails(
    amounts: Matrix[np.int64], members: Matrix[np.int32], widths: Matrix[np.float64], own: Matrix[np.float64]
) -> tuple[Ranks, Ranks, Ranks, Ranks, Ints]:
    """Split amounts into pieces so that the NICs between any two boxes are evenly busy.

    Ranks send as much over their own NICs as an even load permits; NICs of senders are chosen before those of
    receivers. O(ranks^2); at most O(boxes^2 * places) additional pieces.

    Args:
        members: int32[boxes, places], the ranks of each box.
        widths: float64[2, ranks], bandwidths of the NICs out and in.
        own: float64[2, ranks], fraction of the data sent (received) by each rank that must use the rank's own NIC.

    Returns:
        Columns of the pieces: source, target, sender, receiver, amount.
    """

# simulation.cpp

class FlowSimulation:
    """Simulates messages and gates, which wait for events (see `chorale.synth.simulation.simulate.MessageGraph`).

    amount:  each message's size, in units of capacity * seconds
    latency_s: latency of each message's route
    link_ids: message m uses `link_ids[first[m] : first[m] + hops[m]]`
    targets: `targets[offsets[e] : offsets[e + 1]]` wait for event e
    needs:   number of events that each gate waits for
    """

    def __init__(
        self,
        amount: Reals,
        latency_s: Reals,
        alpha_s: float,
        link_ids: Ranks,
        first: Ints,
        hops: Ranks,
        capacity: Reals,
        offsets: Ints,
        targets: Ranks,
        needs: Ranks,
    ) -> None: ...
    def advance(self, moments: int) -> bool:
        """Process the events of the next `moments` points in time; return whether events remain."""

    @property
    def arrived(self) -> int: ...
    @property
    def opened_at_s(self) -> Reals: ...
    @property
    def arrived_at_s(self) -> Reals: ...

# splitting.cpp

def propose(
    groups: SwitchGroups,
    src: Ranks,
    dst: Ranks,
    capacity: Ints,
    cuts: tuple[Matrix[np.uint64], Ints],
    aligned: bool,
    returns: bool,
) -> tuple[Ints, Ints, Ints]:
    """Return the columns of `Splits` through the `groups` that keep the slack of each cut in `cuts` at least 0.

    O(ports of a group ^ 2 + splits * degrees along their paths).

    aligned: whether to join ports at the same position of different clusters first
    returns: whether remaining capacity may be discarded by pairing an arc with the arc back to its origin
    """

def join_pieces(
    pieces: PathPieces, left: Ints, splits: Splits, src: Ranks, dst: Ranks, nodes: int
) -> tuple[Ints, Ints, Ints, Ints, Ranks]:
    """Return the new pieces that result from `splits`. Subtract their units from `left`, the units left of each piece.

    Returns:
        For each piece, its split, amount, start and length; then the hops of old and new pieces.
    """

def pieces_over_links(
    pieces: PathPieces, link_offsets: Ints, links: Ranks, room: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ranks]:
    """Return the columns of `pieces` with arcs replaced by links. An arc fills its parallel links in order."""

# topology.cpp

def search_from(
    offsets: Ints, neighbours: Ranks, starts: Ints, unreached: int, distances: Matrix[np.uint16] | Matrix[np.uint32]
) -> None:
    """Fill `distances[i]` with the number of hops from `starts[i]` to each node; unreachable nodes keep `unreached`."""

def refine_cells(links: MarkedLinks, cells: OrderedCells, first: int, trace: Words, follows: bool) -> int:
    """Refine `cells` in place; return the number of steps, or -1 if a step differs from `trace`.

    O(links * log nodes) for all refinements of a partition until every cell is a single node.

    first:   cell that splits the others at the start; -1 for all cells
    trace:   a digest of each step. If `follows` is false, it is written. Otherwise, it comes from refining another copy
             of the network, and this refinement ends at the first step whose digest differs.
    """

# trees.cpp

def cut_slacks(cuts: int, members: Matrix[np.uint64], tails: Ranks, heads: Ranks, capacity: Ints, supply: Ints) -> Ints:
    """Return each cut's capacity out of its source side minus the supply inside it. O(arcs * words + crossings)."""

def feasible_trees(
    members: Matrix[np.uint64], slack: Ints, tails: Ranks, root: Ranks, weight: Ints, parent_arc: Matrix[np.int32]
) -> int:
    """Return how many of the trees, in order, can be kept before the slack of a given cut would become negative.

    slack: slack of each cut before the first tree (read only). O(trees * nodes * words + crossings).
    """

def feasible_arcs(
    members: Matrix[np.uint64], slack: Ints, tails: Ranks, heads: Ranks, path: Ranks, root: int, weight: int
) -> int:
    """Return how many arcs of a growing tree, in order, can be added before a cut's slack would become negative."""

def grow_trees(
    arcs: ArcTable, room: ResidualNetwork, roots: Ranks, root: Ranks, weight: Ints, parent_arc: Matrix[np.int32]
) -> int:
    """Grow trees from `roots` in order until their supply is used up, the table is full or a tree cannot grow.

    Row i of the table (root, weight, parent_arc[i]) receives the i-th tree, and `room` the remaining capacity. Returns
    the number of trees. The trees respect all known cuts but may violate others. O(trees * arcs), usually less.
    """

def continue_tree(
    arcs: ArcTable, room: ResidualNetwork, root: int, weight: int, path: Ranks, order: Ranks, parent: Ranks
) -> tuple[int, int]:
    """Continue a tree of `root` that already has the arcs in `path`, in the order in which they were added.

    Writes the nodes to `order`, in the order in which they are reached, and their incoming arcs to `parent`. Returns
    (weight, number of nodes reached); if this is not the number of all nodes, the tree could not be completed. `room`
    is not changed.
    """

def grow_rooted_trees(arcs: ArcTable, capacity: Ints, root: int, parent_arc: Matrix[np.int32]) -> bool:
    """Write one root's trees to `parent_arc`; subtract their units from `capacity`. Return whether all are complete."""

def tree_heights(root: Ranks, parent_arc: Matrix[np.int32], src: Ranks, heights: Ranks) -> None:
    """Write each tree's height to `heights`."""

def send_trees(
    roots: Ranks,
    weights: Ints,
    parent_arc: Matrix[np.int32],
    first: Ints,
    src: Ranks,
    path_offsets: Ints,
    path_amounts: Ints,
) -> tuple[Ranks, Ranks, Ranks, Ranks, Ranks]:
    """Return depth, path, root, lo and hi of all trees' rows, node by node. Each arc uses its paths in order."""

def mend(
    old: tuple[Ints, Ranks, Ranks, Ints, Ints],
    old_units: int,
    arcs: tuple[Ints, Ranks, Matrix[np.int32]],
    supply: Ints,
    left: Ints,
) -> tuple[Ranks, Ints, Matrix[np.int32]]:
    """Return (root, weight, parent_arc) of the repaired trees. Subtracts the capacity that they use from `left`."""

# verify.cpp

def record_rows(
    rows: Matrix[np.int32], first: int, last: int, offsets: Ints, ranks: int, tables: ActorTables
) -> tuple[int, int, int]:
    """Record the effects of the rows of shards `first` to `last - 1` in `tables`.

    rows: [7, rows] as in `chorale.synth.verify.replay`, with actors (ranks and switches that add or copy) as ends

    Returns:
        (number of repeated deliveries of cells to ranks, a fault or 0, the row of the fault)
    """

def settle_actors(
    ends: Ranks, size: Ints, ranks: int, can_add: Flags, sums: Ints, tables: ActorTables
) -> tuple[int, int, int]:
    """Find the actor where each sum is completed, and write the completion step to `arrival`.

    ends: for each cell, the rank that must hold the sum, or -1 for any actor
    size: chunks per cell; empty if each cell is one chunk
    sums: for each switch, the number of chunks for which it adds several inputs; increased

    Returns:
        (a fault or 0, its actor, its cell)
    """

def check_actors(
    rows: Matrix[np.int32], first: int, last: int, offsets: Ints, ranks: int, tables: ActorTables
) -> tuple[int, int]:
    """Check that ranks send only what has arrived, that sent sums are complete, and that switches send immediately.

    Returns:
        (a fault or 0, its row)
    """

def check_copies(ranks: int, can_copy: Flags, tables: ActorTables) -> tuple[int, int, int]:
    """Check that switches forward only a rank's data or a sum, and that only multicast switches have several receivers.

    Returns:
        (a fault or 0, its actor, its cell)
    """

def longest_paths(
    rows: Matrix[np.int32],
    latency: Ints,
    first: int,
    last: int,
    offsets: Ints,
    ranks: int,
    upward: Matrix[np.int64],
    downward: Matrix[np.int64],
    of_step: Ints,
) -> bool:
    """Add up latencies through switches within steps. Call this until it returns False: once per switch in a chain.

    latency: latency of each row
    upward, downward: latest arrival of the inputs, and of the result, for each switch and cell; updated
    of_step: latency of the longest path between ranks in each step; updated
    """

def replay_step(rows: Matrix[np.int32], held: Table[np.uint64]) -> tuple[int, int, int]:
    """Apply a step's rows (src, dst, first cell, end cell, reduce) to `held`, [ranks, cells, words].

    Returns:
        Three row numbers, each -1 if there is no such row: a row that sends a chunk that its sender does not have, a
        row that adds to a missing chunk, and a row that adds a contribution twice.
    """
