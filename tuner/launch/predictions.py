"""Before a launch, replace `auto` and `library` by concrete methods and order the methods, by predicted times."""

from collections.abc import Sequence
from fractions import Fraction

from chorale.runners.api.base import LIBRARY
from chorale.runners.api.config import TimeSource
from chorale.runners.simulated.config import DEFAULT_LINK_MBPS, SimulatedConfig
from chorale.runners.simulated.library_model import MPI_METHODS
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.auto import AUTO, TimedChoices
from chorale.synth.methods.catalog import AUTO_METHOD, METHODS
from chorale.synth.methods.method import Options, SynthesisTask
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import BASELINE_OF_LIBRARY, Campaign
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.records import Candidate

_METHODS_OF_AUTO = 5
_VARIANTS = ("forest-phases", "traditional-torus")
"""Methods that `auto` skips because they differ little from other methods."""


def campaign_on(campaign: Campaign, topology: Topology) -> Campaign:
    """Return the campaign with `auto` among its methods and `library` among its baselines replaced by names.

    `auto` becomes the methods predicted to be the fastest at each size, then the second fastest, and so on. `library`
    becomes the algorithms of the runner's library, or else the MPI algorithm predicted to be the fastest.
    """
    changes: dict[str, object] = {}
    if AUTO in campaign.search.methods:
        choices, found = _choices(campaign, topology), list[str]()
        while len(found) < _METHODS_OF_AUTO and (more := _fastest(choices, campaign.sizes, [*_VARIANTS, *found])):
            found += more
        methods = [
            name for each in campaign.search.methods for name in ((found or ["ring"]) if each == AUTO else [each])
        ]
        changes["search"] = campaign.search.model_copy(update={"methods": list(dict.fromkeys(methods))})
    if BASELINE_OF_LIBRARY in campaign.baselines:
        library = library_baselines(campaign, topology)
        names = [name for each in campaign.baselines for name in (library if each == BASELINE_OF_LIBRARY else [each])]
        changes["baselines"] = list(dict.fromkeys(names))
    return campaign.model_copy(update=changes)


def library_baselines(campaign: Campaign, topology: Topology) -> list[str]:
    """Return the baselines that represent the library. Candidates are compared with the fastest one at each size."""
    config, collective = campaign.runner.config, parse_collective(campaign.collective).name
    own = [LIBRARY + name for name in config.library_algorithms(collective, topology)]
    if own and config.capabilities.times is not TimeSource.MODEL:
        return own
    methods = [method for _, _, method in MPI_METHODS.get(collective.value, [("", "", "alltoall")])]
    return own + (_fastest(_choices(campaign, topology, methods), campaign.sizes) or ([] if own else ["ring"]))


def first_guesses(campaign: Campaign, topology: Topology, space: SearchSpace) -> list[Candidate]:
    """Return one candidate per method: first the methods predicted to be fastest, then the others in file order."""
    points = {point.method: point for point in space.starts()}
    methods = [name for name in points if name in METHODS and name in AUTO_METHOD.names]
    fastest = _fastest(_choices(campaign, topology, methods), campaign.sizes) if len(methods) > 1 else []
    return [points[name] for name in dict.fromkeys([*fastest, *points])]


def campaign_pricing(campaign: Campaign, topology: Topology) -> Pricing:
    """Return the cost model for predictions: 10 us per message, and the link rate."""
    rate = campaign.runner.config.link_rate_mbps or (DEFAULT_LINK_MBPS if topology.bandwidth_unit == "link" else None)
    gbps = None if rate is None else str(Fraction(str(rate)) / 1000)
    return Pricing.of({"alpha_us": "10", "link_gbps": gbps})


def _choices(campaign: Campaign, topology: Topology, among: Sequence[str] | None = None) -> TimedChoices:
    config = campaign.runner.config.for_network(topology)
    if isinstance(config, SimulatedConfig):
        model = config.network_model()
    else:
        model = campaign_pricing(campaign, topology).network(topology)
    task = SynthesisTask(topology, parse_collective(campaign.collective), Options(), SerialExecutor())
    return AUTO_METHOD.timed(task, model, among)


def _fastest(choices: TimedChoices, sizes_bytes: Sequence[int], without: Sequence[str] = ()) -> list[str]:
    """Return the method with the shortest predicted time at each size, largest size first; empty if none applies."""
    try:
        chosen = [choices.at(size_bytes, without).method for size_bytes in sorted(sizes_bytes, reverse=True)]
    except InvalidInput:
        return []
    return list(dict.fromkeys(chosen))
