"""Run tuning campaigns from Python, and load the registered results of earlier campaigns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from chorale.design import Methods, Network, Shown, Sizes, in_words_of_arguments, network_of, size_list
from chorale.job.table.layout import Table, table_bytes
from chorale.runners.api.units import format_size
from chorale.synth import CheckFailed, InvalidInput, parse_collective
from chorale.tuner import Home, TuneReport, campaign_of, load_topology, make_workers, plots, progress_display
from chorale.tuner.costs.pricing import goodput_row
from chorale.tuner.files.home import write_file
from chorale.tuner.launch.plan import check_methods, check_runner
from chorale.tuner.launch.tune import tune as _tune
from chorale.tuner.plots.layout import Picture
from chorale.tuner.reports.job_tables import MEASURED_DTYPE, JobGroup, table_of_campaign
from chorale.tuner.reports.tables import seconds_text
from chorale.tuner.reports.tuning import tune_document
from chorale.tuner.search.search import Callback, StudyParts
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import RegistryEntry, load_best
from chorale.tuner.trials.records import CompleteTrial

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.storages import BaseStorage
    from optuna.study import Study
    from pandas import DataFrame


@in_words_of_arguments
def tune(
    network: Network,
    collective: str = "allreduce",
    *,
    sizes: Sizes | None = None,
    methods: str | Sequence[str] | None = None,
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
    """Run a tuning campaign in this process and its workers, and return the results.

    Progress is printed to stderr. As with `chorale tune`, results are stored in the data folder.

    Args:
        network: A topology spec, or a topology that has a spec.
        collective: The collective to tune.
        sizes: Buffer sizes in bytes; the default is the same as in a campaign file.
        methods: Methods to try, as a comma-separated list or several strings; default: all that support the network.
        runner: Kind of runner, or the complete `runner` section of a campaign.
        name: Campaign name.
        trials: Maximum number of trials.
        minutes: Time limit for the search.
        resume: Whether to continue the newest launch of the campaign called `name`.
        sampler: Sampler name, as in a campaign, or an Optuna sampler.
        pruner: Pruner name, as in a campaign, or an Optuna pruner, which gets a trial's speed-up after each size.
        storage: Storage address, as in a campaign, or an Optuna storage.
        callbacks: Functions called with Optuna's study and the trial after every trial; `study.stop()` ends the search.
        **keys: Further campaign keys, such as seed, baselines or search; see `chorale tune --schema`.

    Raises:
        InvalidInput: A key is unknown or has an invalid value.
    """
    studies: list[Study] = []
    told = (callbacks,) if callable(callbacks) else tuple(callbacks)
    objects = {"sampler": sampler, "pruner": pruner, "storage": storage}
    parts, names = StudyParts.of(objects, (*told, lambda study, _: studies.append(study)))
    spec = network if isinstance(network, str) else network_of(network).spec
    if not isinstance(network, str) and load_topology(spec).id != network_of(network).id:  # workers read the spec
        raise InvalidInput("{} has no spec, and campaigns need one", spec, "save it as JSON and give file:PATH")
    document: dict[str, Any] = {
        "name": name,
        "topology": spec,
        "collective": collective,
        "runner": {"kind": runner} if isinstance(runner, str) else dict(runner),
        "budget": {"trials": trials, "minutes": minutes},
    }
    if sizes is not None:
        document["sizes"] = list(size_list(sizes))
    if methods is not None:
        names_of_methods = methods.replace(",", " ").split() if isinstance(methods, str) else list(methods)
        document["search"] = {"methods": names_of_methods}
    campaign = campaign_of({**document, **names, **keys})
    check_methods(campaign)
    topology_of_campaign = load_topology(campaign.topology)
    check_runner(campaign, topology_of_campaign)
    home = Home.from_environment()
    workers = make_workers(campaign, topology_of_campaign, home.root)
    limit_s = float("inf") if minutes is None else 60 * minutes
    progress = partial(progress_display, Console(stderr=True, emoji=False), limit_s=limit_s)
    report = _tune(campaign, topology_of_campaign, home, resume, workers, progress, parts=parts)
    return TuningResult.of(report, _home=home, _study=studies[-1] if studies else None)


@in_words_of_arguments
def best(
    network: Network, collective: str = "allreduce", size: str | int = "1MiB", alias: str = "champion"
) -> RegistryEntry:
    """Return the best registered result for a network, a collective and a buffer size, after verifying it.

    If nothing is registered for the size class of `size`, the nearest size class is used. `alias` is the alias of the
    registered version in MLflow.

    Raises:
        CheckFailed: No campaign has registered a result, or the result fails verification.
    """
    home = Home.from_environment()
    (size_bytes,) = size_list(size)
    name = parse_collective(collective).name.value
    return load_best(MlflowStore(home.mlflow_uri, home.artifacts), network_of(network), name, size_bytes, alias)


class TuningResult(Methods, Shown, TuneReport):
    """Results of one launch of a tuning campaign; the measurements themselves remain in the data folder.

    _home: the data folder
    _study: the Optuna study that chose the trials, or None if there were no trials
    """

    _home: Home
    _study: Study | None

    @property
    def name(self) -> str:
        """The campaign's name."""
        return str(self.launch.campaign["name"])

    @cached_property
    def best(self) -> Mapping[int, Mapping[str, Any]]:
        """Maps each size in bytes to its best program: a row of `best` in the output of `chorale tune --json`."""
        return {row["size_bytes"]: row for row in tune_document(self)["best"]}

    @cached_property
    def table(self) -> Table:
        """The tuning table for jobs, with every program checked again. Raises CheckFailed if nothing was measured."""
        return table_of_campaign(self._home, self.name, JobGroup(None, None), (MEASURED_DTYPE,), False)

    def save_table(self, path: str | Path) -> Path:
        """Write the tuning table to `path` and return the path. Jobs read the table that CHORALE_TABLE names."""
        write_file(str(path), table_bytes(self.table))
        return Path(path)

    @property
    def study(self) -> Study:
        """Return the Optuna study of the search. Raises CheckFailed if Optuna chose no trial."""
        if self._study is None:
            way_out = "start the campaign again, or with more trials"
            raise CheckFailed("the launch {} has no study, because it has no trials", self.name, way_out)
        return self._study

    def to_frame(self) -> DataFrame:
        """Return a pandas frame with a row for each trial and size: parameters, state, time (µs) and speed-up."""
        import pandas as pd  # noqa: PLC0415 - installed with MLflow; takes half a second to import

        final = {ranked.trial.number: ranked.sizes for ranked in self.ranked_trials}
        rows: list[dict[str, Any]] = []
        for trial in self.trials:
            facts = {"trial": trial.number, "state": trial.state, **trial.candidate.parameters}
            if not isinstance(trial, CompleteTrial):
                rows.append(facts)
                continue
            for size in final.get(trial.number, trial.sizes):  # trials with identical programs share one comparison
                measured = {"time_us": size.median_s * 1e6, "speedup": size.speedup}
                rows.append({**facts, "size_bytes": size.size_bytes, **measured})
        return pd.DataFrame(sorted(rows, key=lambda row: (row["trial"], row.get("size_bytes", 0))))

    def plot(self) -> Picture:
        """Return a plot of the goodput of the best programs and the baseline at each size."""
        series = {
            name: [goodput_row(size, row[key] / 1e6) for size, row in self.best.items()]
            for name, key in (("best", "time_us"), ("baseline", "baseline_time_us"))
        }
        return Picture(lambda path: plots.plot_goodput(self._title, series, path))

    @property
    def _title(self) -> str:  # type: ignore[override]  # depends on the campaign
        campaign = self.launch.campaign
        return f"{self.name}: {campaign['collective']} on {campaign['topology']}"

    def _texts(self) -> dict[str, str]:
        return {
            format_size(size): f"{row['parameters']['method'] if row['parameters'] else row['baseline']}, "
            f"{seconds_text(row['time_us'] / 1e6)}, {row['speedup_vs_baseline']:.2f}× as fast as {row['baseline']}"
            for size, row in self.best.items()
        }

    def __repr__(self) -> str:
        answer = "; ".join(f"{size}: {text}" for size, text in self._texts().items())
        return f"<{self._title}, {len(self.trials)} trials; {answer or 'nothing was measured'}>"
