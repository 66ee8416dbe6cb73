"""Allreduce by pairs of trees: as fast as the linear program says, and only where that is worth it."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.bounds.certificate import check_pair_certificate
from chorale.synth.bounds.lower_bound import lower_bound, reduce_scatter_allgather_time
from chorale.synth.bounds.tree_pairs import TreePairs, tree_pairs
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.forest import allreduce_pairs as pairs_module
from chorale.synth.methods.forest.allreduce_pairs import IntegralPairs, faster_pairs, integral_pairs, pair_schedule
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.method import Options, SynthesisTask
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify
from tests.random_fabrics import random_fabric
from tests.synthesis import synthesized

STAR = Topology("star", tuple("0123"), 4, Links.build(Link(*ends) for n in (1, 2, 3) for ends in ((0, n), (n, 0))))


def scheduled(topology: Topology, whole: IntegralPairs) -> VerifiedSchedule:
    return verify(pair_schedule(topology, whole, pack_trees, method="forest", parameters={}, certificate={}))


@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_allreduce_takes_the_better_of_both(first: int) -> None:
    chosen = set()
    for seed in range(first, first + 40):
        topology = random_fabric(seed)
        pairs, both = tree_pairs(topology).time_per_byte, reduce_scatter_allgather_time(topology)
        verified = synthesized("forest", topology, ALLREDUCE, gap=0)
        assert verified.cost.time_per_byte == min(pairs, both), seed
        assert (verified.schedule.certificate["kind"] == "tree-pairs") == (pairs < both)
        chosen.add(pairs < both)
    assert chosen == {False, True}


@pytest.mark.parametrize(
    ("spec", "algbw"),
    [
        ("mesh:4x4", Fraction(8, 5)),
        ("without(mi250:2;node=3)", Fraction(645, 4)),
        ("without(a100:2;node=5)", Fraction(2775, 16)),
    ],
)
def test_named_fabrics_are_faster_than_two_phases(spec: str, algbw: Fraction) -> None:
    verified = synthesized("forest", spec, ALLREDUCE)
    topology = verified.schedule.topology
    assert 1 / verified.cost.time_per_byte == algbw > 1 / reduce_scatter_allgather_time(topology)
    assert check_pair_certificate(topology, verified.schedule.certificate) == verified.cost.time_per_byte
    assert verified.schedule.trees_per_root is None


def test_the_centre_of_a_star_adds_everything_up() -> None:
    schedule = synthesized("forest", STAR, ALLREDUCE).schedule
    assert (schedule.steps, schedule.chunks_per_shard, len(schedule.transfers)) == (2, 1, 6 * 4)
    assert set(schedule.dst[schedule.transfers.reduce == 1].tolist()) == {0}
    assert set(schedule.src[schedule.transfers.reduce == 0].tolist()) == {0}


def test_low_trees_in_go_with_high_trees_out() -> None:
    schedule = synthesized("forest", "without(mi250:2;node=3)", ALLREDUCE).schedule
    rows, chunks = schedule.transfers, schedule.chunks_per_shard
    last_sum, last_copy = np.zeros((2, schedule.shard_count * chunks), dtype=np.int64)
    first_copy = np.full(len(last_sum), schedule.steps)
    for step, shard, lo, hi, reduces in zip(rows.step, rows.shard, rows.lo, rows.hi, rows.reduce, strict=True):
        units = slice(int(shard) * chunks + int(lo), int(shard) * chunks + int(hi))
        if reduces:
            last_sum[units] = np.maximum(last_sum[units], int(step))
        else:
            first_copy[units] = np.minimum(first_copy[units], int(step))
            last_copy[units] = np.maximum(last_copy[units], int(step))
    assert (last_sum < first_copy).all()
    assert (rows.step.min(), last_copy.max() + 1) == (0, schedule.steps)
    highest_in, highest_out = last_sum.max() + 1, (last_copy - first_copy).max() + 1
    assert schedule.steps < highest_in + highest_out


@pytest.mark.parametrize("spec", ["ring:4", "a100:2"])
def test_no_program_is_solved_where_two_phases_meet_a_bound(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_topology: Topology) -> TreePairs:
        raise AssertionError("not needed")

    monkeypatch.setattr(pairs_module, "pairs_if_countable", refuse)
    topology = parse_topology(spec)
    assert lower_bound(topology, ALLREDUCE).value == reduce_scatter_allgather_time(topology)
    assert faster_pairs(SynthesisTask(topology, ALLREDUCE, Options(), SerialExecutor())) is None


def test_two_phases_can_be_asked_for() -> None:
    pairs, phases = synthesized("forest", "mesh:4x4", ALLREDUCE), synthesized("forest-phases", "mesh:4x4", ALLREDUCE)
    assert (phases.schedule.method, 1 / phases.cost.time_per_byte) == ("forest-phases", Fraction(16, 15))
    assert phases.cost.steps < pairs.cost.steps
    with pytest.raises(InvalidInput, match="forest-phases makes allreduce"):
        synthesized("forest-phases", STAR)


def test_splits_too_fine_for_whole_trees_are_rounded() -> None:
    topology = parse_topology("without(mi250:2;node=3)")
    split = tree_pairs(topology).split
    whole = integral_pairs(topology, split, most_pairs=600)
    assert whole.roots.sum() == 600 // 31 * 31
    assert 1 <= whole.time_per_byte * split.rate < Fraction(11, 10)
    assert scheduled(topology, whole).cost.time_per_byte <= whole.time_per_byte


@pytest.mark.parametrize("k", [0, pairs_module.MAX_PAIRS])
def test_senseless_numbers_of_trees_are_refused(k: int) -> None:
    with pytest.raises(InvalidInput, match="at least one tree per root, and at most"):
        integral_pairs(STAR, tree_pairs(STAR).split, k)


def test_more_trees_than_a_cut_carries_are_found_out() -> None:
    whole = integral_pairs(STAR, tree_pairs(STAR).split)
    with pytest.raises(CheckFailed, match="more trees start in a set of nodes than can leave it"):
        pair_schedule(
            STAR, replace(whole, roots=2 * whole.roots), pack_trees, method="forest", parameters={}, certificate={}
        )
