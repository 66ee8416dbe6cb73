"""The grid that ranks form: its sizes, where the spec of a topology tells them."""

from __future__ import annotations

from math import prod

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.grammar import FamilyCall, FunctionCall, parse_spec
from chorale.synth.topology.registry import fixed_numbers, whole_numbers
from chorale.synth.topology.topology import Topology

_SIZES_ARE_ARGUMENTS = ("torus", "mesh", "hyperx")


def grid_shape(topology: Topology) -> tuple[int, ...]:
    """Return the sizes of the grid in which ranks are numbered, the last dimension fastest; the product is N.

    Known for torus, mesh, hyperx, hypercube, hamming and hxmesh, and for functions of one of them that keep all its
    ranks (`scaled`, `without(…;link=…)`). Everything else counts as one line of ranks. Algorithms on grids are
    right with any shape; a shape that is not the network's only costs time.
    """
    ranks = topology.compute_count
    try:
        sizes = _sizes_of(topology.spec)
    except InvalidInput:
        sizes = ()  # a name that is no spec, as of a network made by a program
    return sizes if sizes and prod(sizes) == ranks else (ranks,)


def _sizes_of(spec: str) -> tuple[int, ...]:
    tree = parse_spec(spec)
    while isinstance(tree, FunctionCall):
        inner = tree.arguments[0]
        if not isinstance(inner, (FamilyCall, FunctionCall)):
            return ()
        tree = inner
    return _sizes_of_family(tree) if isinstance(tree, FamilyCall) else ()


def _sizes_of_family(call: FamilyCall) -> tuple[int, ...]:
    if call.name in _SIZES_ARE_ARGUMENTS:
        return tuple(whole_numbers(call, call.name, separator="x"))
    if call.name == "hypercube":
        return (2,) * fixed_numbers(call, call.name, 1)[0]
    if call.name == "hamming":
        letters, size = fixed_numbers(call, call.name, 2)
        return (size,) * letters
    if call.name == "hxmesh":
        board, _, boards = call.text.partition(",")
        (side,) = whole_numbers(call, call.name, text=board)
        return tuple(side * count for count in whole_numbers(call, call.name, separator="x", text=boards))
    return ()
