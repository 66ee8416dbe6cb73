"""Screening before anything is measured: exact costs of many candidates, simulated times of the best of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, islice

from chorale.runners.api.base import Measurement, RunRequest
from chorale.runners.api.workers import Workers, completions
from chorale.runners.simulated.config import DEFAULT_LINK_MBPS
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.build.request import BuildResult
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.adopted import is_adopted
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.launch.request_builder import RequestBuilder
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.records import Candidate

_log = logging.getLogger("chorale.screening")

BEST_OF_EACH = 2

Guesses = Mapping[Candidate, tuple[float, ...]]
"""Candidate -> seconds at each size of the campaign."""


@dataclass(frozen=True, slots=True)
class Screened:
    """What screening predicts, and what is to be measured first by that."""

    exact: Guesses = field(default_factory=dict)
    simulated: Guesses = field(default_factory=dict)
    first: tuple[Candidate, ...] = ()


def screened_candidates(campaign: Campaign, topology: Topology, space: SearchSpace, workers: Workers) -> Screened:
    """Return what to measure first: the predicted best of each size, then the second best of each.

    `screening.candidates` points are built and get their exact cost, the best `screening.simulated` of them simulated
    times too. Empty if `screening.candidates` is 0. Candidates that cannot be built or simulated are left out.
    """
    section = campaign.screening
    if section.candidates == 0:
        return Screened()
    points = dict.fromkeys(chain(space.starts(), space.shuffled(campaign.seed)))
    made = [point for point in points if not is_adopted(point.method)]
    built = _built(RequestBuilder(campaign, topology), workers, made[: section.candidates])
    pricing = _pricing(campaign, topology)
    exact = {candidate: _exact_s(campaign, topology, pricing, result) for candidate, result in built.items()}
    best = leaders(exact, section.simulated)
    simulated = {
        candidate: _simulated_s(campaign, topology, pricing, candidate, built[candidate]) for candidate in best
    }
    timed = {candidate: times for candidate, times in simulated.items() if times is not None}
    chosen = leaders(timed or exact, BEST_OF_EACH * len(campaign.sizes))
    _log.info("screening: %d made, %d simulated, %d to begin with", len(built), len(timed), len(chosen))
    return Screened(exact, timed, tuple(chosen))


def leaders(guesses: Guesses, limit: int) -> list[Candidate]:
    """Return at most `limit` candidates: the best at each size, largest size first, then the second best, and so on."""
    sizes = range(len(next(iter(guesses.values()), ())))
    ranked = [sorted(guesses, key=lambda candidate, size=size: guesses[candidate][size]) for size in reversed(sizes)]  # type: ignore[misc]
    return list(islice(dict.fromkeys(chain.from_iterable(zip(*ranked, strict=True))), limit))


def _built(requests: RequestBuilder, workers: Workers, points: Sequence[Candidate]) -> dict[Candidate, BuildResult]:
    futures = [workers.build(requests.build(candidate)) for candidate in points]
    values = [completion.value for completion in completions(workers, futures)]
    return {point: value for point, value in zip(points, values, strict=True) if isinstance(value, BuildResult)}


def _pricing(campaign: Campaign, topology: Topology) -> Pricing:
    section = campaign.screening
    if section.calibration is not None:
        return Pricing.of({}, section.calibration)
    rate = campaign.runner.config.link_rate_mbps or (DEFAULT_LINK_MBPS if topology.bandwidth_unit == "link" else None)
    gbps = None if rate is None else str(Fraction(str(rate)) / 1000)
    return Pricing.of({"alpha_us": str(section.alpha_us), "link_gbps": gbps}, None)


def _exact_s(campaign: Campaign, topology: Topology, pricing: Pricing, result: BuildResult) -> tuple[float, ...]:
    """Return steps x alpha + bytes x time per byte."""
    model = pricing.network(topology)
    start_s, pace_s = result.steps * float(model.alpha_s), float(Fraction(result.time_per_byte))
    pace_s /= float(model.unit_bytes_per_s(topology))
    return tuple(start_s + size * pace_s for size in campaign.sizes)


def _simulated_s(
    campaign: Campaign, topology: Topology, pricing: Pricing, candidate: Candidate, result: BuildResult
) -> tuple[float, ...] | None:
    runner = SimulatedRunner(pricing.network(topology), candidate.buffer_bytes)
    request = RunRequest(topology, {candidate.id: result.program}, tuple(campaign.sizes), repeats=1)
    outcome = runner.submit(request)
    if not isinstance(outcome, Measurement):
        return None
    beside_s = pricing.unmodelled_program_s(result.program)
    return tuple(size.median_s + beside_s for size in outcome.results[candidate.id])
