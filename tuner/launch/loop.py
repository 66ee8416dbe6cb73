"""Runs the trials of a launch: asks the search for a candidate, builds it, measures it, and records the result."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from chorale.runners.api import base
from chorale.runners.api.base import Completion, Workers, completions
from chorale.runners.api.units import format_size
from chorale.runners.nccl.config import NcclConfig
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import CheckFailed, ChoraleError, Unavailable
from chorale.synth.identity import content_id
from chorale.synth.methods.method import Options
from chorale.synth.programs.library_call import LibraryCall, library_call_text
from chorale.synth.programs.program import AnyProgram
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.values import is_adopted
from chorale.tuner.launch.final_round import FinalRound, is_worth_comparing
from chorale.tuner.launch.plan import adopted_programs
from chorale.tuner.search.search import Search, Suggestion, search_failure
from chorale.tuner.search.space import lowered_as
from chorale.tuner.statistics.contest import Controls, race_ratio
from chorale.tuner.trials.records import (
    Candidate,
    CompleteTrial,
    FailedTrial,
    PrunedTrial,
    SizeResult,
    TrialRecord,
    baseline_times,
    controls_of,
    run_key,
    size_results,
    trial_id,
)
from chorale.tuner.trials.store import Store

_log = logging.getLogger("chorale.controller")
NODES = "nodes"
WAIT_S = 0.5
Value = TypeVar("Value")
Listener = Callable[[TrialRecord], None]


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Creates the build and measurement requests of one launch.

    baselines: name in measurements -> program, for the baselines that are measured together with candidates
    """

    campaign: Campaign
    topology: Topology
    baselines: Mapping[str, AnyProgram] = field(default_factory=dict)

    @property
    def references(self) -> Mapping[str, str]:
        """Return a mapping from each baseline's name in measurements to its name in the campaign and in records."""
        names = self.campaign.baseline_names
        return {name if name.startswith(base.LIBRARY) else f"baseline:{name}": name for name in names}

    def build(self, candidate: Candidate) -> BuildRequest:
        """Return the request to build a candidate. Raises InvalidInput if a parameter exceeds a limit."""
        collective = parse_collective(self.campaign.collective)
        options = Options(chunks=candidate.chunks, k=candidate.k)
        source = ScheduleRequest(self.topology, collective, candidate.method, options, candidate.depth)
        return BuildRequest(source, lowered_as(self.campaign.runner.config.lowering(), candidate))

    def adopted(self, candidate: Candidate) -> BuildResult | None:
        """Return the program of a candidate that names a program file or a library algorithm, else None."""
        if (settings := candidate.settings) is not None:
            config, collective = self.campaign.runner.config, parse_collective(self.campaign.collective)
            assert isinstance(config, NcclConfig)
            call = LibraryCall(
                collective, self.topology.compute_count, config.works_in_place(collective.name), settings
            )
            text = library_call_text(call)
            return BuildResult("", b"", content_id({"library": text}), call, text, "0", 0, 1)
        if not is_adopted(candidate.method):
            return None
        return adopted_programs(self.campaign, self.topology)[candidate.method]

    def baseline_builds(self) -> dict[str, BuildRequest]:
        """Return name in measurements -> build request, for baselines that are neither files nor library algorithms."""
        return {
            name: self.build(Candidate(method))
            for name, method in self.references.items()
            if not method.startswith(base.LIBRARY) and not is_adopted(method)
        }

    def race(self, name: str, measured: Iterable[CompleteTrial], controls: Controls) -> base.Race | None:
        """Return the rule that ends trial `name` early if it is slower than the `measured` trials.

        The result is None if racing is off or if there are no `measured` trials.
        """
        speedups = [[size.speedup for size in trial.sizes] for trial in measured]
        if self.campaign.pruner != "racing" or not speedups:
            return None
        ratios = tuple(1 / max(1.0, *column) for column in zip(*speedups, strict=True))
        fastest = zip(*([np.median(times) for times in sizes] for sizes in controls.times_s.values()), strict=True)
        reference_s = tuple(float(min(column)) for column in fastest)
        margin = race_ratio(controls.deviation) - 1
        return base.Race(name, tuple(self.references), ratios, self.campaign.first_repeats, margin, reference_s)

    def run(
        self,
        candidates: Mapping[str, tuple[Candidate, AnyProgram]],
        number: int,
        race: base.Race | None = None,
        *,
        beside: bool = True,
    ) -> base.RunRequest:
        """Return the request that measures `candidates`; `number` is added to the seed.

        beside: whether the baselines are measured as well
        """
        baselines = self.baselines if beside else {}
        library = [name.removeprefix(base.LIBRARY) for name in self.campaign.baselines if name.startswith(base.LIBRARY)]
        return base.RunRequest(
            topology=self.topology,
            programs={**{name: program for name, (_, program) in candidates.items()}, **baselines},
            sizes_bytes=tuple(self.campaign.sizes),
            repeats=self.campaign.repeats,
            timeout_s=self.campaign.runner.timeout_s,
            seed=self.campaign.seed + number,
            race=race,
            library=tuple(library) if beside else (),
            settings={
                name: base.ProgramSettings(candidate.k, candidate.instances, candidate.buffer_bytes)
                for name, (candidate, _) in candidates.items()
            },
        )


