"""From a spec to a checked topology: parse, plan (sizes are checked here), build, check.

Also all families and functions of specs by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from chorale.synth.errors import InvalidInput, UnknownName
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.grammar import FILE_PREFIX, FamilyCall, FileCall, FunctionCall, SpecTree, parse_spec
from chorale.synth.topology.registry import Family, Function, SpecForm, SpecForms, TopologyPlan
from chorale.synth.topology.topology import Topology

FAMILIES: Mapping[str, Family] = SpecForms(
    {
        "families.rings.RING_FAMILIES": "ring biring uniring circulant",
        "families.grids.GRID_FAMILIES": "torus mesh hypercube",
        "families.grids.TWISTED_FAMILIES": "twisted-torus twisted-hypercube",
        "families.complete.COMPLETE_FAMILIES": "complete bipartite",
        "families.complete.HAMMING_FAMILIES": "hamming hyperx",
        "families.directed.KAUTZ_FAMILIES": "kautz genkautz debruijn",
        "families.bases.BASE_FAMILIES": "diamond dbjmod base",
        "families.directed.CAYLEY_FAMILIES": "dicirculant cayley",
        "families.distance_regular.DISTANCE_REGULAR_FAMILIES": "distreg",
        "families.rings.BASELINE_FAMILIES": "shiftedring dbt",
        "families.complete.HAMMINGMESH_FAMILIES": "hxmesh",
        "families.switched.SWITCH_FAMILIES": "switch",
        "families.nvidia_boxes.NVIDIA_FAMILIES": "a100 h100 h200 b200 nvl72 railclos",
        "families.amd_boxes.AMD_FAMILIES": "mi250 mi250half mi300x mi355x",
        "families.switched.DATACENTRE_FAMILIES": "fattree dragonfly",
    }
)
FUNCTIONS: Mapping[str, Function] = SpecForms(
    {
        "functions.EXPANSION_FUNCTIONS": "line degree power product bidirectional scaled",
        "functions.TRANSFORM_FUNCTIONS": "transpose without",
        "functions.SWITCH_FUNCTIONS": "able usable processes",
    }
)
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
