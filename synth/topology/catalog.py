"""All families and functions of topology specs, by name."""

from __future__ import annotations

from synth.topology import functions
from synth.topology.families import complete, grids, rings
from synth.topology.registry import Entry, Family, Function

FAMILIES: dict[str, Family] = {family.name: family for family in (*rings.FAMILIES, *grids.FAMILIES, *complete.FAMILIES)}
FUNCTIONS: dict[str, Function] = {function.name: function for function in functions.FUNCTIONS}
FILE_ENTRY = Entry(
    "file", "file:PATH", "file:fabric.json", "a network in JSON (chorale-topology/1) or GraphML, told by its content"
)