@dataclass(frozen=True, slots=True)
class PendingTrial:
    """A trial that has begun but has no record yet."""

    suggestion: Suggestion
    trial_id: str
    number: int
    started_s: float
    started_unix_s: float

    @property
    def candidate(self) -> Candidate:
        return self.suggestion.candidate


@dataclass(frozen=True, slots=True)
class BuiltTrial(PendingTrial):
    """A pending trial whose program is built.

    beside: whether the baselines are measured in the same run
    so_far: results so far, if the sizes are measured one after the other
    """

    built: BuildResult
    beside: bool = True
    so_far: base.Measurement | None = None

    @staticmethod
    def of(trial: PendingTrial, built: BuildResult) -> BuiltTrial:
        facts = trial.suggestion, trial.trial_id, trial.number, trial.started_s, trial.started_unix_s
        return BuiltTrial(*facts, built)

    @property
    def run_key(self) -> str:
        return run_key(self.built.program_id, self.candidate)


@dataclass(slots=True)
class Overhead:
    """Adds up the time that this process and its workers spend on a launch.

    trials:      number of finished trials
    measuring_s: seconds that workers spent measuring trials
    elapsed_s:   seconds from the first suggestion to the last record
    once_s:      seconds of one-time work during the first measurement, such as importing MLflow; not in `elapsed_s`
    cpu_s:       CPU time of this process from the start of the loop to the last upload
    notes:       fallback used when the search's model failed -> number of times it was used
    priors:      the search's priors with their final weights (`Search.priors`)
    """

    trials: int = 0
    measuring_s: float = 0.0
    elapsed_s: float = 0.0
    once_s: float = 0.0
    cpu_s: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)
    priors: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the overhead in milliseconds per trial.

        `beside_measuring_ms` is the loop's time minus the measuring time, so it includes preparing and waiting; it
        can be negative if several measurements run at the same time. `cpu_ms` is this process's CPU time, which hardly
        depends on the machine's load.
        """
        per_trial = 1000 / max(1, self.trials)
        return {
            "trials": self.trials,
            "measuring_ms": round(self.measuring_s * per_trial, 3),
            "beside_measuring_ms": round((self.elapsed_s - self.measuring_s) * per_trial, 3),
            "cpu_ms": round(self.cpu_s * per_trial, 3),
            **({"notes": dict(self.notes)} if self.notes else {}),
            **({"priors": self.priors} if self.priors else {}),
        }


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of a launch: `monotonic_s` measures durations, `unix_s` gives the time stamps of records."""

    monotonic_s: Callable[[], float]
    unix_s: Callable[[], float]


