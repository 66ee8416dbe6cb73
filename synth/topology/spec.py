"""From a spec to a checked topology: parse, plan (sizes are checked here), build, check.

Also all families and functions of specs by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from chorale.synth.errors import InvalidInput, UnknownName
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.families.bases import BASE_FAMILIES
from chorale.synth.topology.families.complete import COMPLETE_FAMILIES, HAMMING_FAMILIES, HAMMINGMESH_FAMILIES
from chorale.synth.topology.families.directed import CAYLEY_FAMILIES, KAUTZ_FAMILIES
from chorale.synth.topology.families.distance_regular import DISTANCE_REGULAR_FAMILIES
from chorale.synth.topology.families.gpu_boxes import AMD_FAMILIES, NVIDIA_FAMILIES
from chorale.synth.topology.families.grids import BASELINE_FAMILIES, GRID_FAMILIES, RING_FAMILIES, TWISTED_FAMILIES
from chorale.synth.topology.families.switched import DATACENTRE_FAMILIES, SWITCH_FAMILIES
from chorale.synth.topology.functions import EXPANSION_FUNCTIONS, SWITCH_FUNCTIONS, TRANSFORM_FUNCTIONS
from chorale.synth.topology.grammar import FILE_PREFIX, FamilyCall, FileCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.topology.registry import Family, Function, SpecForm, TopologyPlan
from chorale.synth.topology.topology import Topology

_FAMILIES = (
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
FAMILIES: Mapping[str, Family] = {family.name: family for family in _FAMILIES}
FUNCTIONS: Mapping[str, Function] = {
    function.name: function for function in (*EXPANSION_FUNCTIONS, *TRANSFORM_FUNCTIONS, *SWITCH_FUNCTIONS)
}
FILE_FORM = SpecForm(
    "file",
    "file:PATH",
    "file:fabric.json",
    "JSON (chorale-topology/1), GraphML, or one box of an NCCL or RCCL dump (XML)",
)


ReadFile = Callable[[str], bytes]
SpecFormT = TypeVar("SpecFormT", Family, Function)


def parse_topology(spec: str, read_file: ReadFile | None = None) -> Topology:
    """Return the topology that `spec` describes, checked by `chorale.synth.topology.check`.

    `read_file` returns the bytes of a path; without it, file: specs are refused. Too large a network is refused
    before anything is built. Raises InvalidInput with the rule, the value and the way out.

    >>> torus = parse_topology("torus:4x4")
    >>> torus.node_count, len(torus.links)
    (16, 64)
    """
    return check_topology(plan_topology(spec, read_file).build())


def plan_topology(spec: str, read_file: ReadFile | None = None) -> TopologyPlan:
    """Return how large the network of `spec` is, and how to build it. TooLarge (InvalidInput) beyond the limits."""
    return _plan(parse_spec(spec), read_file)


def _plan(tree: SpecTree, read_file: ReadFile | None) -> TopologyPlan:
    if isinstance(tree, FamilyCall):
        return _entry(tree.name, FAMILIES, "family").plan(tree)
    if isinstance(tree, FunctionCall):
        return _entry(tree.name, FUNCTIONS, "function").plan(tree, lambda inner: _plan(inner, read_file))
    return _plan_file(tree, read_file)


def _plan_file(call: FileCall, read_file: ReadFile | None) -> TopologyPlan:
    if read_file is None:
        raise InvalidInput("a file: spec must come with a reader of files", str(call), "give read_file")
    from chorale.synth.topology.formats.files import from_bytes  # noqa: PLC0415 (only who reads files waits for it)

    topology = from_bytes(read_file(call.path), str(call))
    return TopologyPlan(str(call), topology.node_count, len(topology.links), lambda: topology)


def _entry(name: str, entries: Mapping[str, SpecFormT], kind: str) -> SpecFormT:
    if name in entries:
        return entries[name]
    import difflib  # noqa: PLC0415 (only for what is spelled wrongly)

    way_out = "`chorale topology list` shows all"
    close = difflib.get_close_matches(name, [*FAMILIES, *FUNCTIONS, FILE_PREFIX], n=3)
    if close:
        way_out = f"did you mean {' or '.join(map(repr, close))}? {way_out}"
    raise UnknownName(f"topology {kind}", name, way_out)
