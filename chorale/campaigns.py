"""Tuning campaigns and what they registered, from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from chorale.design import Network, Sizes, size_list, topology
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.tuned import TuningResult
from chorale.tuner.config.campaign_file import campaign_of
from chorale.tuner.config.runner_factory import make_workers
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.plan import check_methods, check_runner
from chorale.tuner.launch.progress import progress_display
from chorale.tuner.launch.tune import tune as _tune
from chorale.tuner.search.study import Callback, StudyParts
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry_queries import RegistryEntry, load_best

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study


def tune(
    network: Network,
    collective: str = "allreduce",
    *,
    sizes: Sizes | None = None,
    methods: Sequence[str] | None = None,
    runner: str | Mapping[str, Any] = "local",
    name: str = "python",
    trials: int = 25,
    minutes: float | None = None,
    resume: bool = False,
    sampler: str | BaseSampler | None = None,
    pruner: str | BasePruner | None = None,
    storage: str | BaseStorage | None = None,
    callbacks: Iterable[Callback] | Callback = (),
    **keys: Any,
) -> TuningResult:
    """Run a tuning campaign in this process and its Ray workers, and report; progress goes to stderr.

    What is measured lies in the data folder, as with `chorale tune`.

    Args:
        network: A topology spec, or a topology that a spec names.
        collective: What to tune.
        sizes: Buffer sizes in bytes; those of a campaign file that names none, unless given.
        methods: Methods to search; those that suit the network, unless given.
        runner: Its kind, or the whole section `runner` of a campaign.
        name: The campaign's name.
        trials: How many trials there are at most.
        minutes: How long the search may take.
        resume: Go on with the newest launch of this name.
        sampler: A name as in a campaign, or an object of Optuna.
        pruner: The same; an object decides after each size of a candidate, by the speed-up there.
        storage: An address as in a campaign, or an object of Optuna.
        callbacks: Called with the Optuna study and the trial after every trial; `study.stop()` ends the search.
        **keys: Further keys of a campaign, such as seed, baselines or search; see `chorale tune --schema`.

    Raises:
        InvalidInput: A key does not fit.
    """
    studies: list[Study] = []
    told = (callbacks,) if callable(callbacks) else tuple(callbacks)
    objects = {"sampler": sampler, "pruner": pruner, "storage": storage}
    parts, names = StudyParts.of(objects, (*told, lambda study, _: studies.append(study)))
    document: dict[str, Any] = {
        "name": name,
        "topology": _spec_of(network),
        "collective": collective,
        "runner": {"kind": runner} if isinstance(runner, str) else dict(runner),
        "budget": {"trials": trials, "minutes": minutes},
    }
    document |= {} if sizes is None else {"sizes": list(size_list(sizes))}
    document |= {} if methods is None else {"search": {"methods": list(methods)}}
    campaign = campaign_of({**document, **names, **keys})
    parts.check(campaign)
    check_methods(campaign)
    topology_of_campaign = load_topology(campaign.topology)
    check_runner(campaign, topology_of_campaign)
    home = Home.from_environment()
    workers = make_workers(campaign, topology_of_campaign, home.root)
    limit_s = float("inf") if minutes is None else 60 * minutes
    progress = partial(progress_display, Console(stderr=True), limit_s=limit_s)
    report = _tune(campaign, topology_of_campaign, home, resume, workers, progress, parts=parts)
    return TuningResult.of(report, home, studies[-1] if studies else None)


def _spec_of(network: Network) -> str:
    """Return the spec by which workers build the network again."""
    spec = network if isinstance(network, str) else topology(network).spec
    if not isinstance(network, str) and load_topology(spec).id != topology(network).id:
        way_out = "save it as JSON and give file:PATH"
        raise InvalidInput("a network to tune must be one that its spec names", spec, way_out)
    return spec


def best(network: Network, collective: str, size: str | int, alias: str = "champion") -> RegistryEntry:
    """Return what campaigns registered for a network, a collective and a buffer size, verified again.

    The nearest size class answers where that of `size` has no entry.

    Raises:
        CheckFailed: There is none at all.
    """
    home = Home.from_environment()
    (size_bytes,) = size_list(size)
    name = parse_collective(collective).name.value
    return load_best(MlflowStore(home.mlflow_uri, home.artifacts), topology(network), name, size_bytes, alias)
