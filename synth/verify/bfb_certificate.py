"""Checks the claim of a BFB schedule that its steps are the shortest possible for schedules along shortest paths.

The check shares no code with the synthesizer: SciPy computes hop counts, and link capacities are summed independently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import CheckFailed
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.topology.topology import Link, Topology, bytes_per_second, transpose

_AGAIN = "synthesize again"


def check_bfb_steps(topology: Topology, chunks: int, certificate: Mapping[str, Any]) -> None:
    """Raise CheckFailed unless the certificate's nodes and links prove that no step could be shorter.

    For each step t, the certificate names a node u and a set S of links into u. Let n be the number of shards at
    distance t from u that can only arrive over S, because all last hops of their shortest paths are in S. Two claims
    are checked. First, the step's load is the time in which S transmits n arbitrarily divisible shards. Second, S needs
    at least the step's time for n shards of `chunks` indivisible chunks each. Times are in shards (or chunks) per
    bandwidth. If the certificate contains the vector size, times are in seconds and include latencies. O(steps * (links
    + N * degree)).
    """
    view = _View(topology, certificate.get("size_bytes"), {})
    _checked_loads(view, certificate["loads"])
    for step, entry in enumerate(certificate["times"]):
        jobs, critical = _evidence(view, step, entry)
        time = Fraction(entry["value"])
        carried = [view.shards_until(time, link, chunks) for link in critical]
        # In less than `time`, a link completes fewer chunks than the number for `time` itself, which may be fractional.
        if sum(max(0, ceil(amount) - 1) for amount in carried) >= jobs * chunks:
            raise CheckFailed(
                "the time of a step is not the least possible for whole chunks: {}", f"step {step}: {time}", _AGAIN
            )


def least_time(topology: Topology, certificate: Mapping[str, Any]) -> Fraction:
    """Return a lower bound on the time of any breadth-first broadcast with arbitrarily divisible shards.

    The units are the same as in `check_bfb_steps`. The certificate may belong to a reversed schedule or to a sequence
    of two schedules. Raises CheckFailed if its loads are wrong.
    """
    if certificate["kind"] == "concatenation":
        return sum((least_time(topology, part) for part in certificate["parts"]), Fraction(0))
    if certificate["kind"] == "reversed":
        return least_time(transpose(topology), certificate["of"])
    return _checked_loads(_View(topology, certificate.get("size_bytes"), {}), certificate["loads"])


@dataclass(frozen=True, slots=True)
class _View:
    """The topology and vector size of a schedule to check. `hops` caches the hop counts to each target node."""

    topology: Topology
    size_bytes: int | None
    hops: dict[int, NDArray[np.float64]]

    def hops_to(self, node: int) -> NDArray[np.float64]:
        """Return float64[nodes]: hop count of each node's shortest path to `node`."""
        if node not in self.hops:
            links, nodes = self.topology.links, self.topology.node_count
            backwards = sparse.csr_array((np.ones(len(links)), (links.dst, links.src)), shape=(nodes, nodes))
            self.hops[node] = csgraph.shortest_path(backwards, unweighted=True, indices=[node])[0]
        return self.hops[node]

    def shards_until(self, time: Fraction, link: Link, chunks: int) -> Fraction:
        """Return how many chunks, possibly a fraction, `link` transmits by `time` if a shard has `chunks` chunks."""
        if self.size_bytes is None:
            return time * link.bandwidth
        chunk_bytes = Fraction(self.size_bytes, self.topology.compute_count * chunks)
        bytes_until = max(Fraction(0), time - link.latency_s) * link.bandwidth * bytes_per_second(self.topology)
        return bytes_until / chunk_bytes


def _checked_loads(view: _View, loads: Sequence[Mapping[str, Any]]) -> Fraction:
    """Return the sum of `loads` after checking each of them. Raises CheckFailed if a load is wrong."""
    for step, entry in enumerate(loads):
        jobs, critical = _evidence(view, step, entry)
        if sum(view.shards_until(Fraction(entry["value"]), link, 1) for link in critical) != jobs:
            raise CheckFailed(
                "the load of a step is not the number of shards divided by the bandwidth: {}",
                f"step {step}: {entry['value']}",
                _AGAIN,
            )
    return sum((Fraction(entry["value"]) for entry in loads), Fraction(0))


def _evidence(view: _View, step: int, entry: Mapping[str, Any]) -> tuple[int, list[Link]]:
    """Return n and the links in S for a step (see `check_bfb_steps`). Raises CheckFailed if S does not lead into u."""
    links, node = view.topology.links, int(entry["node"])
    critical = set(entry["links"])
    incoming = [int(link) for link in np.flatnonzero(links.dst == node)]
    if not critical or not critical <= set(incoming):
        raise CheckFailed(
            "the certificate names links that do not end in the critical node: {}", f"step {step}", _AGAIN
        )
    jobs = 0
    for shard in np.flatnonzero(view.hops_to(node) == step + 1):
        usable = {link for link in incoming if view.hops_to(int(links.src[link]))[shard] == step}
        jobs += usable <= critical
    return jobs, [links[link] for link in critical]
