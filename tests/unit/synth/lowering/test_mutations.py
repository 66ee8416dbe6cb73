"""Random damage is either refused, or harmless: then a second, naive execution on numbers gives the right result."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chorale.synth.targets.judge import check_program
from tests.conformance import example_programs as examples
from tests.unit.synth.lowering.mutations import mutate
from tests.unit.synth.lowering.naive import result_of
from tests.unit.synth.lowering.programs import lowered

MADE = [
    lowered(spec, collective, target, in_place=in_place)
    for spec in ("ring:3", "hypercube:2", "ring:4")
    for collective in ("allgather", "reduce_scatter", "allreduce")
    for in_place in (True, False)
    for target in ("msccl-xml", "oneccl-xml")
]
MADE += [
    examples.ring_allreduce([0, 1, 2]),
    examples.ring_allreduce([0, 2, 1, 3], in_place=False),
    examples.ring_allgather(3, in_place=True),
    examples.ring_allgather(4, in_place=False),
    examples.ring_reduce_scatter(4),
    examples.scratch_allreduce_of_pair(),
    examples.star_broadcast(4, 1),
]


@pytest.mark.parametrize("examples", [400, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_what_passes_the_check_is_right_whatever_the_order_and_the_cut(examples):
    check = given(st.sampled_from(MADE), st.data(), st.integers(1, 3))(is_refused_or_right)
    settings(max_examples=examples, deadline=None)(check)()


def is_refused_or_right(made, data, changes):
    damaged = made
    for _ in range(changes):
        damaged = mutate(damaged, data)
    if check_program(damaged):
        return
    for seed, piece in product(range(2), (1, 2, 100)):
        got, wanted = result_of(damaged, seed, piece)
        assert got == wanted


def test_damage_is_mostly_refused_but_not_always():
    """So that the test above cannot pass by refusing everything, or by changing nothing."""
    verdicts: Counter[bool] = Counter()

    @settings(max_examples=200, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(MADE), st.data())
    def judge(made, data):
        verdicts[not check_program(mutate(made, data))] += 1

    judge()
    assert verdicts[False] > verdicts[True] > 0
