"""Lists algorithms with a closed form, which make a schedule or, on very large networks, compute only its traffic.

Also makes double binary trees: each of two trees carries half of the data, and no rank is an inner node of both trees.

Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
"""

import importlib
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName, require_collective
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import SubCollective, backwards, whole_vector_step
from chorale.synth.methods.method import Method, SynthesisTask
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.topology.families.grids import double_tree_parents
from chorale.synth.topology.topology import Topology


def tree_depths(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64 per node: its number of hops to the root. O(nodes * height)."""
    depth = np.zeros(len(parent), dtype=np.int64)
    ancestor = parent
    while (below := ancestor >= 0).any():
        depth += below
        ancestor = np.where(below, parent[ancestor], -1)
    return depth


def double_binary_tree(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return the pipelined pattern of allreduce, broadcast or reduce on the two trees of dbt:N.

    An allreduce adds data on the way up to each tree's root and copies the sums back down, in 2 * height steps. For
    broadcast and reduce, ranks are rotated so that the collective's root is the root of the first tree. In the second
    tree, the same rank is a leaf, so it is moved to the top and becomes the parent of the previous root. On networks
    other than dbt:N, data take shortest routes.
    """
    ranks = topology.compute_count
    parents = double_tree_parents(ranks)
    if collective.root is not None:
        above = np.where(parents[1] < 0, 0, parents[1])
        above[0] = -1
        parents = (parents[0], above)
        parents = (_turned(parents[0], collective.root), _turned(parents[1], collective.root))
    height = int(max(tree_depths(parent).max() for parent in parents))
    parts = tuple(_subcollective(parent, height, collective) for parent in parents)
    return CollectivePattern(topology, collective, "double-binary-tree", {}, parts, kind="pipelined")


def _subcollective(parent: NDArray[np.int64], height: int, collective: Collective) -> SubCollective:
    """Return the steps of `collective` on one tree. In a reduction, a rank sends after all its descendants have sent.

    parent: int64[N], each rank's parent, -1 for the root
    height: number of steps
    """
    depth = tree_depths(parent)

    def ends(distance: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        src = np.flatnonzero(depth == distance)
        return src, parent[src]

    tree = [whole_vector_step(partial(ends, distance), len(parent), distance) for distance in range(height, 0, -1)]
    parts: dict[CollectiveName, SubCollective] = {
        CollectiveName.ALLREDUCE: [*tree, *backwards(tree)],
        CollectiveName.BROADCAST: backwards(tree),
        CollectiveName.REDUCE: tree,
    }
    require_collective("double-binary-tree", collective, parts)
    return parts[collective.name]


def _turned(parent: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """Renumber a tree's ranks: rank (r + by) modulo N takes the place of rank r."""
    moved = np.where(parent < 0, -1, (parent + by) % len(parent))
    return np.roll(moved, by)


_SCATTERED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE)
_ROOTED = (CollectiveName.BROADCAST, CollectiveName.REDUCE)
_WHOLE = (CollectiveName.ALLREDUCE, *_ROOTED)


class Algorithm(Method):
    """An algorithm with a closed form, implemented by `function` in the module `module` of this package.

    variant: keyword arguments for `function` that select a variant of the algorithm
    """

    def __init__(
        self,
        name: str,
        summary: str,
        collectives: tuple[CollectiveName, ...],
        module: str,
        function: str,
        **variant: bool,
    ) -> None:
        super().__init__(name, summary, collectives, ("chunks",))
        self._module, self._function, self._variant = module, function, variant

    def pattern(self, topology: Topology, collective: Collective) -> CollectivePattern:
        """Return the algorithm's communication pattern. Raises InvalidInput if the topology is not suitable."""
        make = getattr(importlib.import_module(f".{self._module}", __package__), self._function)
        pattern: CollectivePattern = make(topology, collective, **self._variant)
        return pattern

    def make(self, task: SynthesisTask) -> AnySchedule:
        return self.pattern(task.topology, task.collective).schedule(task.options.chunks)


_ALL = (
    Algorithm(
        "ring", "one ring through all ranks, in one direction; on boxes of GPUs, one ring per network port",
        _SCATTERED, "rings", "ring",
    ),
    Algorithm(
        "biring", "one ring through all ranks, half of the data in each direction", _SCATTERED,
        "rings", "ring", bidirectional=True,
    ),
    Algorithm(
        "swing", "Swing, bandwidth-optimal, on grids of any sizes", (*_SCATTERED, *_ROOTED), "grid.algorithms", "swing"
    ),
    Algorithm("swing-latency", "Swing with complete vectors, log2 N steps", _WHOLE, "grid.algorithms", "swing_latency"),
    Algorithm(
        "hamiltonian-ring", "rings along edge-disjoint cycles, on all ports", _SCATTERED,
        "rings", "hamiltonian_ring",
    ),
    Algorithm("bfb-ring", "the same rings, both ways to meet half-way", _SCATTERED, "rings", "bfb_ring"),
    Algorithm(
        "bucket", "rings along one dimension after the other, on all ports in lockstep", _SCATTERED,
        "grid.algorithms", "bucket",
    ),
    Algorithm(
        "traditional-torus", "bucket whose ports do not wait for each other", _SCATTERED,
        "grid.algorithms", "bucket", synchronised=False,
    ),
    Algorithm(
        "recursive-doubling", "exchange of complete vectors, on one port", _WHOLE,
        "grid.algorithms", "recursive_doubling",
    ),
    Algorithm(
        "mirrored-recursive-doubling", "recursive doubling, mirrored onto all ports", _WHOLE,
        "grid.algorithms", "recursive_doubling", all_ports=True,
    ),
    Algorithm(
        "rabenseifner", "recursive halving and doubling, on one port", (*_SCATTERED, *_ROOTED),
        "grid.algorithms", "rabenseifner",
    ),
    Algorithm(
        "mirrored-rabenseifner", "rabenseifner, mirrored onto all ports", (*_SCATTERED, *_ROOTED),
        "grid.algorithms", "rabenseifner", all_ports=True,
    ),
    Algorithm(
        "double-binary-tree", "two trees, each with half of the data, pipelined", _WHOLE,
        "closed_forms", "double_binary_tree",
    ),
)  # fmt: skip

ALGORITHMS: Mapping[str, Algorithm] = {algorithm.name: algorithm for algorithm in _ALL}
"""All algorithms with a closed form, indexed by name."""
