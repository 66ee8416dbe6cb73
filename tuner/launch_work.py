"""The work of a launch between opening and reporting it: search, measurements, the gate, the registry."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as StillBusy
from dataclasses import dataclass, field
from functools import partial

from chorale.runners.api.workers import Workers
from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.campaigns.answer import eligible
from chorale.tuner.campaigns.campaign import Campaign
from chorale.tuner.campaigns.combinations import search_space
from chorale.tuner.campaigns.effort import Overhead
from chorale.tuner.campaigns.final import RankedTrial, ranked_trials
from chorale.tuner.campaigns.launch import space_id
from chorale.tuner.campaigns.progress import LaunchProgress
from chorale.tuner.campaigns.records import Candidate, CompleteTrial, TrialRecord, trial_id
from chorale.tuner.campaigns.search import Search, SearchPlan, open_storage
from chorale.tuner.campaigns.size_class import SizeClass
from chorale.tuner.campaigns.space import SearchSpace
from chorale.tuner.campaigns.store import Store
from chorale.tuner.home import Home
from chorale.tuner.launch.loop import Clocks, TrialLoop
from chorale.tuner.promotion import judge, with_built_baselines
from chorale.tuner.screening import screened_candidates
from chorale.tuner.tracking.champions import PromotionVerdict
from chorale.tuner.tracking.registry import register
from chorale.tuner.tracking.similar import similar_champions
from chorale.tuner.tracking.tracker import Tracker, TrackingResult
from chorale.tuner.tracking.winners import BestProgram, best_programs

_log = logging.getLogger("chorale.tune")

INTERRUPTED_PATIENCE_S = 15.0
WARM_START_PATIENCE_S = 30.0

MakeWorkers = Callable[[], Workers]
ProgressFactory = Callable[[int, Sequence[TrialRecord]], LaunchProgress]
"""Called with how many trials there will be at most, and those that are known already."""


@dataclass(frozen=True, slots=True)
class MeasuringOutcome:
    """How measuring ended, who won, and what the gate found about the winners."""

    interrupted: bool = False
    failure: ChoraleError | None = None
    best: list[BestProgram] = field(default_factory=list)
    verdicts: Mapping[SizeClass, PromotionVerdict] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """That of the run of the launch."""
        return "KILLED" if self.interrupted else "FAILED" if self.failure else "FINISHED"


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """What a launch is about, and who keeps, tracks and counts what comes of it."""

    campaign: Campaign
    topology: Topology
    home: Home
    store: Store
    tracker: Tracker
    overhead: Overhead

    def measure(self, make_workers: MakeWorkers, make_progress: ProgressFactory) -> MeasuringOutcome:
        """Run the loop, then the gate of the registry, on the same workers."""
        workers = None
        try:
            space = search_space(self.campaign, self.topology)
            most = max(len(self.store.trials), min(self.campaign.budget.trials, len(space)))
            with make_progress(most, self.store.trials) as progress:
                workers = make_workers()
                workers.share(self.topology, ())
                self._loop(workers, space, progress)
            return self._judged(workers)
        except KeyboardInterrupt:
            _log.info("interrupted: telling MLflow of what finished, for %.0f s at most", INTERRUPTED_PATIENCE_S)
            return MeasuringOutcome(interrupted=True)
        except ChoraleError as error:
            return MeasuringOutcome(failure=error)
        finally:
            if workers is not None:
                workers.close()

    def ranked_trials(self) -> list[RankedTrial]:
        """Return the trials to choose from."""
        complete = [trial for trial in self.store.trials if isinstance(trial, CompleteTrial)]
        return ranked_trials(complete, self.store.final)

    def register(
        self, tracked: TrackingResult, ended: MeasuringOutcome
    ) -> tuple[dict[int, str], dict[SizeClass, PromotionVerdict]]:
        """Register every winner; return the version at each of their sizes, and what was decided about the alias."""
        versions: dict[int, str] = {}
        verdicts: dict[SizeClass, PromotionVerdict] = {}
        mlflow = self.tracker.mlflow
        if mlflow is None or ended.interrupted:
            return versions, verdicts
        for winner in ended.best:
            size_class = winner.size_class
            # A baseline has no run of its own: it was measured in all of them.
            run_id = str(tracked.parent_run_id) if winner.baseline else tracked.run_ids[winner.trial.trial_id]
            verdict = ended.verdicts[size_class]
            try:
                version, verdicts[size_class] = register(
                    mlflow, self.campaign, self.topology, self.store, winner, run_id, verdict
                )
            except ChoraleError as error:
                _log.warning("not registered for %s: %s", size_class, error)
                continue
            _log.info("%s: version %s %s", size_class, version.version, verdicts[size_class].reason)
            versions |= {size.size_bytes: version.version for size in winner.sizes}
        return versions, verdicts

    def _loop(self, workers: Workers, space: SearchSpace, progress: LaunchProgress) -> None:
        search = self._search(workers, space)
        clocks = Clocks(time.monotonic, time.time)
        listeners = (self.tracker.trial, progress.trial)
        TrialLoop(self.campaign, self.topology, self.store, search, workers, clocks, listeners, self.overhead).run()

    def _judged(self, workers: Workers) -> MeasuringOutcome:
        best = best_programs(eligible(self.ranked_trials(), self.campaign.objective == "geomean_speedup"))
        best = with_built_baselines(self.campaign, self.topology, self.store, workers, best)
        verdicts = judge(self.campaign, self.topology, self.store, workers, self.home, best)
        return MeasuringOutcome(best=best, verdicts=verdicts)

    def _search(self, workers: Workers, space: SearchSpace) -> Search:
        campaign, launch_id = self.campaign, self.store.launch.launch_id
        plan = SearchPlan(
            space=space,
            study=f"{campaign.name}.{launch_id[:8]}.{space_id(campaign, self.store.launch.conditions)[:12]}",
            sampler=campaign.resolved_sampler,
            seed=campaign.seed,
            trial_id=partial(trial_id, launch_id),
            sizes_bytes=tuple(campaign.sizes),
            together=campaign.objective == "geomean_speedup",
            second_objective=campaign.second_objective,
            starts=() if self.store.trials else self._starts(workers, space),
        )
        return Search(plan, open_storage(campaign.storage, self.store.folder / "optuna.journal"), self.store.trials)

    def _starts(self, workers: Workers, space: SearchSpace) -> list[Candidate]:
        """Return what to try first: what the registry has for similar networks, then the best guesses."""
        similar = self._similar() if self.campaign.warm_start else []
        return list(dict.fromkeys([*similar, *screened_candidates(self.campaign, self.topology, space, workers)]))

    def _similar(self) -> list[Candidate]:
        question = self.tracker.query(lambda mlflow: similar_champions(mlflow, self.campaign, self.topology))
        try:
            similar = question.result(WARM_START_PATIENCE_S)
        except StillBusy:
            _log.warning("no warm start: MLflow took more than %g s", WARM_START_PATIENCE_S)
        except ChoraleError as error:
            _log.info("no warm start: %s", error)  # the tracker has told why already
        else:
            _log.info("warm start: %d of the registry's champions come first", len(similar))
            return similar
        return []
