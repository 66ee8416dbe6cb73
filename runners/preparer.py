"""Preparing many candidates: what several of them have in common is made once."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field

from runners.preparation import Prepared, Recipe, Refusal, lowered, refusal_of, scheduled
from synth.collective import Collective
from synth.lowering.options import LoweringOptions
from synth.lowering.program import Program
from synth.method import Options
from synth.verify.verified import VerifiedSchedule

MOST_UNITS = 2**21
"""What is kept weighs at most that much: a transfer counts 1, an instruction 4; a unit is some 50 bytes."""

_INSTRUCTION_UNITS = 4

Key = tuple[str, Collective, str, Options, int]


@dataclass(slots=True)
class _Kept:
    """A verified schedule as it is and as a file, and what was lowered from it."""

    verified: VerifiedSchedule
    file: bytes
    prepared: dict[LoweringOptions, Prepared] = field(default_factory=dict)
    units: int = 0


class Preparer:
    """Prepares recipes one after the other; the schedules and programs of the latest ones are kept.

    Points of a search space differ mostly in how one schedule is lowered, or in what lowering does not see: then
    synthesis and verification, or all of it, are not done again. `synthesized` and `lowered` count what was done.
    """

    def __init__(self, most_units: int = MOST_UNITS) -> None:
        self._most_units = most_units
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self.synthesized = 0
        self.lowered = 0

    def prepare(self, recipe: Recipe) -> Prepared | Refusal:
        """Return what `runners.preparation.prepare` returns."""
        began_s = time.perf_counter()
        try:
            return self._prepare(recipe, began_s)
        except Exception as error:  # one bad candidate must not end a campaign
            return refusal_of(error)

    def _prepare(self, recipe: Recipe, began_s: float) -> Prepared:
        kept = self._schedule_of(recipe)
        if recipe.options not in kept.prepared:
            self.lowered += 1
            prepared = lowered(kept.verified, kept.file, recipe.options, began_s)
            kept.prepared[recipe.options] = prepared
            kept.units += _INSTRUCTION_UNITS * _instructions(prepared.program)
            self._forget()
        return kept.prepared[recipe.options]

    def _schedule_of(self, recipe: Recipe) -> _Kept:
        key = (recipe.topology.id, recipe.collective, recipe.method, recipe.wanted, recipe.depth)
        if key not in self._kept:
            self.synthesized += 1
            verified, file = scheduled(recipe)
            self._kept[key] = _Kept(verified, file, units=verified.schedule.transfer_count)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _forget(self) -> None:
        """Drop what was not used for longest, but never the latest."""
        while len(self._kept) > 1 and sum(kept.units for kept in self._kept.values()) > self._most_units:
            self._kept.popitem(last=False)


def _instructions(program: Program) -> int:
    return sum(len(block.instructions) for rank in program.ranks for block in rank.blocks)
