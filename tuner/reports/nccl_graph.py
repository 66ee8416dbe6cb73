"""Evaluates NCCL's channels on a machine: the rates that they reach, and the rings that Chorale finds instead."""

from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from rich.table import Table

from chorale.runners.api.programs import Connection, ConnectionPaths
from chorale.runners.simulated.library_graph import LibraryFabric, library_fabric
from chorale.runners.simulated.library_model import unit_bytes_per_s
from chorale.synth import InvalidInput, Topology
from chorale.synth.bounds.lower_bound import bound_of_ranks
from chorale.synth.collective import ALLREDUCE
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.formats.nccl_dump import PATTERNS, RING, NcclChannel, NcclGraph
from chorale.tuner.reports.bound import network_facts

MAX_SEARCHED = 8
"""Maximum number of GPUs in a box without a switch for which all rings are tried. Eight GPUs have 5,040 rings."""
_MOST_CHANNELS = 32
_SEARCHED_NODES = 50
_TREES = tuple(number for number, name in PATTERNS.items() if "tree" in name)


def fitted(graph: NcclGraph, topology: Topology) -> dict[str, Any]:
    """Return the rates that the channels of `graph` (for one box) reach if all boxes of `topology` use these channels.

    The result has the total rate of all channels in GB/s, both as NCCL states it and as the links allow it (None for
    patterns that are neither rings nor trees), and `busiest`, the two ends of the limiting link.

    Raises InvalidInput for a graph with another number of GPUs.
    """
    facts = {
        "id": graph.number,
        "pattern": PATTERNS.get(graph.pattern, f"pattern {graph.pattern}"),
        "channels": len(graph.channels),
        "orders": [list(order) for order in dict.fromkeys(channel.gpus for channel in graph.channels)],
        "stated_gb_per_s": len(graph.channels) * graph.speed_intra,
    }
    if graph.pattern != RING and graph.pattern not in _TREES:
        return facts | {"carried_gb_per_s": None, "busiest": None}
    loads = np.zeros(len(topology.links), dtype=np.int64)
    paths = ConnectionPaths(topology)
    for number, channel in enumerate(graph.channels):
        for src, dst in _hops(channel, graph.pattern, topology):
            loads[list(paths.path(Connection(src, dst, number)) or ())] += 1
    rates = _rates(topology)
    used = np.flatnonzero(loads)
    narrow = int(used[np.argmin(rates[used] / loads[used])])
    busiest = [topology.node_ids[int(end[narrow])] for end in (topology.links.src, topology.links.dst)]
    carried = len(graph.channels) * float(rates[narrow]) / int(loads[narrow])
    return facts | {"carried_gb_per_s": carried, "busiest": busiest}


def _hops(channel: NcclChannel, pattern: int, topology: Topology) -> Iterator[tuple[int, int]]:
    """Yield each pair of ranks that a channel connects, within and between boxes. In a tree, both ways."""
    boxes = boxes_of(topology) if topology.switch_count else (0,) * topology.compute_count
    members = [[rank for rank, of in enumerate(boxes) if of == number] for number in range(1 + max(boxes))]
    devices = sorted(set(channel.gpus))
    if len(channel.gpus) != len(devices) or any(len(ranks) != len(devices) for ranks in members):
        value = f"a channel of {len(channel.gpus)} on {topology.spec}, {len(members[0])} in a box"
        raise InvalidInput(
            "the graph is for another number of GPUs: {}", value, "name the network on which NCCL wrote it"
        )
    order = [devices.index(gpu) for gpu in channel.gpus]
    ring = [ranks[place] for ranks in members for place in order]
    closes = pattern == RING and (len(members) > 1 or not channel.nets)
    for src, dst in pairwise([*ring, ring[0]] if closes else ring):
        yield src, dst
        if pattern != RING:
            yield dst, src


def _rates(topology: Topology) -> Any:
    unit = float(unit_bytes_per_s(topology)) / 1e9
    widths = np.array([float(width) * unit for width in topology.links.bandwidths])
    return widths[topology.links.bandwidth_class]


