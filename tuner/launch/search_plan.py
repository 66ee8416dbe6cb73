"""What defines the search of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from chorale.tuner.config.campaign import Campaign
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
