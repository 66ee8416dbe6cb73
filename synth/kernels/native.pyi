"""Kernels written in C++, grouped by source file in `cpp`.

Arrays must have exactly the stated types and numbers of axes, and be contiguous in the last axis; otherwise a TypeError
says what is expected. Arrays that a kernel writes must not be read-only. Kernels release the interpreter lock. Indices
are not checked, unless the extension is built with CXXFLAGS=-DCHORALE_CHECK_BOUNDS; then IndexError is raised.
"""

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import ResidualGraph
from chorale.synth.kernels.types import Matrix, Table
from chorale.synth.lowering.fragments import Fragments, Messages
from chorale.synth.lowering.fusion import UnscheduledOps
from chorale.synth.lowering.placement import Cells
from chorale.synth.lowering.rank_programs import MemoryBases
from chorale.synth.lowering.timetable import Moves, Visits
from chorale.synth.methods.alltoall.price_descent import PricedNetwork
from chorale.synth.methods.bfb.plan import Problems
from chorale.synth.methods.forest.layered import InArcShares
from chorale.synth.methods.forest.packing import ArcTable, ResidualNetwork
from chorale.synth.methods.forest.split.splitting_off import CutTable, PathPieces, Splits
from chorale.synth.methods.forest.split.switch_groups import SwitchGroups
from chorale.synth.methods.forest.warm_start import _ArcIndex, _OldEdges
from chorale.synth.methods.traffic.fabric import RailLoads
from chorale.synth.programs.flat_program import Code, RunConditions
from chorale.synth.topology.symmetry_search import MarkedLinks, OrderedCells
from chorale.synth.verify.replay import ActorTables

