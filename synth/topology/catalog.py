"""All families and functions of topology specs, by name."""

from __future__ import annotations

from synth.topology import functions
from synth.topology.expansions import plans
from synth.topology.families import (
    baselines,
    bases,
    cayley,
    complete,
    distance_regular,
    grids,
    hamming,
    hammingmesh,
    kautz,
    rings,
    twisted,
)
from synth.topology.registry import Entry, Family, Function

_GROUPS = (rings, grids, twisted, complete, hamming, kautz, bases, cayley, distance_regular, baselines, hammingmesh)

FAMILIES: dict[str, Family] = {family.name: family for group in _GROUPS for family in group.FAMILIES}
FUNCTIONS: dict[str, Function] = {function.name: function for function in (*plans.FUNCTIONS, *functions.FUNCTIONS)}
FILE_ENTRY = Entry(
    "file", "file:PATH", "file:fabric.json", "a network in JSON (chorale-topology/1) or GraphML, told by its content"
)
