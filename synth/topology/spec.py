"""Turns a spec into a checked topology: parse, plan (which checks the size), build, check.

Also lists all families and functions for specs, by name.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TypeVar

from chorale.synth.errors import InvalidInput, UnknownName
from chorale.synth.topology import registry
from chorale.synth.topology.check import check_topology
from chorale.synth.topology.families.bases import BASE_FAMILIES
from chorale.synth.topology.families.directed import DIRECTED_FAMILIES
from chorale.synth.topology.families.distance_regular import DISTANCE_REGULAR_FAMILIES
from chorale.synth.topology.families.fabrics import FABRIC_FAMILIES
from chorale.synth.topology.families.grids import GRID_FAMILIES
from chorale.synth.topology.functions import FUNCTION_LIST
from chorale.synth.topology.topology import Provenance, Topology

_FAMILIES = (*GRID_FAMILIES, *DIRECTED_FAMILIES, *BASE_FAMILIES, *DISTANCE_REGULAR_FAMILIES, *FABRIC_FAMILIES)
FAMILIES: Mapping[str, registry.Family] = {family.name: family for family in _FAMILIES}
FUNCTIONS: Mapping[str, registry.Function] = {function.name: function for function in FUNCTION_LIST}
FILE_FORM = registry.SpecForm(
    "file",
    "file:PATH",
    "file:fabric.json",
    "JSON (chorale-topology/1), GraphML, or one box of an NCCL or RCCL dump (XML)",
)


_KEEP_IDS = frozenset({"without", "scaled", "able", "processes"})
"""Functions that keep node ids, so that links with guessed bandwidths can still be identified by their ends."""

ReadFile = Callable[[str], bytes]
LoadFile = Callable[[registry.FileCall], Topology]
SpecFormT = TypeVar("SpecFormT", registry.Family, registry.Function)


def parse_topology(spec: str, read_file: ReadFile | None = None) -> Topology:
    """Return the topology that `spec` describes, checked by `chorale.synth.topology.check`.

    `read_file` returns the bytes of the file at a path; without it, file: specs are rejected. A network that is too
    large is rejected before it is built. Raises InvalidInput for a spec that breaks a rule.

    >>> torus = parse_topology("torus:4x4")
    >>> torus.node_count, len(torus.links)
    (16, 64)
    """
    return check_topology(plan_topology(spec, read_file).build())


def plan_topology(spec: str, read_file: ReadFile | None = None) -> registry.TopologyPlan:
    """Return a plan with the size of the network and a function to build it. Raises TooLarge above the size limits."""

    @cache
    def load(call: registry.FileCall) -> Topology:
        if read_file is None:
            raise InvalidInput("{} names a file, but nothing here may read files", str(call), "pass `read_file`")
        from chorale.synth.topology.formats.files import from_bytes  # noqa: PLC0415 (imported only if files are read)

        path, _, model = call.path.partition(registry.MODEL_MARK)
        return from_bytes(read_file(path), str(call), model or None)

    return _plan(registry.parse_spec(spec), load)


def _plan(tree: registry.SpecTree, load: LoadFile) -> registry.TopologyPlan:
    if isinstance(tree, registry.FamilyCall):
        family = _entry(tree.name, FAMILIES, "family")
        try:
            return family.plan(tree)
        except InvalidInput as error:
            if error.way_out == f"write {family.syntax}":
                error.way_out += f", such as {family.example}"
            raise
    if isinstance(tree, registry.FunctionCall):
        function = _entry(tree.name, FUNCTIONS, "function")
        plan = function.plan(tree, lambda inner: _plan(inner, load))
        if not str(tree).count(registry.FILE_PREFIX):
            return plan
        return replace(plan, build=lambda: _apply(function, tree, load))
    topology = load(tree)
    return registry.TopologyPlan(str(tree), topology.node_count, len(topology.links), lambda: topology)


def _apply(function: registry.Function, call: registry.FunctionCall, load: LoadFile) -> Topology:
    """Apply `function` to networks, some of which come from files. The result keeps the provenance of their link rates.

    The function is applied twice: at physical rates, and at the rates that NCCL or RCCL expects.
    """
    inner: dict[str, Topology] = {}

    def build(plan: registry.TopologyPlan) -> Topology:
        if plan.spec not in inner:
            inner[plan.spec] = plan.build()
        return inner[plan.spec]

    def planned(tree: registry.SpecTree, expected: bool) -> registry.TopologyPlan:
        plan = _plan(tree, load)
        return replace(plan, build=lambda: (build(plan).expected if expected else None) or build(plan))

    topology = function.plan(call, lambda tree: planned(tree, False)).build()
    known = [part.provenance for part in inner.values() if part.provenance is not None]
    if not known:
        return topology
    has_expected = any(part.expected is not None for part in inner.values())
    slower = function.plan(call, lambda tree: planned(tree, True)).build().links if has_expected else None
    facts = tuple(dict.fromkeys(fact for part in known for fact in part.assumptions))
    provenance = Provenance(facts, frozenset().union(*(part.guessed for part in known)), slower, topology.id)
    if provenance.guessed and call.name not in _KEEP_IDS:
        ids, links = topology.node_ids, topology.links
        ends = zip(links.src.tolist(), links.dst.tolist(), strict=True)
        provenance = replace(provenance, guessed=frozenset((ids[src], ids[dst]) for src, dst in ends))
    return replace(topology, provenance=provenance)


def _entry(name: str, entries: Mapping[str, SpecFormT], kind: str) -> SpecFormT:
    if name in entries:
        return entries[name]
    import difflib  # noqa: PLC0415 (only needed for misspelled names)

    way_out = "`chorale topology list` shows all of them"
    close = difflib.get_close_matches(name, [*FAMILIES, *FUNCTIONS, registry.FILE_PREFIX], n=3, cutoff=0.7)
    if close:
        way_out = f"did you mean {' or '.join(map(repr, close))}? {way_out}"
    raise UnknownName(f"topology {kind}", name, way_out)
