"""What many candidates have in common is made once, and is what would be made alone."""

from __future__ import annotations

from dataclasses import replace

from runners.preparation import Prepared, Recipe, Refusal, RefusalKind, prepare
from runners.preparer import Preparer
from synth.collective import ALLREDUCE
from synth.lowering.options import LoweringOptions
from synth.method import Options
from synth.topology.spec import parse_topology

RECIPE = Recipe(parse_topology("ring:4"), ALLREDUCE, "bfb", Options(chunks=2), LoweringOptions("oneccl-xml"))
OPTIONS = [LoweringOptions("oneccl-xml", channels=channels) for channels in (1, 2, 3)]


def test_lowering_in_other_ways_synthesizes_once():
    preparer = Preparer()
    for options in (*OPTIONS, *OPTIONS):
        recipe = replace(RECIPE, options=options)
        found, alone = preparer.prepare(recipe), prepare(recipe)
        assert isinstance(found, Prepared)
        assert isinstance(alone, Prepared)
        assert replace(found, seconds=0.0) == replace(alone, seconds=0.0)
    assert (preparer.synthesized, preparer.lowered) == (1, 3)
    preparer.prepare(replace(RECIPE, wanted=Options(chunks=4)))
    preparer.prepare(replace(RECIPE, depth=2))
    preparer.prepare(replace(RECIPE, topology=parse_topology("ring:5")))
    assert preparer.synthesized == 4


def test_what_was_not_used_for_longest_is_forgotten():
    preparer = Preparer(most_units=1)
    for recipe in (RECIPE, RECIPE, replace(RECIPE, method="ring", wanted=Options()), RECIPE):
        assert isinstance(preparer.prepare(recipe), Prepared)
    assert preparer.synthesized == 3


def test_what_goes_wrong_is_a_refusal():
    refused = Preparer().prepare(replace(RECIPE, wanted=Options(k=1)))
    assert isinstance(refused, Refusal)
    assert refused.kind == RefusalKind.INVALID
