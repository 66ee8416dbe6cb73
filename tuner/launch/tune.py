"""Runs a complete launch: searches, measures, judges and registers the best programs, and reports.

Judging is the task of the promotion gate. The best program of a size class gets the alias (champion) if it is correct
at a size that was not tuned, and faster than the version that has the alias. A baseline that nothing beats also goes
through the gate: a champion that is slower than this baseline loses the alias.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from chorale.runners.api.base import (
    FailureKind,
    Outcome,
    RunFailure,
    SizeMeasurement,
    Workers,
    completions,
    library_result,
)
from chorale.runners.api.config import TimeSource
from chorale.runners.api.registry import is_simulated
from chorale.runners.api.units import format_ms, format_size
from chorale.runners.measurement.driver import LinkLimit, link_limit, ratio_interval
from chorale.synth.build.build import build_program
from chorale.synth.build.request import BuildFailure, BuildResult
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.synth.programs.additions import order_of_additions
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import AnyProgram, Program
from chorale.synth.targets.lift import lift_code, read_unchecked
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.launch.loop import Clocks, Overhead, RequestBuilder, TrialLoop
from chorale.tuner.launch.plan import campaign_on, first_guesses, learned_priors
from chorale.tuner.search.search import SearchPlan, StudyParts, open_search
from chorale.tuner.search.space import SearchSpace, can_execute, is_native, lowered_as, search_space
from chorale.tuner.tracking import registry
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.tracking.registry import (
    ROLLED_BACK,
    BestProgram,
    PromotionVerdict,
    StoredProgram,
    best_programs,
    register,
)
from chorale.tuner.tracking.tracker import Tracker, TrackingResult
from chorale.tuner.trials.journal import JournalLost, Launch, space_id
from chorale.tuner.trials.records import (
    Candidate,
    CompleteTrial,
    FailedTrial,
    RankedTrial,
    SizeClass,
    TrialRecord,
    candidate_codec,
    eligible,
    ranked_trials,
    trial_id,
)
from chorale.tuner.trials.store import Store, open_store

_promotion_log = logging.getLogger("chorale.promotion")

REPEATS = 9
"""Smallest number of repetitions whose second shortest and second longest time enclose the median (95 % confidence)."""

CHALLENGER, CHAMPION, BESIDE = "challenger", "champion", "beside"
BROKEN = (FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.WRONG_RESULT)
"""Kinds of failures that count as the program's fault. Failures of other kinds may have other causes."""

Rival = tuple[Candidate, AnyProgram] | str
"""A program with the candidate from which it was built, or the name of one of the library's own algorithms."""

Rivals = Mapping[str, Rival]
_log = logging.getLogger("chorale.tune")
INTERRUPTED_PATIENCE_S = 15.0
UPLOAD_PATIENCE_S = 180.0


def with_built_baselines(
    campaign: Campaign, topology: Topology, store: Store, workers: Workers, best: Sequence[BestProgram]
) -> list[BestProgram]:
    """Build and store the programs of the winning baselines, and return `best` with these programs filled in.

    Library algorithms, and baselines that cannot be built, have no program.
    """
    requests = RequestBuilder(campaign, topology)
    candidates = {item.baseline: Candidate(item.baseline) for item in best if item.baseline and item.library is None}
    results: dict[str, BuildResult | BuildFailure | None]
    results = {name: requests.adopted(each) for name, each in candidates.items()}
    missing = {name: candidates[name] for name, result in results.items() if result is None}
    futures = [workers.build(requests.build(candidate)) for candidate in missing.values()]
    results |= {name: done.value for name, done in zip(missing, completions(workers, futures), strict=True)}
    stored: dict[str | None, StoredProgram] = {}
    for method, candidate in candidates.items():
        built = results[method]
        if isinstance(built, BuildResult):
            store.keep(built.schedule_id, built.schedule, built.program_id, built.program_text)
            stored[method] = StoredProgram(candidate, built.schedule_id, built.program_id)
    return [replace(item, stored=stored.get(item.baseline, item.stored)) for item in best]


