"""Check the claim of a BFB schedule that no shortest-path schedule could shorten any of its steps.

Independent of the synthesizer: hop counts come from NetworkX, sets from plain Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from synth.errors import CheckFailed
from synth.topology.topology import Topology

_AGAIN = "synthesize again"


def check_bfb_steps(topology: Topology, chunks: int, certificate: Mapping[str, Any]) -> None:
    """Raise CheckFailed unless every step's load and time are the least that their critical links allow.

    For step t the certificate names a node u and links S into it. With n the number of shards at distance t
    from u all of whose last hops lie in S: divisible shards need n / bandwidth(S), and `chunks` whole chunks
    per shard cannot be done in less time than claimed. O(steps * (links + N * degree)).
    """
    view = _View(topology, {})
    for step, entry in enumerate(certificate["loads"]):
        jobs, bandwidths = _evidence(view, step, entry)
        if Fraction(entry["value"]) != jobs / sum(bandwidths):
            raise CheckFailed("a step's load must be shards over bandwidth", f"step {step}: {entry['value']}", _AGAIN)
    for step, entry in enumerate(certificate["times"]):
        jobs, bandwidths = _evidence(view, step, entry)
        time = Fraction(entry["value"])
        # In less than `time`, a link carries at most ceil(time * bandwidth) - 1 whole chunks.
        if sum(ceil(time * bandwidth) - 1 for bandwidth in bandwidths) >= jobs * chunks:
            raise CheckFailed("a step's time must be the least for whole chunks", f"step {step}: {time}", _AGAIN)


@dataclass(frozen=True, slots=True)
class _View:
    """The topology with hop counts to the nodes asked for so far."""

    topology: Topology
    hops: dict[int, NDArray[np.int64]]

    def hops_to(self, node: int) -> NDArray[np.int64]:
        if node not in self.hops:
            backwards: nx.DiGraph[int] = nx.DiGraph()
            backwards.add_nodes_from(range(self.topology.node_count))
            backwards.add_edges_from(
                zip(self.topology.links.dst.tolist(), self.topology.links.src.tolist(), strict=True)
            )
            lengths = nx.single_source_shortest_path_length(backwards, node)
            self.hops[node] = np.array([lengths.get(other, -1) for other in range(self.topology.node_count)])
        return self.hops[node]


def _evidence(view: _View, step: int, entry: Mapping[str, Any]) -> tuple[int, list[Fraction]]:
    """Return n and the bandwidths of S."""
    links, node = view.topology.links, int(entry["node"])
    critical = set(entry["links"])
    incoming = [int(link) for link in np.flatnonzero(links.dst == node)]
    if not critical or not critical <= set(incoming):
        raise CheckFailed("critical links must end in the critical node", f"step {step}", _AGAIN)
    jobs = 0
    for shard in np.flatnonzero(view.hops_to(node) == step + 1):
        usable = {link for link in incoming if view.hops_to(int(links.src[link]))[shard] == step}
        jobs += usable <= critical
    return jobs, [links[link].bandwidth for link in critical]
