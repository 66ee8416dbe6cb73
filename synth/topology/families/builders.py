"""Helpers for topology families: direct-connect networks with links of bandwidth 1, and switched networks in GB/s."""

from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.identity import parse_rational
from chorale.synth.topology.expansions import ranked_topology
from chorale.synth.topology.registry import FamilyCall, require, whole_numbers
from chorale.synth.topology.topology import MAX_NODES, Links, Rates, SwitchAbility, Topology, sorted_links

NodeColumn = NDArray[np.int64]
Arcs = tuple[NodeColumn, NodeColumn]
"""(sources, targets): link i leads from the i-th source to the i-th target."""
NodeGrid = NDArray[np.int64]
"""Node indices arranged in a grid, for example int64[boxes, GPUs per box]."""
MAX_DIMENSIONS = MAX_NODES.bit_length() - 1


def unit_topology(spec: str, node_count: int, arcs: Iterable[Arcs], generators: Iterable[NodeColumn] = ()) -> Topology:
    """Return a network of `node_count` compute nodes in which every arc in `arcs` is a link of bandwidth 1.

    `generators` are known symmetries. If the symmetries of a family include a regular group (in which exactly one
    symmetry maps any given node to any other), `generators` should generate this group.
    """
    src, dst = (np.concatenate(ends) for ends in zip(*arcs, strict=True))
    return ranked_topology(spec, node_count, Links.of_unit_capacity(src, dst), "link", generators)


def bidirectional_arcs(src: NodeColumn, dst: NodeColumn) -> list[Arcs]:
    return [(src, dst), (dst, src)]


class FabricBuilder:
    """Builds a switched network. Compute nodes come first, then the switches in the order in which they are added."""

    def __init__(self, spec: str, compute_ids: Sequence[str]) -> None:
        self.spec = spec
        self.node_ids = list(compute_ids)
        self.compute_count = len(compute_ids)
        self.ends: list[tuple[NodeColumn, NodeColumn]] = []
        self.rates: list[Fraction] = []
        self.abilities: dict[int, SwitchAbility] = {}
        self.moves: list[list[tuple[NodeColumn, NodeColumn]]] = []

    def add_switches(
        self, ids: Iterable[str], shape: tuple[int, ...], ability: SwitchAbility | None = None
    ) -> NodeGrid:
        """Add switches with the given `ids` and ability and return their node indices as an array of `shape`."""
        first = len(self.node_ids)
        self.node_ids += ids
        if ability is not None:
            self.abilities |= dict.fromkeys(range(first, len(self.node_ids)), ability)
        return np.arange(first, len(self.node_ids)).reshape(shape)

    def wire(self, first: NodeGrid, second: NodeGrid, bandwidth: Fraction) -> None:
        """Link nodes at the same position in `first` and `second`, both ways. Shapes are broadcast as in NumPy."""
        self.arc(first, second, bandwidth)
        self.arc(second, first, bandwidth)

    def arc(self, src: NodeGrid, dst: NodeGrid, bandwidth: Fraction) -> None:
        """Link nodes in `src` to those at the same position in `dst`, one way. Shapes are broadcast as in NumPy."""
        tails, heads = np.broadcast_arrays(src, dst)
        self.ends.append((tails.ravel(), heads.ravel()))
        self.rates.append(bandwidth)

    def add_rotation(self, *turned: tuple[NodeGrid, int]) -> None:
        """Add a known symmetry that moves the nodes of each grid by one position along the axis given with the grid.

        The last position moves to the first. Does nothing if all these axes have length 1.
        """
        if any(grid.shape[axis] > 1 for grid, axis in turned):
            self.moves.append([(grid.ravel(), np.roll(grid, -1, axis).ravel()) for grid, axis in turned])

    def topology(self) -> Topology:
        wiring = np.repeat(np.arange(len(self.ends)), [len(src) for src, _ in self.ends])
        src, dst = (np.concatenate(column) for column in zip(*self.ends, strict=True))
        rates = Rates(wiring, self.rates, np.zeros_like(wiring), (Fraction(0),))
        symmetries = [np.arange(len(self.node_ids), dtype=np.int32) for _ in self.moves]
        for symmetry, moved in zip(symmetries, self.moves, strict=True):
            for nodes, images in moved:
                symmetry[nodes] = images
        return Topology(
            spec=self.spec,
            node_ids=tuple(self.node_ids),
            compute_count=self.compute_count,
            links=sorted_links(src, dst, rates),
            bandwidth_unit="GB/s",
            automorphisms=tuple(symmetries),
            abilities=self.abilities,
        )


def grid_ids(*sizes: int) -> list[str]:
    """Return the names of all grid positions in order, such as 0.0, 0.1, 1.0, 1.1."""
    names = [""]
    for size in sizes:
        names = [f"{name}.{index}" if name else str(index) for name in names for index in range(size)]
    return names


def switch_ids(kind: str, *sizes: int) -> list[str]:
    """Return the ids of switches of one kind at all grid positions in order, such as nic:0.0, nic:0.1."""
    return [f"{kind}:{suffix}" for suffix in grid_ids(*sizes)]


def grid_sizes(call: FamilyCall) -> list[int]:
    """Return the sizes in the arguments AxBx… of `call`. Raises InvalidInput for sizes below 2 or too many sizes."""
    sizes = whole_numbers(call, f"{call.name}:AxBx…", separator="x")
    require(min(sizes) >= 2, f"every dimension of {call.name} must be >= 2", call, "leave out dimensions of 1")
    rule = f"{call.name} must have at most {MAX_DIMENSIONS} dimensions"
    require(len(sizes) <= MAX_DIMENSIONS, rule, call, "choose a smaller network")
    return sizes


def positive_bandwidth(text: str, call: FamilyCall, syntax: str) -> Fraction:
    """Parse the argument `text` of `call` as a bandwidth in GB/s. Raises InvalidInput if it is not positive."""
    bandwidth = parse_rational(text, f"the bandwidth of {call.name}")
    require(bandwidth > 0, f"the bandwidth of {call.name} must be positive", call, f"write {syntax}")
    return bandwidth