def judge(
    campaign: Campaign, topology: Topology, store: Store, workers: Workers, home: Home, best: Sequence[BestProgram]
) -> dict[SizeClass, PromotionVerdict]:
    """Decide, by measuring on the campaign's runners, whether each best program may become the champion of its class.

    If MLflow cannot be reached, the programs are not compared with champions. A program is then promoted only if no
    version has the alias when it is registered.
    """
    try:
        mlflow = MlflowStore(campaign.tracking.address(home.mlflow_uri), home.artifacts) if best else None
    except ChoraleError as error:
        _promotion_log.warning("no comparison with champions: %s", error)
        mlflow = None
    _promotion_log.info("validating winners of %d size classes at unseen sizes and against champions", len(best))
    gate = _Gate(campaign, topology, store, workers, mlflow)
    return {winner.size_class: gate.judge(winner) for winner in best}


@dataclass(frozen=True, slots=True)
class _Gate:
    campaign: Campaign
    topology: Topology
    store: Store
    workers: Workers
    mlflow: MlflowStore | None

    def judge(self, winner: BestProgram) -> PromotionVerdict:
        against = None
        try:
            name, champion, ours = None, None, self.campaign.register_
            if self.mlflow is not None:
                what = self.campaign.collective, self.topology, winner.size_class
                name = registry.model_name(self.mlflow, ours.model, *what)
                champion = self.mlflow.aliased(name, ours.alias)
            against = None if champion is None else champion.version
            identity = registry.identity_tags(self.campaign, winner)
            if champion is not None and registry.is_same(champion.tags, identity):
                return PromotionVerdict(True, "already has the alias", champion.version)
            for version in self.mlflow.versions(name) if self.mlflow and name else []:
                if registry.is_same(version.tags, identity) and ROLLED_BACK in version.tags:
                    return PromotionVerdict(False, "it was rolled back", against)
            return self._measured(winner, champion)
        except (ChoraleError, OSError) as error:
            _promotion_log.warning("%s: not promoted: %s", winner.size_class, error)
            return PromotionVerdict(False, f"could not be judged: {error}", against)

    def _measured(self, winner: BestProgram, champion: ModelVersion | None) -> PromotionVerdict:
        against = None if champion is None else champion.version
        if winner.library is not None:
            rival: Rival = winner.library
        elif winner.stored is None:
            raise CheckFailed("the baseline {} cannot be built", winner.baseline, "name other `baselines`")
        else:
            rival = self._program(winner.stored.candidate, winner.stored.program_id)
        challenger = {CHALLENGER: rival}
        fault, passed = self._fault_test(winner, challenger)
        if fault is not None:
            return PromotionVerdict(False, f"fault test: {fault.message}", against)
        if champion is None:
            return PromotionVerdict(True, f"no previous champion; {passed}")
        simulated = is_simulated(self.campaign.runner.kind)
        if simulated != is_simulated(champion.tags.get(registry.RUNNER)):
            reason = "simulated, and the champion was measured" if simulated else "measured, and the champion was not"
            return PromotionVerdict(not simulated, f"{reason}; {passed}", against)
        if (algorithm := champion.tags.get(registry.LIBRARY_ALGORITHM)) is not None:
            return self._compared(winner, {**challenger, CHAMPION: algorithm}, champion, passed)
        assert self.mlflow is not None  # the champion was read from it
        files = self.mlflow.download(champion)
        manifest = json.loads(files[registry.MANIFEST_FILE])
        verified = registry.check_registered(files, manifest)
        candidate = candidate_codec.validate_python(manifest["parameters"])
        program, runner = lift_code(files[registry.PROGRAM_FILE]), self.campaign.runner
        if verified is None and not can_execute(runner, program):
            rule, way_out = "the champion from a file does not run on this runner: {}", "choose another `runner`"
            raise CheckFailed(rule, f"{candidate} for {program.target}", way_out)
        if verified is not None and not is_native(runner, program):  # lowered again for this campaign's target
            program = build_program(verified, lowered_as(runner.config.lowering(), candidate)).program
        return self._compared(winner, {**challenger, CHAMPION: (candidate, program)}, champion, passed)

    def _fault_test(self, winner: BestProgram, challenger: Rivals) -> tuple[RunFailure | None, str]:
        """Run the new program once, if possible at a size that was not tuned. Return (failure or None, remark)."""
        if winner.library is not None:
            return None, "the library's own, which nothing beat"
        if self.campaign.runner.capabilities.times is TimeSource.RECORD:  # `register` replays the program anyway
            return None, "its replay is correct"
        size_bytes = unseen_size(winner.size_class, self.campaign.sizes)
        most = [rival[1].max_bytes for rival in challenger.values() if not isinstance(rival, str)]
        if any(0 < largest < size_bytes for largest in most):
            size_bytes = max(size.size_bytes for size in winner.sizes)  # the program does not support larger sizes
        outcome = self._run(winner, challenger, (size_bytes,), 1)
        fault = outcome if isinstance(outcome, RunFailure) else None
        seen = "" if size_bytes in self.campaign.sizes else " at an unseen size"
        return fault, f"correct{seen}, {size_bytes} bytes"

    def _compared(self, winner: BestProgram, rivals: Rivals, champion: ModelVersion, passed: str) -> PromotionVerdict:
        sizes = tuple(size.size_bytes for size in winner.sizes)
        outcome = self._run(winner, rivals, sizes, REPEATS)
        if isinstance(outcome, RunFailure):  # if the champion also fails when run alone, it loses the alias
            alone = self._run(winner, {CHAMPION: rivals[CHAMPION]}, sizes, 1)
            is_broken = isinstance(alone, RunFailure) and alone.kind in BROKEN
            reason = f"could not be compared: {outcome.message}"
            if isinstance(alone, RunFailure) and is_broken:
                reason = f"version {champion.version} fails here: {alone.message}"
            return PromotionVerdict(is_broken, reason, champion.version)
        times = _mean_times(outcome.results[CHALLENGER]), _mean_times(outcome.results[CHAMPION])
        ratio = ratio_interval(*times)
        faster = ratio.high < 1
        word = "faster than" if faster else "not clearly faster than"
        at = ", ".join(format_size(size) for size in sizes)
        reason = f"{word} version {champion.version} side by side at {at}, {REPEATS} repetitions; {passed}"
        return PromotionVerdict(faster, reason, champion.version, ratio)

    def _run(self, winner: BestProgram, rivals: Rivals, sizes_bytes: tuple[int, ...], repeats: int) -> Outcome:
        """Measure `rivals`. Every run needs a program, so one is added if all rivals are library algorithms."""
        programs = {name: rival for name, rival in rivals.items() if not isinstance(rival, str)}
        library = {name: rival for name, rival in rivals.items() if isinstance(rival, str)}
        if not programs:
            programs = {BESIDE: self._program(winner.trial.candidate, winner.trial.program_id)}
        request = RequestBuilder(self.campaign, self.topology).run(programs, len(self.store.trials))
        algorithms = tuple(dict.fromkeys(library.values()))
        request = replace(request, sizes_bytes=sizes_bytes, repeats=repeats, library=algorithms)
        [completion] = completions(self.workers, [self.workers.measure(request)])
        outcome = completion.value
        if isinstance(outcome, RunFailure):
            return outcome
        of_library = {name: outcome.results[library_result(algorithm)] for name, algorithm in library.items()}
        return replace(outcome, results={**outcome.results, **of_library})

    def _program(self, candidate: Candidate, program_id: str) -> tuple[Candidate, AnyProgram]:
        return candidate, lift_code(self.store.program_path(program_id).read_bytes())


