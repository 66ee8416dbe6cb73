"""Programs as columns are the same programs, and keep or break the same rules, as programs of objects."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.programs.check_structure import message_counts, structure_violations
from chorale.synth.programs.flat_program import flatten
from chorale.synth.programs.limits import limit_violations
from chorale.synth.programs.program import ColumnBlocks, chunks_moved
from chorale.synth.targets.registry import TARGETS, resources_of
from tests.properties import random_cases
from tests.unit.synth.lowering.programs import lowered
from tests.unit.synth.programs.random_columns import damaged, of_objects, ranks

LIMITS = [target.limits for target in TARGETS.values()]
MADE = [
    lowered(spec, collective, target, method, in_place=in_place)
    for spec, method in (("ring:3", "bfb"), ("hypercube:2", "bfb"), ("bipartite:3", "bfb"), ("complete:4", "forest"))
    for collective in ("allgather", "reduce_scatter", "allreduce")
    for in_place in (True, False)
    for target in ("msccl-xml", "oneccl-xml")
] + [lowered("ring:5", "allreduce", method="ring", fuse=True)]


@given(ranks())
def test_columns_of_the_objects_of_columns_are_the_same(rank):
    blocks = tuple(rank.blocks)
    assert replace(rank, blocks=blocks).columns == rank.columns
    assert rank.blocks == blocks == ColumnBlocks(rank.columns)
    assert replace(rank, blocks=blocks) == rank
    assert hash(replace(rank, blocks=blocks)) == hash(rank)
    assert len(rank.blocks) == len(blocks)
    again = pickle.loads(pickle.dumps(rank))
    assert again == rank
    assert again.columns == rank.columns


@pytest.mark.parametrize("made", MADE, ids=lambda made: f"{made.name} {made.target} {made.in_place}")
def test_what_is_derived_of_a_program_is_the_same(made):
    objects = of_objects(made)
    assert objects == made
    assert list(objects.messages()) == list(made.messages())
    assert objects.peers() == made.peers()
    assert message_counts(objects) == message_counts(made)
    assert resources_of(objects) == resources_of(made)
    assert chunks_moved(objects) == chunks_moved(made)
    ours, theirs = flatten(made), flatten(objects)
    assert ours.first_block == theirs.first_block
    assert all((mine == other).all() for mine, other in zip(ours.code, theirs.code, strict=True))


@random_cases(500)
@given(st.sampled_from(MADE), st.data(), st.integers(0, 2), st.sampled_from(LIMITS))
def test_facts_of_columns_find_what_rules_for_objects_find(made, data, changes, limits):
    for _ in range(changes):
        made = damaged(made, data)
    # Limits that are just kept, or just not, are those that a program comes close to.
    limits = replace(
        limits,
        count=data.draw(st.sampled_from([limits.count, 1, 2])),
        steps=data.draw(st.sampled_from([limits.steps, 2, 3, 4])),
        waits=data.draw(st.sampled_from([limits.waits, 1, 2])),
        threadblocks=data.draw(st.sampled_from([limits.threadblocks, 3, 4])),
        blocks_per_direction=data.draw(st.sampled_from([limits.blocks_per_direction, 1, 2])),
        waitable_threadblocks=data.draw(st.sampled_from([limits.waitable_threadblocks, 1, 2])),
        elements_per_rank=data.draw(st.sampled_from([limits.elements_per_rank, 20, 25, 30])),
        offset=data.draw(st.sampled_from([limits.offset, 1, 3])),
    )
    objects = of_objects(made)
    assert structure_violations(made) == structure_violations(objects)
    assert limit_violations(made, limits) == limit_violations(objects, limits)
