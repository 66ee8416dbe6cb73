"""The best allreduce made of pairs of trees: roots add up their parts over in-trees and spread them over out-trees.

Roots may have parts of any size, and links may be shared in any way between in-trees and out-trees (ForestColl,
appendix E). On symmetric fabrics that is no better than reduce_scatter followed by allgather, where all parts are
equal and both have the whole network; where some ranks have less bandwidth than others it is, since a rank
that is no root sends and receives M instead of 2 M (N - 1) / N.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from chorale.synth.bound.pair_certificate import proven_time
from chorale.synth.bound.pair_program import Multipliers, PairProgram
from chorale.synth.bound.pair_split import PairSplit, even_split, merged_arcs, rounded_split
from chorale.synth.errors import InvalidInput
from chorale.synth.flow.oracle import Flags
from chorale.synth.linear_program import Floats
from chorale.synth.rational import common_denominator
from chorale.synth.topology.topology import Topology

MAX_RANKS = 128
MAX_LINKS = 1024
_MAX_ROUNDS = 100
_MET = 1e-9
_COMMON = 2**20
_FINE = 2**24
_DENOMINATORS = (100, 1000, 10_000, 2**24)


@dataclass(frozen=True, slots=True, eq=False)
class TreePairs:
    """A split of the network that was checked exactly, and what no split can beat.

    time_per_byte: of `split`, exact;  bound: no pairs of trees take less, as `certificate` proves (see
    `check_pair_certificate`). It is no bound on allreduce in general.
    """

    split: PairSplit
    bound: Fraction
    certificate: Mapping[str, Any]

    @property
    def time_per_byte(self) -> Fraction:
        return 1 / self.split.rate

    @property
    def gap(self) -> Fraction:
        """time_per_byte / bound - 1; 0 if the split is proven to be the best."""
        return self.time_per_byte / self.bound - 1


def is_within_limits(topology: Topology) -> bool:
    """Whether `tree_pairs` takes the network: at most 128 ranks and 1024 links between pairs of nodes."""
    return topology.compute_count <= MAX_RANKS and len(merged_arcs(topology).src) <= MAX_LINKS


def tree_pairs(topology: Topology) -> TreePairs:
    """Return the best pairs of trees for allreduce, with the gap that rounding leaves (mostly 0).

    Solves the program over known cuts, asks the oracle for cuts that its answer breaks, and repeats. The answer is
    rounded down and counted exactly; the multipliers of the cuts are rounded into a certificate. Raises
    InvalidInput above 128 ranks or 1024 links between pairs of nodes, above which the program would take minutes.
    """
    arcs = merged_arcs(topology)
    if not is_within_limits(topology):
        rule = f"the linear program of allreduce takes at most {MAX_RANKS} ranks and {MAX_LINKS} links"
        value = f"{topology.compute_count} ranks and {len(arcs.src)} links"
        raise InvalidInput(rule, value, "take reduce_scatter and allgather, or a smaller fabric")
    width = np.array([float(value) for value in arcs.width])
    program = PairProgram(topology.compute_count, topology.node_count, arcs.src, arcs.dst, width)
    even = even_split(topology, arcs)
    for _ in range(_MAX_ROUNDS):
        point, multipliers = program.solve()
        met = even is not None and float(point.roots.sum()) <= float(even.rate) * (1 + _MET)
        if met or program.add_cuts(point) == 0:
            break
    units = [Fraction(1, common_denominator(np.concatenate([point.values, width]), _COMMON)), max(arcs.width) / _FINE]
    splits = [even, *(rounded_split(topology, arcs, point, unit) for unit in units)]
    certificate = _certificate(topology, program, multipliers)
    best = max((split for split in splits if split is not None), key=lambda split: split.rate)
    return TreePairs(best, Fraction(certificate["time_per_byte"]), certificate)


def _certificate(topology: Topology, program: PairProgram, multipliers: Multipliers) -> Mapping[str, Any]:
    """Return the rounding of `multipliers` that proves most."""
    candidates = [_rounded(topology, program, multipliers, largest) for largest in _DENOMINATORS]
    return max(candidates, key=lambda candidate: Fraction(candidate["time_per_byte"]))


def _rounded(topology: Topology, program: PairProgram, multipliers: Multipliers, largest: int) -> Mapping[str, Any]:
    names = np.array(topology.node_ids)
    switches = topology.node_ids[topology.compute_count :]

    def weighted(cuts: Sequence[Flags], values: Floats) -> list[dict[str, Any]]:
        pairs = zip(cuts, _rationals(values, largest), strict=True)
        return [{"nodes": names[cut].tolist(), "weight": str(weight)} for cut, weight in pairs if weight]

    def worth(values: Floats) -> dict[str, str]:
        pairs = zip(switches, _rationals(values, largest), strict=True)
        return {name: str(value) for name, value in pairs if value}

    certificate = {
        "kind": "tree-pairs",
        "gather_cuts": weighted(program.gather_cuts, multipliers.gather_cuts),
        "reduce_cuts": weighted(program.reduce_cuts, multipliers.reduce_cuts),
        "gather_switches": worth(multipliers.gather_switches),
        "reduce_switches": worth(multipliers.reduce_switches),
    }
    return certificate | {"time_per_byte": str(proven_time(topology, certificate))}


def _rationals(values: Floats, largest: int) -> list[Fraction]:
    return [Fraction(value).limit_denominator(largest) for value in values.tolist()]