def unseen_size(size_class: SizeClass, sizes_bytes: Sequence[int]) -> int:
    """Return a size in the class that is not in `sizes_bytes` and that few chunk counts divide.

    If the class has no such size left, the returned size is outside the class.
    """
    size_bytes = size_class.min_bytes + size_class.min_bytes // 3 | 3
    while size_bytes in sizes_bytes:
        size_bytes += 4
    return size_bytes


def _mean_times(sizes: Sequence[SizeMeasurement]) -> list[float]:
    """Return, for each repetition, the geometric mean of its times over all sizes."""
    rows = zip(*(size.times_s for size in sizes), strict=True)
    return [math.prod(row) ** (1 / len(sizes)) for row in rows]


class LaunchProgress:
    """Prints one line per trial: its outcome, the best so far and the time left.

    budget:   maximum number of trials, including the `recorded` ones
    recorded: trials that were recorded before the launch was resumed
    limit_s:  time limit in seconds, counted from the start of the first new trial; no trial starts after it
    """

    def __init__(
        self, console: Console, budget: int, recorded: Sequence[TrialRecord] = (), limit_s: float = math.inf
    ) -> None:
        self._console = console
        self._budget = budget
        self._limit_s = limit_s
        self._trials = list(recorded)
        self._before = len(recorded)

    def trial(self, record: TrialRecord) -> None:
        self._trials.append(record)
        new = self._trials[self._before :]
        passed_s = max(one.started_unix_s + one.seconds for one in new) - min(one.started_unix_s for one in new)
        left_s = passed_s / len(new) * max(0, self._budget - len(self._trials))
        left_s = min(left_s, max(0.0, self._limit_s - passed_s))
        complete = [one for one in self._trials if isinstance(one, CompleteTrial)]
        best = max(complete, key=lambda one: one.speedup, default=None)
        leader = "" if best is None else f", best {best.speedup:.2f}x {best.candidate}"
        count = f"trial {len(self._trials)}/{self._budget}, about {int(left_s // 60)}:{int(left_s % 60):02d} left"
        if isinstance(record, CompleteTrial):
            times = ", ".join(f"{format_size(size.size_bytes)} {format_ms(size.median_s)}" for size in record.sizes)
            outcome = f"{record.speedup:.2f}x ({times})"
        elif isinstance(record, FailedTrial):
            outcome = f"failed, {record.failure_kind.value}: {record.message}"
        else:
            outcome = f"pruned: {record.reason}"
        text = f"{record.candidate}: {outcome}  ({count}{leader})"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def progress_display(
    console: Console, budget: int, recorded: Sequence[TrialRecord] = (), limit_s: float = math.inf
) -> LaunchProgress:
    """Return an object that prints a launch's progress on `console`; a quiet console shows nothing."""
    return LaunchProgress(console, budget, recorded, limit_s)


