"""A whole launch, wired up: folder, search, workers, loop, tracking, registry."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as StillBusy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from runners.workshop import Workshop
from synth.errors import ChoraleError, InvalidInput
from synth.topology.topology import Topology
from tuner.campaigns.answer import eligible
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.combinations import search_space
from tuner.campaigns.controller import Clocks, Controller
from tuner.campaigns.effort import Effort
from tuner.campaigns.final import Standing, standings
from tuner.campaigns.launch import Launch, check_same_conditions, conditions_of, launch_folders, space_id
from tuner.campaigns.progress import Progress
from tuner.campaigns.records import Candidate, CompleteTrial, TrialRecord, trial_id
from tuner.campaigns.search import Search, SearchPlan, open_storage
from tuner.campaigns.size_class import SizeClass
from tuner.campaigns.space import SearchSpace
from tuner.campaigns.store import Store, is_begun, read_launch
from tuner.home import Home
from tuner.launch_report import draw_picture, upload_page, write_page
from tuner.promotion import judge, with_baselines_made
from tuner.screening import screened
from tuner.tracking.champions import Verdict
from tuner.tracking.mlflow_store import Version
from tuner.tracking.registry import register
from tuner.tracking.similar import similar_winners
from tuner.tracking.tracker import Tracked, Tracker
from tuner.tracking.winners import Winner, winners

_log = logging.getLogger("chorale.tune")

UPLOAD_PATIENCE_S = 120.0
INTERRUPTED_PATIENCE_S = 15.0
WARM_START_PATIENCE_S = 30.0

MakeWorkshop = Callable[[], Workshop]
MakeProgress = Callable[[int, Sequence[TrialRecord]], Progress]
"""Called with how many trials there will be at most, and those that are known already."""


@dataclass(frozen=True, slots=True)
class TuneReport:
    """What came of a launch.

    `versions` maps sizes in bytes to the registered version, where there is one; `verdicts` says of the winner of each
    size class whether it has the alias, and why; `effort` is `Effort.document`.
    """

    launch: Launch
    trials: tuple[TrialRecord, ...]
    standings: tuple[Standing, ...]
    versions: Mapping[int, str]
    tracked: Tracked
    interrupted: bool
    seconds: float
    folder: Path
    effort: Mapping[str, Any]
    verdicts: Mapping[SizeClass, Verdict] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ended:
    """How measuring ended, who won, and what the gate found about the winners."""

    interrupted: bool = False
    failure: ChoraleError | None = None
    best: list[Winner] = field(default_factory=list)
    verdicts: Mapping[SizeClass, Verdict] = field(default_factory=dict)


def open_store(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    launch_id: str | None = None,
    patience_s: float = 0.0,
) -> Store:
    """Return the store of a new launch, or with `resume` of the newest one if there is any.

    With a `launch_id` it is the launch with this id that goes on, or that begins if there is none: whoever starts it
    again after a crash need not know how far it came, and gives what it was `patience_s` to be gone. A resumed launch
    must have the same conditions; its budget, search space and sampler may differ.
    """
    folders = launch_folders(home, campaign.name)
    begun = [folder for folder in folders if is_begun(folder)]
    if launch_id is not None:
        begun = [folder for folder in begun if read_launch(folder).launch_id == launch_id]
    conditions = conditions_of(campaign, topology)
    if begun and (resume or launch_id is not None):
        store = Store(begun[-1], patience_s=patience_s)
        try:
            check_same_conditions(store.launch, conditions)
        except InvalidInput:
            store.close()
            raise
        _log.info("resuming launch %d of %s with %d trials", store.launch.number, campaign.name, len(store.trials))
        return store
    number = int(folders[-1].name) + 1 if folders else 1
    if resume:
        _log.info("nothing to resume for %s: this is its first launch", campaign.name)
    elif folders:
        _log.info("launch %d of %s; the earlier ones stay (--resume goes on with the newest)", number, campaign.name)
    document = campaign.model_dump(by_alias=True, mode="json")
    launch = Launch(launch_id or uuid.uuid4().hex, number, conditions, document, time.time())
    return Store(home.make(home.campaigns / campaign.name / str(number)), launch)


def tune(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    make_workshop: MakeWorkshop,
    make_progress: MakeProgress,
    launch_id: str | None = None,
    try_again: Callable[[], bool] = lambda: False,
    patience_s: float = 0.0,
) -> TuneReport:
    """Run a launch to its end, or to the first KeyboardInterrupt, and report; whatever finished is kept.

    `resume`, `launch_id` and `patience_s` choose the launch, see `open_store`; `try_again` says how long to try to
    reach MLflow at the end, see `Tracker.finish`.
    Raises ChoraleError where the launch could not go on; what was measured is in its journal by then.
    """
    started_s = time.monotonic()
    store = open_store(campaign, topology, home, resume, launch_id, patience_s)
    try:
        tracker = Tracker(home, campaign, topology, store)
        tracker.start()
        effort = Effort(time.monotonic)
        began_cpu_s = time.process_time()
        ended = _measure(campaign, topology, home, store, tracker, make_workshop, make_progress, effort)
        interrupted, failure = ended.interrupted, ended.failure
        draw_picture(campaign, store)
        status = "KILLED" if interrupted else "FAILED" if failure else "FINISHED"
        patience_s = INTERRUPTED_PATIENCE_S if interrupted else UPLOAD_PATIENCE_S
        tracked = tracker.finish(store.trials, store.final, status, patience_s, try_again)
        effort.cpu_s = time.process_time() - began_cpu_s
        store.settle()
        if failure is not None:
            raise failure
        ranked = _ranked(store)
        versions: dict[int, str] = {}
        verdicts: dict[SizeClass, Verdict] = {}
        if not interrupted and tracker.mlflow is not None:
            register_one = partial(register, tracker.mlflow, campaign, topology, store)
            versions, verdicts = _register(register_one, tracked, ended)
        spent = effort.document(tracked.seconds)
        write_page(campaign, store, ranked, versions, verdicts or ended.verdicts, spent)
        if tracker.mlflow is not None:
            upload_page(tracker.mlflow, tracked, store)
        seconds = time.monotonic() - started_s
        return TuneReport(
            store.launch,
            tuple(store.trials),
            tuple(ranked),
            versions,
            tracked,
            interrupted,
            seconds,
            store.folder,
            spent,
            verdicts,
        )
    finally:
        store.close()


def _measure(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    store: Store,
    tracker: Tracker,
    make_workshop: MakeWorkshop,
    make_progress: MakeProgress,
    effort: Effort,
) -> _Ended:
    """Run the loop, then the gate of the registry, on the same workers."""
    workshop = None
    try:
        space = search_space(campaign, topology)
        most = max(len(store.trials), min(campaign.budget.trials, len(space)))
        with make_progress(most, store.trials) as progress:
            workshop = make_workshop()
            search = _search(campaign, topology, tracker, store, workshop, space)
            clocks = Clocks(time.monotonic, time.time)
            listeners = (tracker.trial, progress.trial)
            Controller(campaign, topology, store, search, workshop, clocks, listeners, effort).run()
        best = winners(eligible(_ranked(store), campaign.objective == "geomean_speedup"))
        best = with_baselines_made(campaign, topology, store, workshop, best)
        return _Ended(best=best, verdicts=judge(campaign, topology, store, workshop, home, best))
    except KeyboardInterrupt:
        _log.info("interrupted: telling MLflow of what finished, for %.0f s at most", INTERRUPTED_PATIENCE_S)
        return _Ended(interrupted=True)
    except ChoraleError as error:
        return _Ended(failure=error)
    finally:
        if workshop is not None:
            workshop.close()


def _ranked(store: Store) -> list[Standing]:
    """Return the trials to choose from."""
    complete = [trial for trial in store.trials if isinstance(trial, CompleteTrial)]
    return standings(complete, store.final)


def _search(
    campaign: Campaign, topology: Topology, tracker: Tracker, store: Store, workshop: Workshop, space: SearchSpace
) -> Search:
    study = f"{campaign.name}.{store.launch.launch_id[:8]}.{space_id(campaign, conditions_of(campaign, topology))[:12]}"
    name_trial = partial(trial_id, store.launch.launch_id)
    plan = SearchPlan(
        space=space,
        study=study,
        sampler=campaign.resolved_sampler,
        seed=campaign.seed,
        trial_id=name_trial,
        sizes_bytes=tuple(campaign.sizes),
        together=campaign.objective == "geomean_speedup",
        second_objective=campaign.second_objective,
        starts=() if store.trials else _starts(campaign, topology, tracker, space, workshop),
    )
    storage = open_storage(campaign.storage, store.folder / "optuna.journal")
    return Search(plan, storage, store.trials)


def _starts(
    campaign: Campaign, topology: Topology, tracker: Tracker, space: SearchSpace, workshop: Workshop
) -> list[Candidate]:
    """Return what to try first: what the registry has for similar networks, then the best guesses."""
    similar: list[Candidate] = []
    if campaign.warm_start:
        question = tracker.ask(lambda mlflow: similar_winners(mlflow, campaign, topology))
        try:
            similar = question.result(WARM_START_PATIENCE_S)
            _log.info("warm start: %d of the registry's champions come first", len(similar))
        except StillBusy:
            _log.warning("no warm start: MLflow took more than %g s", WARM_START_PATIENCE_S)
        except ChoraleError as error:
            _log.info("no warm start: %s", error)  # the tracker has told why already
    return list(dict.fromkeys([*similar, *screened(campaign, topology, space, workshop)]))


def _register(
    register_one: Callable[[Winner, str, Verdict], tuple[Version, Verdict]], tracked: Tracked, ended: _Ended
) -> tuple[dict[int, str], dict[SizeClass, Verdict]]:
    """Register every winner; return the version at each of their sizes, and what was decided about the alias."""
    versions: dict[int, str] = {}
    verdicts: dict[SizeClass, Verdict] = {}
    for winner in ended.best:
        size_class = winner.size_class
        # A baseline has no run of its own: it was measured in all of them.
        run_id = str(tracked.parent_run_id) if winner.baseline else tracked.run_ids[winner.trial.trial_id]
        try:
            version, verdicts[size_class] = register_one(winner, run_id, ended.verdicts[size_class])
        except ChoraleError as error:
            _log.warning("not registered for %s: %s", size_class, error)
            continue
        _log.info("%s: version %s %s", size_class, version.version, verdicts[size_class].reason)
        versions |= {size.size_bytes: version.version for size in winner.sizes}
    return versions, verdicts
