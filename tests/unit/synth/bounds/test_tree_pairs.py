"""Pairs of trees for allreduce against all cuts, the whole linear program and tampering."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from chorale.synth.bounds import tree_program
from chorale.synth.bounds.certificate import check_pair_certificate
from chorale.synth.bounds.lower_bound import lower_bound, reduce_scatter_allgather_time
from chorale.synth.bounds.tree_pairs import PairSplit, tree_pairs
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.linear_program import GrowingProgram
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.random_fabrics import random_fabric


def _holds(topology: Topology, split: PairSplit) -> bool:
    """Whether the split keeps to every link, every switch and every set of nodes."""
    arcs, ranks = split.arcs, topology.compute_count
    pairs = list(zip(arcs.src.tolist(), arcs.dst.tolist(), strict=True))
    fits = all(a + r <= width for a, r, width in zip(split.gather, split.reduce, arcs.width, strict=True))
    masks = np.arange(1, 1 << topology.node_count)
    masks = masks[masks & (1 << ranks) - 1 != 0]
    scale = np.lcm.reduce([value.denominator for value in (*split.roots, *split.gather, *split.reduce)], dtype=object)
    room = [np.zeros(len(masks), dtype=object) for _ in range(2)]
    for (src, dst), gather, reduce in zip(pairs, split.gather, split.reduce, strict=True):
        room[0] += int(gather * scale) * ((masks >> dst & 1) & (1 - (masks >> src & 1)))
        room[1] += int(reduce * scale) * ((masks >> src & 1) & (1 - (masks >> dst & 1)))
    outside = sum(int(root * scale) * (1 - (masks >> rank & 1)) for rank, root in enumerate(split.roots))
    for switch in range(ranks, topology.node_count):
        for amounts, sign in ((split.gather, 1), (split.reduce, -1)):
            left = sum(a * ((dst == switch) - (src == switch)) for (src, dst), a in zip(pairs, amounts, strict=True))
            fits &= sign * left >= 0
    return fits and all(bool(np.all(amount >= outside)) for amount in room)


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_splits_hold_and_certificates_prove(first: int) -> None:
    for seed in range(first, first + 20):
        topology = random_fabric(seed)
        pairs = tree_pairs(topology)
        assert _holds(topology, pairs.split), seed
        assert check_pair_certificate(topology, pairs.certificate) == pairs.bound
        assert 0 <= pairs.gap < Fraction(1, 10**4), (seed, float(pairs.gap))
        assert pairs.bound <= reduce_scatter_allgather_time(topology)
        assert pairs.time_per_byte >= lower_bound(topology, ALLREDUCE).value


@pytest.mark.parametrize(
    ("spec", "rate"),
    [
        ("ring:4", Fraction(4, 3)),
        ("mesh:4x4", Fraction(8, 5)),
        ("a100:2", Fraction(520, 3)),
        ("mi250half:2", Fraction(128)),
        ("without(a100:2;node=5)", Fraction(2775, 16)),
    ],
)
def test_known_fabrics(spec: str, rate: Fraction) -> None:
    pairs = tree_pairs(parse_topology(spec))
    assert (pairs.split.rate, pairs.gap) == (rate, 0)


def test_a_leaf_need_not_be_a_root() -> None:
    """On a star the centre adds everything up: leaves send and receive M, and not 2 M (N - 1) / N."""
    spokes = [link for leaf in (1, 2, 3) for link in (Link(0, leaf), Link(leaf, 0))]
    star = Topology("star", ("0", "1", "2", "3"), 4, Links.build(spokes))
    assert tree_pairs(star).split.roots == (1, 0, 0, 0)
    assert reduce_scatter_allgather_time(star) == Fraction(3, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"time_per_byte": "1"},
        {"time_per_byte": "soon"},
        {"kind": "into"},
        {"gather_cuts": []},
        {"gather_cuts": None},
        {"reduce_cuts": [{"nodes": ["99"], "weight": "1"}]},
        {"reduce_cuts": [{"nodes": ["0"], "weight": "-1"}]},
        {"reduce_cuts": [{"nodes": [], "weight": "1"}]},
        {"gather_switches": {"0": "1"}},
        {"reduce_switches": {"nobody": "1"}},
        {"reduce_switches": ["1"]},
    ],
)
def test_tampered_certificates_are_noticed(change: dict[str, Any]) -> None:
    topology = parse_topology("mesh:3x3")
    certificate = tree_pairs(topology).certificate
    check_pair_certificate(topology, certificate)
    with pytest.raises(CheckFailed, match="the certificate does not prove its bound"):
        check_pair_certificate(topology, {**certificate, **change})


def test_large_fabrics_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at most 256 ranks"):
        tree_pairs(parse_topology("ring:257"))


@pytest.mark.parametrize("spec", ["mesh:12x12", "without(torus:12x12;node=4)", "without(mi250:8;node=3)"])
def test_the_solver_goes_on_from_one_vertex_to_the_next(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cuts are added to one program: begun anew for each of some fifty rounds, 128 ranks took a quarter of a minute."""
    begun: list[int] = []

    def beginning(*arguments: Any) -> GrowingProgram:
        begun.append(1)
        return GrowingProgram(*arguments)

    monkeypatch.setattr(tree_program, "GrowingProgram", beginning)
    pairs = tree_pairs(parse_topology(spec))
    assert len(begun) <= 9
    assert pairs.gap == 0


def test_circles_of_switches_are_rounded_in_no_time() -> None:
    topology = random_fabric(473)
    pairs = tree_pairs(topology)
    assert _holds(topology, pairs.split)
    assert pairs.gap < Fraction(1, 10**4)
