"""What one trial of a campaign takes, from points that are made here and now."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from runners.api import Measurement, RunRequest
from runners.simulated import SimulatedRunner
from synth.build.build import build
from synth.build.request import BuildResult
from synth.simulation.network_model import NetworkModel
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.combinations import search_space
from tuner.campaigns.records import Candidate
from tuner.campaigns.runner_choice import runner_factory
from tuner.forecast.pace import Pace
from tuner.forecast.rates import LinkRates, link_rates
from tuner.forecast.span import Span
from tuner.home import Home
from tuner.launch.request_builder import RequestBuilder

MOST_RANKS = 512
PATIENCE_S = 10.0
FACTOR = 2.0
"""How far points that were not made may be from those that were, in the mean."""

OURS = Span(0.005, 0.1)
"""Of a trial, besides preparing and measuring: asking, recording, messages between processes."""

_PER_RUN = Span(0.001, 0.05)
"""Of a repetition, besides its time: laying out data, starting all ranks at once, checking the result."""


@dataclass(frozen=True, slots=True)
class _Sample:
    candidate: Candidate
    made: BuildResult
    seconds: float


def sampled_pace(campaign: Campaign, topology: Topology, home: Home) -> Pace | None:
    """Return the pace by the first and the last point of each method, as far as they are made within `PATIENCE_S`.

    Runners that replay are asked; of others the times are simulated. None for more than `MOST_RANKS` ranks and where
    nothing can be made.
    """
    if topology.compute_count > MOST_RANKS:
        return None
    requests = RequestBuilder(campaign, topology)
    baselines = {name: build(request) for name, request in requests.baseline_builds().items()}
    programs = {name: built.program for name, built in baselines.items() if isinstance(built, BuildResult)}
    if len(programs) < len(baselines):
        return None
    requests = replace(requests, baselines=programs)
    samples = _samples(campaign, topology, requests)
    if not samples:
        return None
    preparing = Span.around([one.seconds for one in samples], FACTOR)
    runs = [requests.run({one.candidate.id: (one.candidate, one.made.program)}, 0) for one in samples]
    if not campaign.runner.capabilities.is_live:
        measuring, how = _replayed(campaign, topology, home, runs), "replayed"
    else:
        rates = link_rates(campaign, topology, home)
        measuring, how = _predicted(campaign, topology, rates, runs), f"simulated with {rates.words}"
    slowest_s = max(preparing.low_s / campaign.parallel, measuring.low_s / campaign.runner.at_once)
    trial = Span(slowest_s, preparing.high_s + measuring.high_s + OURS.high_s)
    each_s = statistics.fmean(one.seconds for one in samples)
    basis = f"{len(samples)} points were made here, {each_s:.3g} s each, and {how}"
    return Pace(trial, preparing, measuring, basis)


def _samples(campaign: Campaign, topology: Topology, requests: RequestBuilder) -> list[_Sample]:
    space = search_space(campaign, topology)
    lasts = list({point.method: point for point in space.points}.values())
    found: list[_Sample] = []
    began_s = time.monotonic()
    for candidate in dict.fromkeys([*space.starts(), *lasts]):
        if found and time.monotonic() - began_s > PATIENCE_S:
            break
        if not found:
            build(requests.build(candidate))  # kernels are loaded once
        sample_s = time.perf_counter()
        made = build(requests.build(candidate))
        if isinstance(made, BuildResult):
            found.append(_Sample(candidate, made, time.perf_counter() - sample_s))
    return found


def _replayed(campaign: Campaign, topology: Topology, home: Home, requests: Sequence[RunRequest]) -> Span:
    runner = runner_factory(campaign.runner, topology, home.root)()
    runner.submit(requests[0])
    times_s = []
    for request in requests:
        began_s = time.perf_counter()
        runner.submit(request)
        times_s.append(time.perf_counter() - began_s)
    return Span.around(times_s, FACTOR)


def _predicted(campaign: Campaign, topology: Topology, rates: LinkRates, requests: Sequence[RunRequest]) -> Span:
    """Return the time of one warm-up and all repetitions of the candidate, the baselines and the library's own."""
    runs = campaign.repeats + requests[0].warmup
    library = len(requests[0].library)
    times_s = []
    for request in requests:
        outcome = SimulatedRunner(NetworkModel.of(link_gbps="1")).submit(replace(request, library=(), products=0))
        if isinstance(outcome, Measurement):
            each_s = [sum(size.median_s for size in sizes) for sizes in outcome.results.values()]
            times_s.append(runs * (sum(each_s) + library * statistics.fmean(each_s)))
    if not times_s:
        return Span(0.0, campaign.runner.timeout_s)
    count = runs * len(campaign.sizes) * (len(requests[0].programs) + library)
    at_1_gbps = Span.around(times_s, FACTOR)
    on_links = Span(at_1_gbps.low_s / rates.high_gbps, at_1_gbps.high_s / rates.low_gbps)
    return on_links + _PER_RUN.times(count) + Span(*campaign.runner.capabilities.start_s)