def found_rings(topology: Topology) -> NcclGraph:
    """Return the rings with the highest total rate on a box, as a graph that NCCL can read.

    If the GPUs are connected by a switch, these are the rings that NCCL's own search finds. With direct links, an
    integer program over all rings packs as many rings of equal rate as possible. Raises InvalidInput for several boxes,
    for boxes with direct links and more than 8 GPUs, and for links without rates.
    """
    if topology.bandwidth_unit == "link":
        raise InvalidInput("{} has no link rates", topology.spec, "name a machine, such as a100:1")
    fabric, ranks = library_fabric(topology), topology.compute_count
    if fabric.boxes > 1:
        rule = "NCCL_GRAPH_FILE is for one box, not for {}"
        raise InvalidInput(rule, f"{fabric.boxes} boxes in {topology.spec}", "name one box")
    kind = "NVL" if fabric.wired else "SYS"
    if fabric.switched:
        graph = fabric.ring_graph()
        channels = (NcclChannel(tuple(range(ranks))),) * graph.channels
        return NcclGraph(0, RING, graph.intra, graph.inter, channels, kind)
    if ranks > MAX_SEARCHED:
        rule = f"rings are searched on boxes of up to {MAX_SEARCHED} GPUs that are linked directly"
        raise InvalidInput(rule, f"{ranks} in {topology.spec}", "design a schedule instead: chorale synth")
    return _shared_rings(topology, fabric, kind)


def _shared_rings(topology: Topology, fabric: LibraryFabric, kind: str) -> NcclGraph:
    """Return as many rings of equal rate (1, 1/2 or 1/3 of the slowest link's rate) as fit on the links."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 - takes a third of a second, rarely needed

    ranks, rates = topology.compute_count, _rates(topology)
    width = np.zeros((topology.node_count, topology.node_count))
    np.add.at(width, (topology.links.src, topology.links.dst), rates)
    everyone = ((0, *others) for others in permutations(range(ranks - 1, 0, -1)))
    rings = [ring for ring in everyone if all(width[pair] > 0 for pair in pairwise((*ring, 0)))]
    pairs = {pair: row for row, pair in enumerate(zip(*np.nonzero(width[:ranks, :ranks]), strict=True))}
    uses = np.zeros((len(pairs) + 1, len(rings)))
    uses[-1] = 1  # the last row limits the number of channels
    for column, ring in enumerate(rings):
        for pair in pairwise([*ring, ring[0]]):
            uses[pairs[pair], column] = 1
    limits = np.array([width[pair] for pair in pairs])
    best: tuple[float, float, Any] = (0.0, 0.0, None)
    for parts in (1, 2, 3) if rings else ():
        rate = float(limits.min()) / parts
        room = np.append(np.floor(limits / rate + 1e-9), _MOST_CHANNELS)
        found = milp(
            -np.ones(len(rings)),
            constraints=LinearConstraint(uses, -np.inf, room),
            integrality=np.ones(len(rings), dtype=np.int64),
            bounds=Bounds(0, _MOST_CHANNELS),
            options={"node_limit": _SEARCHED_NODES},
        )
        if found.x is not None and (total := round(float(found.x.sum())) * rate) > best[0] * (1 + 1e-6):
            best = total, rate, np.rint(found.x).astype(int)
        if best[0] * fabric.share >= fabric.links * (1 - 1e-6):
            break  # the links are fully used, so no other rate can be better
    if best[2] is None:
        way_out = "design a schedule instead: chorale synth"
        raise InvalidInput("no ring of direct links passes through all GPUs of {}", topology.spec, way_out)
    channels = [NcclChannel(ring) for ring, count in zip(rings, best[2], strict=True) for _ in range(count)]
    counted = round(best[1] * fabric.share, 3)
    return NcclGraph(0, RING, counted, counted, tuple(channels), kind)


def graph_document(topology: Topology, graphs: Sequence[NcclGraph], rings: NcclGraph | None) -> dict[str, Any]:
    """Return the rates that a file's graphs reach on `topology`, together with Chorale's rings and the bound."""
    bound = float(unit_bytes_per_s(topology) / bound_of_ranks(topology, ALLREDUCE).value) / 1e9
    return {
        **network_facts(topology),
        "graphs": [fitted(graph, topology) for graph in graphs],
        "found": None if rings is None else fitted(rings, topology),
        "bound": {"allreduce_algbw": bound},
    }


def graph_table(document: dict[str, Any]) -> Table:
    """Return a table with a row per graph and a row for Chorale's rings; rates in GB/s are summed over all channels."""
    table = Table(title=f"channels on {document['topology']['spec']}, GB/s of all together")
    for heading in ("graph", "channels", "NCCL says", "links carry", "busiest link", "order"):
        table.add_column(heading)
    rows = [(f"{each['id']}: {each['pattern']}", each) for each in document["graphs"]]
    if document["found"] is not None:
        rows.append(("found here: ring", document["found"]))
    for name, each in rows:
        carried = "" if each["carried_gb_per_s"] is None else f"{each['carried_gb_per_s']:.4g}"
        busiest = "" if each["busiest"] is None else " > ".join(each["busiest"])
        orders = " ".join(map(str, each["orders"][0])) + (", …" if len(each["orders"]) > 1 else "")
        table.add_row(name, str(each["channels"]), f"{each['stated_gb_per_s']:.4g}", carried, busiest, orders)
    return table