Ints = NDArray[np.int64]
Ranks = NDArray[np.int32]
Reals = NDArray[np.float64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

SOURCES: str
"""`sources_id` of the C++ files that this was built from."""

# alltoall.cpp

def cancel_cycles(outgoing: Ints, outgoing_links: Ranks, src: Ranks, dst: Ranks, least: float, flow: Reals) -> None:
    """Lower `flow`, per link, until the links with more than `least` form no cycle.

    What arrives at a node minus what leaves it stays as it was. Depth-first search; each cycle found loses its
    smallest flow, so at most one search step back per link. O(links * longest path) at worst, O(links) without cycles.
    """

def add_priced_loads(
    network: PricedNetwork,
    sources: Ranks,
    weights: Ints,
    prices: Reals,
    width: float,
    temperature: float,
    units: int,
    loads: Ints,
) -> tuple[float, float]:
    """Add the loads of the flows from `sources`, times `weights`, to `loads`, per link: exact, in whole units.

    prices: per link, above 0, by head;  units: how many each unit of demand is. Returns the sums over all units of
    demand of the distance and of the smoothed one, -temperature * log(sum over paths of exp(-price / temperature)),
    whose slopes by price are the loads, up to rounding. O(links + nodes * bucket searches) per source.
    """

def price_distances(
    outgoing: Ints, outgoing_links: Ranks, dst: Ranks, prices: Reals, sources: Ranks, distances: Matrix[np.float64]
) -> None:
    """Fill `distances`, [sources, nodes]. O(sources * links * log(links))."""

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
    """Write to `whole`, [sources, links], flows that deliver `units` times the demand, close to `flows`.

    debt: per link, what rounding took from it so far; updated
    """

def peel(
    incoming: Ints, src: Ranks, demand: Ints, source: int, units: int, flow: Ints, rows: Matrix[np.int64], links: Ranks
) -> tuple[int, int]:
    """Walk back from every rank along the widest links that are left, until its `units` are all explained.

    Fills `rows` (start in `links`, target, first chunk, chunks) and `links`; returns how much of both.
    """

def column_colours(
    src: Ranks, dst: Ranks, link_class: Ranks, rows: Matrix[np.uint64], capacities: Words, colours: Matrix[np.uint64]
) -> None:
    """Write to `colours`, [sources, links], the colours of the columns of the linear program."""

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
    """Give each row a colour made of its own and the sum over its columns; sums do not depend on the order."""

class ColourTable:
    """Numbers colours 0, 1, 2, … in the order in which they are first seen. `expected`: about how many will come."""

    def __init__(self, expected: int) -> None: ...
    def number(self, colours: Words) -> Ranks: ...
    @property
    def count(self) -> int: ...

# bfb.cpp

def least_loads(first: int, last: int, problems: Problems, steps: int) -> tuple[Ints, Ints, Ints, Matrix[np.uint64]]:
    """Solve the problems of nodes `first` to `last - 1`: the largest U(u, t) of each step and why.

    Returns (p, q, node, links), rows by step: max over the block's nodes of U(u, t) = p / q in lowest terms,
    the node that attains it and its critical link set S, so that S has carried n(S) shards at p / q ticks and not
    before. q = 0: nothing arrives.
    """

def integral_chunk_times(
    first: int, last: int, problems: Problems, chunks: int, least_top: Ints, least_bottom: Ints
) -> tuple[Ints, Ints, Ints, Matrix[np.uint64]]:
    """Return (p, q, node, links) per step: the least time p / q >= the given one that lets all nodes finish it.

    `node` and `links` say which problem made the time longer than the given one (-1: none did). Shards are cut
    into `chunks` equal chunks and a link of capacity c and delay a carries floor(c * (time - a) / grain) whole
    chunks, if its delay is over; the given time (in ticks of a chunk) is a lower bound to start from.
    """

def assign_chunks(
    first: int, last: int, problems: Problems, chunks: int, top: Ints, bottom: Ints
) -> tuple[Ranks, Ranks]:
    """Assign every chunk that nodes `first` to `last - 1` receive to a link, within time top / bottom per step.

    Returns the step of each row, and link, shard, lo and hi of each row one after the other, ordered by node, step and
    shard. Raises ValueError if a step does not fit its time.
    """

# bounds.cpp

def violated_cuts(
    graph: ResidualGraph, capacity: Ints, supply: Ints, sinks: Flags, settled: Flags, cuts: Matrix[np.bool_]
) -> int:
    """Test the cuts around every one of `sinks`; return how many were found violated, at most `len(cuts)`.

    capacity: per half-arc;  supply: per node, trees that still have to leave it
    sinks:    flags of the nodes that every tree must reach
    settled:  flags of sinks around which all cuts are known to hold; those that pass are added. A sink whose cut
              is violated is added too, unless it fills the table: then the call may be repeated after a repair.
    cuts:     [rows, nodes], row i receives the sink side T of the i-th violated cut: capacity into T is less
              than the supply outside T. It is the smallest such T of its sink.

    All amounts must be below `LARGEST_AMOUNT`, sums included. O(sinks * flow), mostly far less.
    """

# finder.cpp

def loads_of_low_diameter(tails: Matrix[np.int32], chosen: Ints, max_steps: int) -> tuple[Ints, Ints]:
    """Return the BFB load of every step as p / q, in shards per link of capacity 1; nothing beyond `max_steps`.

    tails: [N, degree], tails of the in-links of every node; degree <= 8. `chosen`: at least one node of every orbit.
    The load of a step is the largest n(S) / |S| over chosen nodes and sets S of in-links; n(S) counts the shards that
    arrive and that only S brings (full paper, theorem 19). A shard arrives if it has not been heard before, and link k
    brings it if its tail has heard it. A node that can split what arrives over its links without taking longer than
    another one is passed over. N^2 / 4 bytes, and time O(diameter * degree * N * N / 64), 2^degree in place of degree
    for the others.
    """

def best_generators(
    right: Matrix[np.int32], degree: int, two_way: bool, max_steps: int, trials: int, seed: int
) -> tuple[Ints, Matrix[np.int32]]:
    """Try `trials` random generator sets; return the least total load for each number of steps, and who reaches it.

    right: [N, N] of `chorale.synth.finder.cayley_search.multiplication_table`. Returns [max_steps + 1] in parts of
    `LOAD_UNIT` (`NO_LOAD` where there is no graph) and [max_steps + 1, degree]. The same seed gives the same result. A
    graph whose load cannot beat one with as few steps is not evaluated further. O(trials * N * degree), and
    O(steps * degree * 2^degree) for those that are.
    """

def kautz_loads(degree: int, nodes: int, common: int) -> tuple[Ints, Ints]:
    """Return the BFB load of every step of genkautz:degree,nodes as p / q, in shards per link of capacity 1.

    common: the greatest common divisor of degree and nodes; 2 <= degree < nodes. Equal to `loads_of_low_diameter` of
    the built network. Below the largest number of steps T every node arrives over one link; in step T over up to
    degree. O(nodes * (T^2 + degree * 2^degree)) time, O(nodes * T) memory.
    """

# forest.cpp

def in_arc_shares(
    tails: Ranks, left: Ints, needs: Ints, hops: Matrix[np.uint16], node: int, first_arc: int, beside: bool
) -> tuple[Ranks, Ranks, Ints, Ints]:
    """Return the columns of `InArcShares`, root after root; `left` and `needs` are lowered by what is placed."""

def fill_trees(shares: InArcShares, first: Ints, end: Ints, node: int, parent_arc: Matrix[np.int32]) -> None:
    """Write what `node` takes into the trees that it covers, [trees, nodes]; the trees of a root follow one another.

    first: per root, its first tree;  end: per tree, the first unit of its root after it
    """

def enter_blocks(
    k: int,
    network: tuple[Ints, Ranks, Ranks, int],
    roots: Ranks,
    ranks: Matrix[np.int32],
    capacities: tuple[Ints, Ints, Ranks],
) -> tuple[Ranks, Ints, Ranks]:
    """Choose where the data of `roots` enter all blocks but the first, and over which links.

    Args:
        k: trees per root.
        network: links by the node they lead into: offsets per node, then source and length per link; number of ranks.
        ranks: [positions, blocks], the ranks of each block.
        capacities: per orbit of links, trees that a link can carry (lowered) and how many images of a use share a
            link; per link, its orbit.

    Returns:
        The rank that is entered per root and block, offsets of the paths to these ranks, links of the paths. The
        arrays end early if an entry does not fit.
    """

# fragments.cpp

def moments(rank: Ranks, step: Ranks, first: Ranks, end: Ranks, result: Matrix[np.int32]) -> None:
    """Write into `result`, [ranks, chunks], the step of the last row that moves a chunk from or to a rank."""

def is_exchange(messages: Messages, cells: Cells, marks: NDArray[np.uint8]) -> bool:
    """Return whether a rank receives into a cell that it also sends. `marks` must be 0 and stay 0. O(chunks moved)."""

def step_fragments(
    messages: Messages, cells: Cells, marks: NDArray[np.uint8], longest: int, across: bool
) -> tuple[Ranks, Ranks, Ranks, Ranks, Ranks]:
    """Return the columns of `StepFragments` of the messages, and update the places in `cells`. O(chunks moved).

    The first chunk that reaches a cell is added to the earlier contents, later ones are added to the sum.

    Args:
        marks: Bits of cells, which must be 0 and stay 0.
        longest: Chunks of a fragment.
        across: Whether a fragment may contain several messages of a connection.
    """

def remaining_times(moves: Moves, visits: Visits, latest_first: Ints) -> Ints:
    """Return for each row the time until everything that waits for it has ended, if links were never shared. O(visits).

    latest_first: all rows, ordered so that each row comes before the rows that it waits for
    """

def start_times(moves: Moves, visits: Visits, row_at: Ints, rank: Ints) -> tuple[Ints, Ints]:
    """Return the start of each row, and the start of the last row that it waits for (-1 if it waits for none).

    A free link takes the ready row of the lowest `rank`; `row_at` is the inverse of `rank`. Further links of a route
    take rows in the order of their arrival, because switches can buffer them. Times are whole numbers below 2^53, which
    the keys of the heap represent exactly. O(visits + links of rows + rows * log(rows)).
    """

def time_stretches(start: Ints, before: Ints, order: Ints) -> Ints:
    """Return the number of the stretch of time of each row. No row waits for another row of its stretch. O(rows).

    order: the rows by their starts
    """

# lowering.cpp

def dependences(src: Ints, dst: Ints, count: Ints, cells: int) -> tuple[Ints, Ints]:
    """Return the earlier instructions that each instruction of a rank depends on.

    An instruction depends on an earlier one if it reads or writes a cell that the earlier one wrote, or writes a cell
    that it read. O(cells touched * log(dependences of an instruction)).

    Args:
        src, dst: First cell that each instruction reads and writes, -1 for none, in the order of execution.
        count: Number of cells.
        cells: Cells of the rank.

    Returns:
        (offsets, earlier): instruction i depends on earlier[offsets[i]:offsets[i + 1]], latest first.
    """

def is_needed(src: Ints, dst: Ints, count: Ints, needed_cells: Flags) -> Flags:
    """Return whether a cell that each instruction writes is read later, or is one of `needed_cells`."""

def ordered_ops(
    fragments: Fragments, sent: Ints, received: Ints, sends_first: bool, extra: int
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, Ints]:
    """Return the columns of the `UnscheduledOps` that send and receive fragments, followed by `extra` empty rows.

    They are in the order of steps and turns. In a turn, exchanged fragments (all with `sends_first`) are sent before
    any is received; otherwise each fragment is sent before it is received. O(instructions * log(those of a step)).

    sent, received: rising numbers of fragments
    """

def columns_of_ops(
    ops: UnscheduledOps, blocks: Ints, block_count: int, memory: MemoryBases
) -> tuple[Ints, Matrix[np.int64], Ints, Ints, Ints]:
    """Return the instructions block by block, with all necessary waits and no redundant ones.

    Args:
        ops: Instructions, in an order in which they could be executed one by one.
        blocks: Block of each instruction.

    Returns:
        First instruction of each block, and the end; rows with op, source buffer and offset, target buffer and offset,
        and chunks; first wait of each instruction, and the end; block and step of each wait.
    """

# programs.cpp

def execute(
    code: Code, longest: Ints, identity: Ints, members: Matrix[np.uint64], conditions: RunConditions
) -> tuple[Ints, Matrix[np.uint64], Matrix[np.int64], Matrix[np.int64], Ints]:
    """Execute a program until all blocks have finished, no block can continue, or a fault is found.

    A block gets a turn at the start, and whenever a block that it may be waiting for has made progress.
    O(messages * blocks that wait for one another).

    Args:
        longest: Chunks of the longest send of each connection.
        identity, members: `ChunkValues` of the memory of all ranks at the start.

    Returns:
        identity and members of the memory, then of two more cells: after a wrong sum, the sum and what was added to it;
        int64[blocks, 2]: the next instruction and how many of its chunks are done;
        int64[connections, 4]: first cell of the queue, cells of a slot, messages sent and received;
        int64[3]: kind of the fault (0: none), its block, and for a race the other block.
    """

# rails.cpp

def add_relayed_loads(
    amounts: Matrix[np.int64], senders: Matrix[np.int32], receivers: Matrix[np.int32], loads: RailLoads
) -> None:
    """Add what amounts load, each over the NIC of one rank in the box of the source and of one in that of the target.

    senders: int32[ranks, ranks], -1 for what stays inside a box. O(ranks^2).
    """

def add_piece_loads(
    source: Ranks, target: Ranks, sender: Ranks, receiver: Ranks, amount: Ints, loads: RailLoads
) -> None:
    """Add what pieces load, each from the NIC of `sender`, -1 inside a box, to that of `receiver`. O(pieces)."""

def split_over_rails(
    amounts: Matrix[np.int64], members: Matrix[np.int32], widths: Matrix[np.float64], own: Matrix[np.float64]
) -> tuple[Ranks, Ranks, Ranks, Ranks, Ints]:
    """Return pieces (source, target, sender, receiver, amount), which keep the NICs between any two boxes evenly busy.

    members: int32[boxes, places], ranks;  widths: float64[2, ranks], of NICs out and in
    own: float64[2, ranks], which part of what a rank sends, and of what it receives, must go over its own NIC
    Ranks keep as much as the level of their NIC allows, senders first. O(ranks^2), O(boxes^2 * places) more pieces.
    """

# simulation.cpp

def largest_loads(
    route: Ranks,
    amount: Ints,
    offsets: Ints,
    link_ids: Ranks,
    link_class: Ranks,
    kind_of_route: Ints,
    loads: Ints,
    worst: Matrix[np.int64],
) -> None:
    """Add up the loads of links, then store the largest that a message meets for each (bandwidth class, kind)."""

class FlowSimulation:
    """Messages and gates that wait for events, see `chorale.synth.simulation.flow_simulation.MessageGraph`.

    amount:  what each message sends, in capacity times seconds;  latency_s: of its route
    message m uses `link_ids[first[m] : first[m] + hops[m]]`; `targets[offsets[e] : offsets[e + 1]]` wait for event e
    needs:   for how many events each gate waits
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
        """Run `moments` moments at which something happens; return whether events remain."""

    @property
    def arrived(self) -> int: ...
    @property
    def opened_at_s(self) -> Reals: ...
    @property
    def arrived_at_s(self) -> Reals: ...

# splitting.cpp

def propose(
    groups: SwitchGroups, src: Ranks, dst: Ranks, capacity: Ints, cuts: CutTable, aligned: bool, returns: bool
) -> tuple[Ints, Ints, Ints]:
    """Return the columns of `Splits` through the `groups` that leave no cut of `cuts` with negative slack.

    aligned: whether ports at the same place of different clusters are to be joined first
    returns: whether what is left may go back to where it came from, which drops it
    O(ports of a group ^ 2 + splits * degrees along their paths).
    """

def join_pieces(
    pieces: PathPieces, left: Ints, splits: Splits, src: Ranks, dst: Ranks, nodes: int
) -> tuple[Ints, Ints, Ints, Ints, Ranks]:
    """Take the units of `splits` from `left` (units per piece); return the pieces that they make.

    Split, amount, start and length per piece, and hops, the old ones and those of the new pieces.
    """

def pieces_over_links(
    pieces: PathPieces, link_offsets: Ints, links: Ranks, room: Ints
) -> tuple[Ints, Ints, Ints, Ints, Ranks]:
    """Return the columns of `pieces` over links; every arc fills its links in order."""

# topology.cpp

def search_from(
    offsets: Ints, neighbours: Ranks, starts: Ints, unreached: int, distances: Matrix[np.uint16] | Matrix[np.uint32]
) -> None:
    """Fill `distances[i]` with the number of hops from `starts[i]` to each node; unreachable nodes keep `unreached`."""

def refine_cells(links: MarkedLinks, cells: OrderedCells, first: int, trace: Words, follows: bool) -> int:
    """Refine `cells` in place; return how many entries of `trace` that took, -1 if it went another way than `trace`.

    first:   the cell that splits others first, the only one to do so for now; -1 for all cells
    trace:   a digest of each step, written; with `follows`, read: the refinement of another copy of the network, which
             ends early where a step differs

    O(links * log nodes) over all refinements of one partition on its way to single nodes.
    """

# trees.cpp

def cut_slacks(cuts: int, members: Matrix[np.uint64], tails: Ranks, heads: Ranks, capacity: Ints, supply: Ints) -> Ints:
    """Return per cut: capacity out of its source side minus supply inside. O(arcs * words) and crossings."""

def feasible_trees(
    members: Matrix[np.uint64], slack: Ints, tails: Ranks, root: Ranks, weight: Ints, parent_arc: Matrix[np.int32]
) -> int:
    """Return how many trees can be taken, in order, until one of the given cuts would get a negative slack.

    slack: slack of each cut before the first tree (read only). O(trees * nodes * words) and crossings.
    """

def feasible_arcs(
    members: Matrix[np.uint64], slack: Ints, tails: Ranks, heads: Ranks, path: Ranks, root: int, weight: int
) -> int:
    """Return how many arcs of one growing tree, taken in order, leave the given cuts a slack of at least 0."""

def grow_trees(
    arcs: ArcTable, room: ResidualNetwork, roots: Ranks, root: Ranks, weight: Ints, parent_arc: Matrix[np.int32]
) -> int:
    """Grow trees from `roots` in their order, until all their supply is used, the table is full or one is stuck.

    Row i of the table (root, weight, parent_arc[i]) receives the i-th tree, and `room` what they leave. Returns
    the number of trees. They keep all known cuts; other cuts may be overdrawn. O(trees * arcs), mostly less.
    """

def continue_tree(
    arcs: ArcTable, room: ResidualNetwork, root: int, weight: int, path: Ranks, order: Ranks, parent: Ranks
) -> tuple[int, int]:
    """Grow one tree of `root` on from the arcs of `path`, which are in the order in which they were reached.

    Writes the nodes in the order in which they are reached, and their arcs. Returns (weight, nodes reached); fewer
    than all if the tree is stuck. `room` is not changed.
    """

def take_trees(root: Ranks, weight: Ints, parent_arc: Matrix[np.int32], capacity: Ints, supply: Ints) -> None:
    """Subtract the capacity and supply that the trees use from `capacity` and `supply`. O(trees * nodes)."""

def grow_rooted_trees(arcs: ArcTable, capacity: Ints, root: int, parent_arc: Matrix[np.int32]) -> bool:
    """Write the trees of one root, which take from `capacity`; return whether all span the network."""

def tree_heights(root: Ranks, parent_arc: Matrix[np.int32], src: Ranks, heights: Ranks) -> None:
    """Write the height of each tree to `heights`."""

def send_trees(
    roots: Ranks,
    weights: Ints,
    parent_arc: Matrix[np.int32],
    first: Ints,
    src: Ranks,
    path_offsets: Ints,
    path_amounts: Ints,
) -> tuple[Ranks, Ranks, Ranks, Ranks, Ranks]:
    """Return depth, path, root, lo and hi of the rows of all trees, each node's in turn; arcs hand out their paths in
    order."""

def mend(
    old: _OldEdges, old_units: int, arcs: _ArcIndex, supply: Ints, left: Ints
) -> tuple[Ranks, Ints, Matrix[np.int32]]:
    """Return (root, weight, parent_arc) of the trees that could be made; `left` is what they leave of the capacity."""

# verify.cpp

def record_rows(
    rows: Matrix[np.int32], first: int, last: int, offsets: Ints, ranks: int, tables: ActorTables
) -> tuple[int, int, int]:
    """Write into `tables` what the rows of shards `first` to `last - 1` do.

    rows: [7, rows] as in `chorale.synth.verify.replay`, with actors in place of ranks

    Returns:
        (duplicate cells at ranks, a fault or 0, its row)
    """

def settle_actors(
    ends: Ranks, size: Ints, ranks: int, can_add: Flags, sums: Ints, tables: ActorTables
) -> tuple[int, int, int]:
    """Find the actor where each sum is completed, and write into `arrival` when.

    ends: per cell, the rank that must hold the sum, or -1 for any actor
    size: chunks per cell; empty if all have one
    sums: per switch, chunks of sums of several inputs; increased by those that it makes

    Returns:
        (a fault or 0, its actor, its cell)
    """

def check_actors(
    rows: Matrix[np.int32], first: int, last: int, offsets: Ints, ranks: int, tables: ActorTables
) -> tuple[int, int]:
    """Check that ranks send only what has arrived, that sums are not sent too early, and that switches do not wait.

    Returns:
        (a fault or 0, its row)
    """

def check_copies(ranks: int, can_copy: Flags, tables: ActorTables) -> tuple[int, int, int]:
    """Check that switches send results on, to several receivers only if they multicast, from a rank or a sum.

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
    """Add up latencies through switches within steps. Call it until it returns False, once per switch in a chain.

    latency: per row
    upward, downward: per switch and cell, latest arrival of its inputs, and of the result; updated
    of_step: per step, the longest path between ranks; updated
    """

def add_loads(
    step: Ranks, route: Ranks, chunks: Ranks, offsets: Ints, link_ids: Ranks, loads: Matrix[np.int64]
) -> None:
    """Add the chunks of every row to `loads[step, link]` for every link of its route. O(hops)."""

def replay_step(rows: Matrix[np.int32], held: Table[np.uint64]) -> tuple[int, int, int]:
    """Apply the rows of a step (src, dst, first cell, end cell, reduce) to `held`, [ranks, cells, words].

    Returns:
        A row that sends nothing, one that adds to nothing, and one that adds a contribution twice; -1 for none.
    """