class TrialLoop:
    """Runs the trials of one launch until its budget or search space is exhausted.

    A trial goes through `_start`, `_on_built`, `_on_measured` and `_finish`, in this order. Each record is passed first
    to the store, then to the search, then to the listeners, so that after a crash the store can bring the search and
    the listeners up to date. At most `campaign.parallel` trials are pending: being built, waiting, or being measured.
    If a candidate's program was already measured, the candidate shares that measurement.
    """

    def __init__(
        self,
        campaign: Campaign,
        topology: Topology,
        store: Store,
        search: Search,
        workers: Workers,
        clocks: Clocks,
        *,
        listeners: Sequence[Listener] = (),
        overhead: Overhead | None = None,
    ) -> None:
        self._campaign = campaign
        self._topology = topology
        self._store = store
        self._search = search
        self._workers = workers
        self._clocks = clocks
        self._listeners = listeners
        self._overhead = overhead or Overhead()
        self._requests = RequestBuilder(campaign, topology)
        self._pending: dict[Future[Any], PendingTrial] = {}
        self._duplicates: dict[str, list[BuiltTrial]] = {}  # run key of a measurement -> other trials that wait for it
        self._measured = {trial.run_key: trial for trial in store.trials if isinstance(trial, CompleteTrial)}
        self._pruned = {trial.run_key: trial for trial in store.trials if isinstance(trial, PrunedTrial)}
        self._controls = controls_of(store.trials)
        nodes = [trial.environment.get(NODES) for trial in store.trials if isinstance(trial, CompleteTrial)]
        self._nodes = nodes[-1] if nodes else None  # where the last measurement ran, if the runner reports it
        self._next_number = 1 + max((trial.number for trial in store.trials), default=0)
        minutes = campaign.budget.minutes
        self._deadline_s = float("inf") if minutes is None else clocks.monotonic_s() + 60 * minutes
        self._exhausted = False
        self._meanwhile: Callable[[], object] | None = None

    def run(self, meanwhile: Callable[[], object] | None = None) -> None:
        """Run trials until no further trial may start, then compare the best programs side by side.

        meanwhile: function to call once, during the first measurement, or at the end if nothing is measured

        Raises CheckFailed if a baseline cannot be built, and Unavailable if the runner or the search storage does not
        work. Trials that are pending when an exception is raised, including KeyboardInterrupt, get no record; a
        resumed launch tries their candidates first.
        """
        if self._may_start():
            self._build_baselines()
        began_s = self._clocks.monotonic_s()
        self._meanwhile = meanwhile
        try:
            self._start_trials()
            while self._pending:
                for future in self._workers.wait(list(self._pending), WAIT_S):
                    self._advance(self._pending.pop(future), future.result())
                self._start_trials()
        finally:
            self._overhead.elapsed_s = self._clocks.monotonic_s() - began_s - self._overhead.once_s
            self._overhead.notes = dict(self._search.notes)
            self._overhead.priors = self._search.priors
        self._do_meanwhile()
        # Compare the best candidates side by side, unless there are no new trials or there is nothing to compare
        trials = self._store.trials
        complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
        runnable = [trial for trial in complete if self._store.program_path(trial.program_id).exists()]
        compared = self._store.final is not None and self._store.final.trials == len(trials)
        if not is_worth_comparing(self._campaign, runnable) or compared:
            return
        if not self._requests.baselines:
            self._build_baselines()
        final = FinalRound(self._campaign, self._store, self._workers, self._requests)
        if (comparison := final.compare(runnable, self._next_number, self._clocks.monotonic_s)) is not None:
            self._store.add(replace(comparison, trials=len(trials)))

    def _build_baselines(self) -> None:
        builds = self._requests.baseline_builds()
        futures = [self._workers.build(request) for request in builds.values()]
        adopted = {
            name: self._requests.adopted(Candidate(method)) for name, method in self._requests.references.items()
        }
        programs = {name: result.program for name, result in adopted.items() if result is not None}
        for name, completion in zip(builds, completions(self._workers, futures), strict=True):
            if isinstance(completion.value, BuildFailure):
                way_out = "choose other `baselines` for this network"
                raise CheckFailed(f"{name} failed: {{}}", completion.value.message, way_out)
            programs[name] = completion.value.program
        self._requests = replace(self._requests, baselines=programs)

    def _may_start(self) -> bool:
        trials = len(self._store.trials) + self._pending_trials
        is_open = not self._exhausted and self._clocks.monotonic_s() < self._deadline_s
        return trials < self._campaign.budget.trials and is_open

    @property
    def _pending_trials(self) -> int:
        return len(self._pending) + sum(map(len, self._duplicates.values()))

    def _start_trials(self) -> None:
        while self._pending_trials < self._campaign.parallel and self._may_start():
            if (suggestion := self._guarded(self._search.ask)) is None:
                self._exhausted = True
                _log.info("%s", self._search.end)
                return
            self._start(suggestion)

    def _start(self, suggestion: Suggestion) -> None:
        name = trial_id(self._store.launch.launch_id, suggestion.candidate)
        trial = PendingTrial(suggestion, name, self._next_number, self._clocks.monotonic_s(), self._clocks.unix_s())
        self._next_number += 1
        if (adopted := self._requests.adopted(trial.candidate)) is not None:
            self._on_built(BuiltTrial.of(trial, adopted))
            return
        self._pending[self._workers.build(self._requests.build(trial.candidate))] = trial

    def _advance(self, trial: PendingTrial, completion: Completion[Any]) -> None:
        if isinstance(trial, BuiltTrial):
            self._overhead.measuring_s += completion.seconds
            self._on_measured(trial, completion.value)
        elif isinstance(completion.value, BuildFailure):
            failure = completion.value
            if failure.kind == BuildFailureKind.INVALID:  # the candidate's parameters are invalid
                self._finish(trial, PrunedTrial(*self._facts(trial), failure.message))
                return
            kind = base.FailureKind.WRONG_RESULT if failure.kind == BuildFailureKind.UNSOUND else base.FailureKind.CRASH
            self._finish(trial, FailedTrial(*self._facts(trial), kind, failure.message))
        else:
            self._on_built(BuiltTrial.of(trial, completion.value))

    def _on_built(self, trial: BuiltTrial) -> None:
        built = trial.built
        self._store.keep(built.schedule_id, built.schedule, built.program_id, built.program_text)
        first = self._measured.get(trial.run_key)
        if first is not None:
            measured = first.schedule_id, first.program_id, first.sizes, first.environment
            program = first.trial_id, first.channels, first.blocks
            self._finish(trial, CompleteTrial(*self._facts(trial), *measured, *program))
        elif trial.run_key in self._pruned:
            reason = self._pruned[trial.run_key].reason
            self._finish(trial, PrunedTrial(*self._facts(trial), reason, program_id=built.program_id))
        elif trial.run_key in self._duplicates:
            self._duplicates[trial.run_key].append(trial)
        else:
            self._duplicates[trial.run_key] = []
            # From time to time a trial includes the baselines, to detect changes in the machine
            each = self._campaign.controls == "every-trial"
            self._submit(replace(trial, beside=each or self._controls.is_due(len(self._measured))))

    def _submit(self, trial: BuiltTrial) -> None:
        """Measure a trial at all sizes. With a pruner, measure only the next size, after which the pruner decides."""
        programs = {trial.trial_id: (trial.candidate, trial.built.program)}
        prunes, step = self._search.prunes, 0 if trial.so_far is None else len(trial.so_far.results[trial.trial_id])
        race = None if prunes else self._requests.race(trial.trial_id, self._measured.values(), self._controls)
        request = self._requests.run(programs, trial.number, race, beside=trial.beside)
        if prunes:
            size = request.sizes_bytes[step : step + 1]
            request = replace(request, sizes_bytes=size, seed=request.seed + step * 2**31)
        self._pending[self._workers.measure(request)] = trial
        self._do_meanwhile()

    def _do_meanwhile(self) -> None:
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            began_s = self._clocks.monotonic_s()
            meanwhile()
            self._overhead.once_s = self._clocks.monotonic_s() - began_s

    def _on_measured(self, trial: BuiltTrial, outcome: base.Outcome) -> None:
        # Raise Unavailable if the runner is unavailable before any measurement of this launch has succeeded.
        if isinstance(outcome, base.RunFailure) and outcome.kind == base.FailureKind.UNAVAILABLE and not self._measured:
            rule = f"the {self._campaign.runner.kind} runner does not work here: {{}}"
            raise Unavailable(rule, outcome.message, "see `chorale doctor`, or choose another `runner.kind`")
        nodes = outcome.environment.get(NODES) if isinstance(outcome, base.Measurement) else None
        if nodes is not None and self._campaign.runner.at_once == 1:  # several workers measure on separate nodes
            before, self._nodes = self._nodes, nodes
            if before not in (None, nodes):
                _log.warning("measured on %s, previously on %s: the baselines are measured again", nodes, before)
                self._controls = controls_of(())
                if not trial.beside:  # its baselines were measured in earlier trials, maybe on other nodes
                    self._submit(replace(trial, beside=True, so_far=None))
                    return
        if self._search.prunes and isinstance(outcome, base.Measurement):
            if trial.so_far is not None:  # add the results of another size
                earlier, later = trial.so_far.results, outcome.results
                outcome = replace(outcome, results={name: (*earlier[name], *later[name]) for name in earlier})
            trial = replace(trial, so_far=outcome)
            if self._goes_on(trial, outcome):
                return
        if isinstance(outcome, base.RunFailure):
            facts = self._facts(trial)
            self._end(trial, FailedTrial(*facts, outcome.kind, outcome.message, dict(outcome.environment)))
            return
        if control := baseline_times(outcome, self._requests.references):
            self._controls.add(control, len(self._measured))
        facts, program = self._facts(trial), trial.built.program
        identity = trial.built.schedule_id, trial.built.program_id, self._results(trial, outcome)
        blocks = max(len(rank.blocks) for rank in program.ranks)
        record = CompleteTrial(*facts, *identity, dict(outcome.environment), None, program.channels, blocks)
        self._end(trial, record)

    def _results(self, trial: BuiltTrial, outcome: base.Measurement) -> tuple[SizeResult, ...]:
        weights, references = self._campaign.size_weights, self._requests.references
        return size_results(outcome, trial.trial_id, references, weights, self._controls.times_s)

    def _facts(self, trial: PendingTrial) -> tuple[str, int, Candidate, float, float]:
        """Return the values of the fields that all trial records have in common, in the order of the fields."""
        seconds = self._clocks.monotonic_s() - trial.started_s
        return trial.trial_id, trial.number, trial.candidate, trial.started_unix_s, seconds

    def _goes_on(self, trial: BuiltTrial, so_far: base.Measurement) -> bool:
        """Report the latest size to the pruner. Then stop the trial, if the pruner says so, or measure the next size.

        Returns False if all sizes have been measured, so that the caller can complete the trial.
        """
        sizes = self._results(trial, so_far)
        step, last = len(sizes), sizes[-1]
        ticket, is_last = trial.suggestion.ticket, step == len(self._campaign.sizes)
        if self._guarded(lambda: self._search.report(ticket, step, last), "pruner") and not is_last:
            reason = f"the pruner ended it after {format_size(last.size_bytes)}, {last.speedup:.3g} times as fast"
            self._end(trial, PrunedTrial(*self._facts(trial), reason, sizes, trial.built.program_id))
            return True
        if not is_last:
            self._submit(trial)
        return not is_last

    def _end(self, trial: BuiltTrial, record: TrialRecord) -> None:
        self._finish(trial, record)
        for duplicate in self._duplicates.pop(trial.run_key):
            self._on_built(duplicate)  # shares the trial's measurement; if the trial failed, one duplicate is measured

    def _finish(self, trial: PendingTrial, record: TrialRecord) -> None:
        self._store.add(record)
        self._overhead.trials += 1
        if isinstance(record, CompleteTrial):
            self._measured.setdefault(record.run_key, record)
        elif isinstance(record, PrunedTrial):
            self._pruned.setdefault(record.run_key, record)
        ended = self._guarded(lambda: self._search.tell(trial.suggestion.ticket, record))
        for listener in self._listeners:
            listener(record)
        self._search.call_back(ended)

    def _guarded(self, step: Callable[[], Value], part: str = "sampler") -> Value:
        """Run a step of the search. Errors in the storage or in `part` are converted to errors that name the cause.

        Raises JournalLost if another process has resumed this launch and its study.
        """
        try:
            return step()
        except ChoraleError:
            raise
        except Exception as error:  # SQLAlchemy, drivers and the file system each have their own types
            self._store.journal.require_ours()
            raise search_failure(error, part) from error
