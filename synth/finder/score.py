"""What BFB really costs on a topology: steps and bandwidth factor, without making the schedule."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bfb.blocks import least_loads
from chorale.synth.bfb.network import BfbNetwork, network_of, problems_of
from chorale.synth.bfb.problems import Problems
from chorale.synth.errors import InvalidInput
from chorale.synth.finder.reach import MAX_DEGREE, loads_of_low_diameter
from chorale.synth.topology.automorphism import is_automorphism, orbits
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology

_LOW_DIAMETER = 24
_FEW = 8
"""Representatives pay off if their searches are at most one in so many of all."""


@dataclass(frozen=True, slots=True)
class BfbScore:
    """Steps of the BFB allgather, and T_B in M / B."""

    steps: int
    bandwidth_factor: Fraction


def bfb_score(topology: Topology) -> BfbScore:
    """Return the exact cost of the BFB allgather, that of `synth.bfb.bfb_allgather` without a limit on chunks.

    For a regular direct-connect topology of unit links: T_B = (degree / N) * sum over steps of the largest load. Nodes
    that known symmetries (each checked) take to one another are solved once; else low diameters and degrees take
    the kernel on bits, all others that of BFB. Raises InvalidInput for anything else than such a topology.
    """
    degree = topology.degree
    if degree is None or topology.node_bandwidth is None:
        rule = "a bandwidth factor must be asked of a regular network of equal links"
        raise InvalidInput(rule, topology.spec, "choose a direct-connect topology")
    loads = _loads(topology, degree)
    return BfbScore(len(loads), Fraction(degree, topology.node_count) * sum(loads))


def _loads(topology: Topology, degree: int) -> list[Fraction]:
    representatives = _representatives(topology)
    if len(representatives) * (degree + 1) * _FEW <= topology.node_count:
        return _loads_of(topology, representatives)
    if degree <= MAX_DEGREE:
        tails = topology.links.src.reshape(-1, degree).copy()
        loads = low_diameter_loads(tails, representatives)
        if loads:
            return loads
    network = network_of(topology)
    problems = problems_of(network)
    top, bottom, _, _ = least_loads(0, network.nodes, problems, int(problems.rows.max()))
    return _fractions(top, bottom)


def low_diameter_loads(tails: NDArray[np.int32], chosen: NDArray[np.int64]) -> list[Fraction]:
    """Return the load of every step from the tails of in-links, rows by node; empty if the diameter is not low."""
    return _fractions(*loads_of_low_diameter(tails, chosen, _LOW_DIAMETER))


def _representatives(topology: Topology) -> NDArray[np.int64]:
    """Return one node of every orbit of the known symmetries."""
    checked = [generator for generator in topology.automorphisms if is_automorphism(topology, generator)]
    orbit = orbits(topology.node_count, checked)
    return np.unique(orbit, return_index=True)[1].astype(np.int64)


def _loads_of(topology: Topology, chosen: NDArray[np.int64]) -> list[Fraction]:
    """Return the largest loads over the `chosen` nodes, by the same kernel with rows for them and their tails only."""
    network = network_of(topology)
    problems = _problems_of_some(topology, network, chosen)
    steps = int(problems.rows[: len(chosen)].max())
    top, bottom, _, _ = least_loads(0, len(chosen), problems, steps)
    return _fractions(top, bottom)


def _problems_of_some(topology: Topology, network: BfbNetwork, chosen: NDArray[np.int64]) -> Problems:
    """Return the problems with the chosen nodes renamed 0, 1, …; nodes beyond them have no links."""
    ranges = [np.arange(network.offsets[node], network.offsets[node + 1]) for node in chosen]
    links = np.concatenate(ranges)
    targets, place = np.unique(network.tails[links], return_inverse=True)
    rows = distances_to(topology, np.concatenate([chosen, targets])).astype(np.uint16)
    offsets = np.full(network.nodes + 1, len(links), dtype=np.int64)
    offsets[: len(chosen)] = np.cumsum([0, *map(len, ranges[:-1])])
    tails = (place + len(chosen)).astype(np.int32)
    capacities, delays = network.capacities[links].copy(), network.delays[links].copy()
    return Problems(offsets, tails, capacities, delays, network.grain, rows, network.words)


def _fractions(top: NDArray[np.int64], bottom: NDArray[np.int64]) -> list[Fraction]:
    return [Fraction(int(p), int(q)) for p, q in zip(top, bottom, strict=True)]