MakeWorkers = Callable[[], Workers]
ProgressFactory = Callable[[int, Sequence[TrialRecord]], LaunchProgress]
"""Function that returns a progress display for a maximum number of trials and the trials recorded so far."""


@dataclass(frozen=True, slots=True)
class MeasuringOutcome:
    """The outcome of a launch's measurements: how they ended, the best programs, and the promotion verdicts on them."""

    interrupted: bool = False
    failure: ChoraleError | None = None
    best: list[BestProgram] = field(default_factory=list)
    verdicts: Mapping[SizeClass, PromotionVerdict] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return "KILLED" if self.interrupted else "FAILED" if self.failure else "FINISHED"


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """A launch in progress: its campaign and network, and the objects that store trials, upload them and count time."""

    campaign: Campaign
    topology: Topology
    home: Home
    store: Store
    tracker: Tracker
    overhead: Overhead
    parts: StudyParts = field(default_factory=StudyParts)

    def measure(self, make_workers: MakeWorkers, make_progress: ProgressFactory) -> MeasuringOutcome:
        """Run the trials of the launch, then the promotion gate, on the same workers."""
        workers = None
        try:
            space = search_space(self.campaign, self.topology)
            max_trials = max(len(self.store.trials), min(self.campaign.budget.trials, len(space)))
            progress = make_progress(max_trials, self.store.trials)
            workers = make_workers()
            self._loop(workers, space, progress)
            best = best_programs(eligible(self.ranked_trials(), self.campaign.one_winner), self.campaign.deterministic)
            best = with_built_baselines(self.campaign, self.topology, self.store, workers, best)
            self.tracker.await_opening(UPLOAD_PATIENCE_S)
            verdicts = judge(self.campaign, self.topology, self.store, workers, self.home, best)
            return MeasuringOutcome(best=best, verdicts=verdicts)
        except KeyboardInterrupt:
            _log.info("interrupted: uploading finished trials to MLflow, for at most %.0f s", INTERRUPTED_PATIENCE_S)
            return MeasuringOutcome(interrupted=True)
        except ChoraleError as error:
            return MeasuringOutcome(failure=error)
        finally:
            if workers is not None:
                workers.close()

    def ranked_trials(self) -> list[RankedTrial]:
        """Return the trials from which the best programs are chosen.

        In a deterministic campaign, only trials count whose programs provably give all ranks the same bits in every
        run. If finalists are among these trials, only the finalists are returned. Raises CheckFailed if there are
        trials but no such program.
        """
        complete = [trial for trial in self.store.trials if isinstance(trial, CompleteTrial)]
        if not self.campaign.deterministic:
            return ranked_trials(complete, self.store.final)
        good = set()
        for name in {trial.program_id for trial in complete}:
            program = read_unchecked(self.store.program_path(name).read_bytes()).program
            order = order_of_additions(program) if isinstance(program, Program | ExecutionPlan) else None
            if not program.collective.reduces or (order is not None and order.same_on_all_ranks):
                good.add(name)
        fixed = [trial for trial in complete if trial.program_id in good]
        if complete and not fixed:
            rule = "no trial has a program with the same order of additions on all ranks"
            raise CheckFailed(rule, "", "add other methods, such as ring or rabenseifner")
        return ranked_trials(fixed, self.store.final) or ranked_trials(fixed, None)

    def register(
        self, tracked: TrackingResult, ended: MeasuringOutcome
    ) -> tuple[dict[int, str], dict[SizeClass, PromotionVerdict]]:
        """Register the best programs. Return (size in bytes -> registered version, size class -> verdict)."""
        versions: dict[int, str] = {}
        verdicts: dict[SizeClass, PromotionVerdict] = {}
        mlflow = self.tracker.mlflow
        if mlflow is None or ended.interrupted:
            return versions, verdicts
        for winner in ended.best:
            size_class = winner.size_class
            # A baseline has no run in MLflow because it was measured in all trials.
            run_id = str(tracked.parent_run_id) if winner.baseline else tracked.run_ids[winner.trial.trial_id]
            verdict = ended.verdicts[size_class]
            try:
                version, verdicts[size_class] = register(
                    mlflow, self.campaign, self.topology, self.store, winner=winner, run_id=run_id, verdict=verdict
                )
            except ChoraleError as error:
                _log.warning("not registered for %s: %s", size_class, error)
                continue
            _log.info("%s: version %s: %s", size_class, version.version, verdicts[size_class].reason)
            versions |= {size.size_bytes: version.version for size in winner.sizes}
        return versions, verdicts

    def _loop(self, workers: Workers, space: SearchSpace, progress: LaunchProgress) -> None:
        starts = [] if self.store.trials else first_guesses(self.campaign, self.topology, space)
        campaign, launch_id, folder = self.campaign, self.store.launch.launch_id, self.store.folder
        priors = learned_priors(campaign, self.topology, space, self.home, launch_id)
        plan = SearchPlan(
            space=space,
            study=f"{campaign.name}.{launch_id[:8]}.{space_id(campaign, self.store.launch.conditions)[:12]}",
            sampler=self.parts.names.get("sampler", campaign.resolved_sampler),
            seed=campaign.seed,
            trial_id=partial(trial_id, launch_id),
            sizes_bytes=tuple(campaign.sizes),
            weights=tuple(campaign.weights or ()),
            together=campaign.one_winner,
            starts=tuple(starts),
            priors=tuple(priors),
            parts=self.parts,
        )
        url = None if self.campaign.storage is None else self.campaign.storage.reveal()
        search = open_search(plan, url, folder / "optuna.journal", self.store.trials)
        clocks, listeners = Clocks(time.monotonic, time.time), (self.tracker.trial, progress.trial)
        parts = campaign, self.topology, self.store, search, workers, clocks
        TrialLoop(*parts, listeners=listeners, overhead=self.overhead).run(meanwhile=self.tracker.start)


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The results of a launch, for reports.

    ranked_trials: trials from which the best programs are chosen
    versions:      size in bytes -> registered version, if there is one
    tracked:       ids of the launch's runs in MLflow
    seconds:       duration of the launch since it was started or resumed
    overhead:      result of `Overhead.document`
    verdicts:      size class -> whether its best program became the champion, and why
    limit:         shortest times that the links allow; None if the links' rates are not known
    """

    launch: Launch
    trials: tuple[TrialRecord, ...]
    ranked_trials: tuple[RankedTrial, ...]
    versions: Mapping[int, str]
    tracked: TrackingResult
    interrupted: bool
    seconds: float
    folder: Path
    overhead: Mapping[str, Any]
    verdicts: Mapping[SizeClass, PromotionVerdict] = field(default_factory=dict)
    limit: LinkLimit | None = None


def tune(
    campaign: Campaign,
    topology: Topology,
    home: Home,
    resume: bool,
    make_workers: MakeWorkers,
    make_progress: ProgressFactory,
    *,
    launch_id: str | None = None,
    try_again: Callable[[], bool] = lambda: False,
    patience_s: float = 0.0,
    parts: StudyParts | None = None,
) -> TuneReport:
    """Run a launch until it ends or is interrupted (KeyboardInterrupt); return its report. Finished trials are kept.

    resume, launch_id, patience_s: which launch to run, and how long to wait for its lock, see `open_store`
    try_again: function that decides whether to retry MLflow at the end, see `Tracker.finish`
    parts:     Optuna objects to use

    Raises ChoraleError if the launch cannot continue; everything measured is already in the journal of the launch.
    """
    started_s, overhead = time.monotonic(), Overhead()
    campaign = campaign_on(campaign, topology)
    parts = parts or StudyParts()
    store = open_store(campaign, topology, home, resume, launch_id=launch_id, patience_s=patience_s)
    try:
        tracker = Tracker(home, campaign, topology, store, objects=parts.names)
        work = LaunchWork(campaign, topology, home, store, tracker, overhead, parts)
        began_cpu_s = time.process_time()
        ended = work.measure(make_workers, make_progress)
        if isinstance(ended.failure, JournalLost):
            tracker.abandon()
            raise ended.failure
        patience_s = INTERRUPTED_PATIENCE_S if ended.interrupted else UPLOAD_PATIENCE_S
        tracked = tracker.finish(store.trials, store.final, ended.status, patience_s, try_again)
        overhead.cpu_s = time.process_time() - began_cpu_s
        if ended.failure is not None:
            raise ended.failure
        ranked = work.ranked_trials()
        complete = [trial for trial in store.trials if isinstance(trial, CompleteTrial)]
        limit: LinkLimit | None = None
        if complete:
            limit = link_limit(topology, parse_collective(campaign.collective), complete[-1].environment)
        versions, verdicts = work.register(tracked, ended)
        return TuneReport(
            launch=store.launch,
            trials=tuple(store.trials),
            ranked_trials=tuple(ranked),
            versions=versions,
            tracked=tracked,
            interrupted=ended.interrupted,
            seconds=time.monotonic() - started_s,
            folder=store.folder,
            overhead=overhead.document(),
            verdicts=verdicts,
            limit=limit,
        )
    finally:
        store.close()
