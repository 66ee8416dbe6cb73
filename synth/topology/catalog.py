"""All families and functions of topology specs, by name."""

from __future__ import annotations

from synth.topology import functions
from synth.topology.families import complete, grids, rings
from synth.topology.registry import Family, Function

FAMILIES: dict[str, Family] = {family.name: family for family in (*rings.FAMILIES, *grids.FAMILIES, *complete.FAMILIES)}
FUNCTIONS: dict[str, Function] = {function.name: function for function in functions.FUNCTIONS}
