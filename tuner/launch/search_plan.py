"""What defines the search of a launch, and whether it is worth more time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from chorale.tuner.config.campaign import Campaign, StopSection
from chorale.tuner.search.prior import Prior
from chorale.tuner.search.search import SearchPlan
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.search.study import StudyParts
from chorale.tuner.trials.journal import space_id
from chorale.tuner.trials.records import Candidate, trial_id
from chorale.tuner.trials.store import Store


def storage_url(campaign: Campaign) -> str | None:
    """Return the address of the campaign's own Optuna storage, without its password where the file had none."""
    return None if campaign.storage is None else campaign.storage.reveal()


def search_plan(
    campaign: Campaign,
    store: Store,
    space: SearchSpace,
    starts: Sequence[Candidate] = (),
    priors: Sequence[Prior] = (),
    parts: StudyParts | None = None,
) -> SearchPlan:
    """Return what defines the search of a launch."""
    parts = parts or StudyParts()
    launch_id = store.launch.launch_id
    return SearchPlan(
        space=space,
        study=f"{campaign.name}.{launch_id[:8]}.{space_id(campaign, store.launch.conditions)[:12]}",
        sampler=parts.names.get("sampler", campaign.resolved_sampler),
        seed=campaign.seed,
        trial_id=partial(trial_id, launch_id),
        sizes_bytes=tuple(campaign.sizes),
        weights=tuple(campaign.weights or ()),
        together=campaign.one_winner,
        second_objective=campaign.second_objective,
        starts=tuple(dict.fromkeys(starts)),
        priors=tuple(priors),
        parts=parts,
    )


_log = logging.getLogger("chorale.controller")

LOOKS = 2
"""How often in a row too little must be expected: the model changes its mind when it is fitted anew."""


@dataclass(slots=True)
class SearchWorth:
    """Ends a search where `rule.per` more seconds are expected to gain less than `rule.gain`.

    All trials of that time are taken to gain as much as the next one, the best of all; later ones gain less, so that a
    search rather goes on too long. Without a rule it never ends.
    """

    rule: StopSection | None
    clock_s: Callable[[], float]
    notes: dict[str, int] = field(default_factory=dict)
    _began_s: float = 0.0
    _below: int = 0

    def begin(self) -> None:
        """Start the clock of the trials."""
        self._began_s = self.clock_s()

    @property
    def is_over(self) -> bool:
        return self._below >= LOOKS

    def look(self, expected_gain: float | None, finished: int) -> None:
        """Take what a trial is expected to gain (a logarithm; None: nobody knows) after `finished` trials."""
        if self.rule is None or self.is_over or expected_gain is None or not finished:
            return
        trial_s = (self.clock_s() - self._began_s) / finished
        expected = math.expm1(min(expected_gain * self.rule.per / max(trial_s, 1e-9), 1.0))
        self._below = self._below + 1 if expected < self.rule.gain else 0
        if self._below == LOOKS:
            text = f"the search ended: {self.rule.per:g} s more were expected to gain {100 * expected:.2g} %"
            self.notes[text] = 1
            _log.info("%s, less than the %g %% of `stop`", text, 100 * self.rule.gain)
