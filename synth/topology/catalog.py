"""All families and functions of topology specs, by name."""

from __future__ import annotations

from synth.topology.expansions.plans import EXPANSION_FUNCTIONS
from synth.topology.families.amd_boxes import AMD_FAMILIES
from synth.topology.families.baselines import BASELINE_FAMILIES
from synth.topology.families.bases import BASE_FAMILIES
from synth.topology.families.cayley import CAYLEY_FAMILIES
from synth.topology.families.complete import COMPLETE_FAMILIES
from synth.topology.families.datacentre import DATACENTRE_FAMILIES
from synth.topology.families.distance_regular import DISTANCE_REGULAR_FAMILIES
from synth.topology.families.grids import GRID_FAMILIES
from synth.topology.families.hamming import HAMMING_FAMILIES
from synth.topology.families.hammingmesh import HAMMINGMESH_FAMILIES
from synth.topology.families.kautz import KAUTZ_FAMILIES
from synth.topology.families.nvidia_boxes import NVIDIA_FAMILIES
from synth.topology.families.rings import RING_FAMILIES
from synth.topology.families.switch import SWITCH_FAMILIES
from synth.topology.families.twisted import TWISTED_FAMILIES
from synth.topology.functions import TRANSFORM_FUNCTIONS
from synth.topology.registry import Family, Function, SpecForm

_FAMILIES: tuple[Family, ...] = (
    *RING_FAMILIES,
    *GRID_FAMILIES,
    *TWISTED_FAMILIES,
    *COMPLETE_FAMILIES,
    *HAMMING_FAMILIES,
    *KAUTZ_FAMILIES,
    *BASE_FAMILIES,
    *CAYLEY_FAMILIES,
    *DISTANCE_REGULAR_FAMILIES,
    *BASELINE_FAMILIES,
    *HAMMINGMESH_FAMILIES,
    *SWITCH_FAMILIES,
    *NVIDIA_FAMILIES,
    *AMD_FAMILIES,
    *DATACENTRE_FAMILIES,
)

FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
FUNCTIONS: dict[str, Function] = {function.name: function for function in (*EXPANSION_FUNCTIONS, *TRANSFORM_FUNCTIONS)}
FILE_FORM = SpecForm(
    "file",
    "file:PATH",
    "file:fabric.json",
    "JSON (chorale-topology/1), GraphML, or one box of an NCCL or RCCL dump (XML)",
)
