"""All families and functions of topology specs, by name."""

from __future__ import annotations

from chorale.synth.topology.expansions.plans import EXPANSION_FUNCTIONS
from chorale.synth.topology.families.amd_boxes import AMD_FAMILIES
from chorale.synth.topology.families.baselines import BASELINE_FAMILIES
from chorale.synth.topology.families.bases import BASE_FAMILIES
from chorale.synth.topology.families.cayley import CAYLEY_FAMILIES
from chorale.synth.topology.families.complete import COMPLETE_FAMILIES
from chorale.synth.topology.families.datacentre import DATACENTRE_FAMILIES
from chorale.synth.topology.families.distance_regular import DISTANCE_REGULAR_FAMILIES
from chorale.synth.topology.families.grids import GRID_FAMILIES
from chorale.synth.topology.families.hamming import HAMMING_FAMILIES
from chorale.synth.topology.families.hammingmesh import HAMMINGMESH_FAMILIES
from chorale.synth.topology.families.kautz import KAUTZ_FAMILIES
from chorale.synth.topology.families.nvidia_boxes import NVIDIA_FAMILIES
from chorale.synth.topology.families.rings import RING_FAMILIES
from chorale.synth.topology.families.switch import SWITCH_FAMILIES
from chorale.synth.topology.families.twisted import TWISTED_FAMILIES
from chorale.synth.topology.functions import TRANSFORM_FUNCTIONS
from chorale.synth.topology.registry import Family, Function, SpecForm

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
