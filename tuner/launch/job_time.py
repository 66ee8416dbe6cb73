"""The budget of a campaign in a job that ends: what has to be decided before the job does."""

from __future__ import annotations

from chorale.tuner.config.campaign import Campaign

SEARCH_SHARE, FINAL_SHARE = 0.45, 0.35
"""Of the time of a job: for trials, and for the comparison of the best at the end. The promotion gate and the report
have the rest."""


def budget_within(campaign: Campaign, seconds: float, goes_on: bool) -> Campaign:
    """Return the campaign with a budget that ends within `seconds`; one that is smaller stays.

    goes_on: whether another job goes on where this one stops: then only the final has to fit into one of them
    """
    minutes = seconds / 60
    final = campaign.final.model_copy(update={"minutes": _smaller(campaign.final.minutes, FINAL_SHARE * minutes)})
    if goes_on:
        return campaign.model_copy(update={"final": final})
    budget = campaign.budget.model_copy(update={"minutes": _smaller(campaign.budget.minutes, SEARCH_SHARE * minutes)})
    return campaign.model_copy(update={"budget": budget, "final": final})


def _smaller(minutes: float | None, most: float) -> float:
    return most if minutes is None else min(minutes, most)
