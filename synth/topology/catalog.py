"""All families and functions of topology specs, by name."""

from __future__ import annotations

from synth.topology import functions
from synth.topology.expansions import plans
from synth.topology.families import (
    amd_boxes,
    baselines,
    bases,
    cayley,
    complete,
    datacentre,
    distance_regular,
    grids,
    hamming,
    hammingmesh,
    kautz,
    nvidia_boxes,
    rings,
    switch,
    twisted,
)
from synth.topology.registry import Entry, Family, Function

_GROUPS = (
    rings,
    grids,
    twisted,
    complete,
    hamming,
    kautz,
    bases,
    cayley,
    distance_regular,
    baselines,
    hammingmesh,
    switch,
    nvidia_boxes,
    amd_boxes,
    datacentre,
)

FAMILIES: dict[str, Family] = {family.name: family for group in _GROUPS for family in group.FAMILIES}
FUNCTIONS: dict[str, Function] = {function.name: function for function in (*plans.FUNCTIONS, *functions.FUNCTIONS)}
FILE_ENTRY = Entry(
    "file",
    "file:PATH",
    "file:fabric.json",
    "JSON (chorale-topology/1), GraphML, or one box of an NCCL or RCCL dump (XML)",
)
