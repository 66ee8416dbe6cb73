"""JSON documents of topologies."""

from __future__ import annotations

from typing import Any

from chorale.synth.identity import rational_text
from chorale.synth.topology.abilities import SwitchAbility
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.formats.json_document import ability_members
from chorale.synth.topology.symmetry_search import is_vertex_transitive
from chorale.synth.topology.topology import Topology


def describe_topology(topology: Topology) -> dict[str, Any]:
    """Return the "topology" object: spec, counts, degree (null unless regular), diameter in links and content id."""
    return {
        "spec": topology.spec,
        "nodes": topology.compute_count,
        "switches": topology.switch_count,
        "links": len(topology.links),
        "degree": topology.degree,
        "diameter": diameter(topology),
        "id": topology.id,
    }


def show_topology(topology: Topology) -> dict[str, Any]:
    """Return all that `chorale topology show --json` prints: the description, properties, every node and link."""
    ids = topology.node_ids
    return {
        "topology": describe_topology(topology),
        "vertex_transitive": is_vertex_transitive(topology),
        "eulerian": topology.is_eulerian,
        "nodes_list": [
            {
                "id": name,
                "kind": topology.node_kind(node),
                "rank": node if node < topology.compute_count else None,
                **ability_members(topology, node),
            }
            for node, name in enumerate(ids)
        ],
        "links_list": [
            {
                "src": ids[link.src],
                "dst": ids[link.dst],
                "bandwidth": rational_text(link.bandwidth),
                "latency_s": float(link.latency_s),
            }
            for link in topology.links
        ],
    }


def able_text(ability: SwitchAbility, topology: Topology) -> str:
    """Return what a switch can do in words, such as "multicast, add up to 300 GB/s"."""
    words = ["multicast"] if ability.multicast else []
    if ability.reduce:
        unit = "links" if topology.bandwidth_unit == "link" else topology.bandwidth_unit
        limit = "" if ability.reduce_bandwidth is None else f" up to {rational_text(ability.reduce_bandwidth)} {unit}"
        words.append(f"add{limit}")
    return ", ".join(words)
