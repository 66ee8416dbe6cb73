"""The loop with a runner by formula: budgets, failures, interruptions, moves to other nodes, its end, GPUs."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.engine.build import has_compiler
from chorale.runners.msccl.config import MscclConfig
from chorale.runners.msccl.runner import MscclRunner
from chorale.synth.errors import CheckFailed, Unavailable
from chorale.synth.targets.lift import lift
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.loop import Clocks, TrialLoop
from chorale.tuner.search.search import Search, SearchPlan, open_storage
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.records import (
    Candidate,
    CompleteTrial,
    FailedTrial,
    PrunedTrial,
    TableEntry,
    TrialRecord,
    ranked_trials,
    table_programs,
    trial_id,
    tuning_table,
)
from chorale.tuner.trials.store import Store
from tests.campaigns import small_campaign, space_of
from tests.fakes import FakeRunner, InlineWorkers, fail_with
from tests.stand_ins.nccl import stand_in_library

LAUNCH = Launch("launch", 1, {}, {"name": "small"}, 1e9)
TOPOLOGY = load_topology("ring:4")


def launch(
    folder: Path, campaign: Campaign, workers: InlineWorkers, listeners: tuple[Callable[[TrialRecord], None], ...] = ()
) -> list[TrialRecord]:
    """Run the loop on the launch in `folder`, new or not, and return its trials; each look at the clock is a second."""
    store, ticks = Store(folder, None if (folder / "trials.jsonl").exists() else LAUNCH), count(0.0)
    try:
        names, sizes = partial(trial_id, "launch"), tuple(campaign.sizes)
        plan = SearchPlan(space_of(campaign), "study", campaign.resolved_sampler, 0, names, sizes)
        search = Search(plan, open_storage(None, folder / "optuna.journal"), store.trials)
        clocks = Clocks(lambda: next(ticks), lambda: 1e9)
        TrialLoop(campaign, TOPOLOGY, store, search, workers, clocks, listeners=listeners).run()
    finally:
        store.close()
    return store.trials


def stored(folder: Path) -> Store:
    """Return what is recorded in `folder`."""
    store = Store(folder)
    store.close()
    return store


@pytest.mark.parametrize(("parallel", "newest_first"), [(1, False), (3, True), (20, False)])
def test_the_budget_is_used_and_every_trial_is_recorded(tmp_path, parallel, newest_first):
    heard: list[TrialRecord] = []
    workers = InlineWorkers(FakeRunner(), newest_first)
    trials = launch(tmp_path, small_campaign(parallel=parallel), workers, (heard.append,))
    assert len(trials) == 6
    assert heard == trials
    assert sorted(trial.number for trial in trials) == list(range(1, 7))
    assert all(isinstance(trial, CompleteTrial) for trial in trials)


def test_no_trial_starts_after_the_time_is_up(tmp_path):
    campaign = small_campaign(budget={"trials": 12, "minutes": 0.5}, parallel=1)  # 30 ticks
    trials = launch(tmp_path, campaign, InlineWorkers(FakeRunner()))
    assert 0 < len(trials) < 12


BASELINES = {"baseline:ring", "baseline:biring"}
TWELVE = {"methods": ["bfb"], "channels": {"from": 1, "to": 12}}


def test_every_measurement_has_its_own_seed_and_all_baselines_or_none(tmp_path):
    runner = FakeRunner()
    trials = launch(tmp_path, small_campaign(baselines=["ring", "biring"]), InlineWorkers(runner))
    assert all(BASELINES & set(request.programs) in (BASELINES, set()) for request in runner.requests)
    assert len({request.seed for request in runner.requests}) == len(runner.requests)
    for trial in trials:
        assert set(trial.sizes[0].baseline_times_s) == {"ring", "biring"}
        assert [size.size_bytes for size in trial.sizes] == [4096, 65536]


@pytest.mark.parametrize(("controls", "beside"), [("every-trial", [*range(1, 13)]), ("drift", [1, 2, 4, 8])])
def test_baselines_run_again_after_one_two_four_trials_while_nothing_moves(tmp_path, controls, beside):
    campaign = small_campaign(budget={"trials": 12}, parallel=1, controls=controls, search=TWELVE)
    trials = launch(tmp_path, campaign, InlineWorkers(FakeRunner()))
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    assert len(complete) == 12
    assert [trial.number for trial in complete if trial.sizes[0].beside] == beside


def test_a_resumed_launch_knows_when_the_baselines_ran(tmp_path):
    for trials in (5, 12):
        campaign = small_campaign(budget={"trials": trials}, parallel=1, search=TWELVE)
        records = launch(tmp_path, campaign, InlineWorkers(FakeRunner()))
    complete = [trial for trial in records if isinstance(trial, CompleteTrial)]
    assert [trial.number for trial in complete if trial.sizes[0].beside] == [1, 2, 4, 8]


def test_candidates_with_the_same_program_share_one_measurement_unless_it_failed(tmp_path):
    """ring:4 needs one chunk for ring, so `chunks: null` and `chunks: 1` are the same program."""
    runner = FakeRunner()
    campaign = small_campaign(search={"methods": ["ring"], "chunks": [None, 1]}, parallel=2)
    trials = launch(tmp_path, campaign, InlineWorkers(runner))
    shared, measured = sorted(trials, key=lambda trial: trial.same_program_as or "", reverse=True)
    assert (shared.same_program_as, shared.sizes) == (measured.trial_id, measured.sizes)
    assert len(runner.requests) == 1
    failures = iter([RunFailure(FailureKind.CRASH, "made to fail once"), None])
    (tmp_path / "twin").mkdir()
    trials = launch(tmp_path / "twin", campaign, InlineWorkers(FakeRunner(lambda _: next(failures))))
    assert [type(trial) for trial in trials] == [FailedTrial, CompleteTrial]


def test_what_a_method_cannot_do_is_pruned_and_a_runner_that_is_not_available_ends_the_campaign(tmp_path):
    with pytest.raises(Unavailable, match="the simulated runner does not work here: "):
        launch(tmp_path, small_campaign(), InlineWorkers(FakeRunner(fail_with(FailureKind.UNAVAILABLE))))
    (tmp_path / "other").mkdir()
    trials = launch(
        tmp_path / "other", small_campaign(search={"methods": ["bfb", "expand"]}), InlineWorkers(FakeRunner())
    )
    [pruned] = [trial for trial in trials if isinstance(trial, PrunedTrial)]
    assert pruned.candidate == Candidate("expand")
    assert "ring:4" in pruned.reason


def test_a_runner_that_is_lost_after_a_measurement_costs_trials_only(tmp_path):
    calls = count()
    lost = lambda request: RunFailure(FailureKind.UNAVAILABLE, "gone") if next(calls) else None  # noqa: E731
    trials = launch(tmp_path, small_campaign(parallel=1), InlineWorkers(FakeRunner(lost)))
    assert [type(trial) for trial in trials] == [CompleteTrial, *[FailedTrial] * 5]


def test_senseless_combinations_are_not_tried(tmp_path):
    runner = FakeRunner()
    campaign = small_campaign(search={"methods": ["bfb"], "k": [None, 2], "protocol": ["Simple", "LL"]})
    assert [trial.candidate for trial in launch(tmp_path, campaign, InlineWorkers(runner))] == [Candidate("bfb")]
    assert len([request for request in runner.requests if request.seed == runner.requests[0].seed]) == 1
    assert {name for request in runner.requests for name in request.programs if "baseline" not in name} == {
        trial_id("launch", Candidate("bfb"))
    }


def test_a_baseline_that_cannot_be_made_is_an_error(tmp_path, monkeypatch):
    workers = InlineWorkers(FakeRunner())
    build = workers.build
    impossible = lambda request: build(replace(request, source=replace(request.source, method="expand")))  # noqa: E731
    monkeypatch.setattr(workers, "build", impossible)
    with pytest.raises(CheckFailed, match="baseline:ring failed: expand needs an expansion or a base"):
        launch(tmp_path, small_campaign(), workers)


def test_the_best_meet_in_a_final_which_may_fail(tmp_path):
    def fail_finals(request: RunRequest) -> RunFailure | None:
        return RunFailure(FailureKind.TIMEOUT, "too slow") if len(request.programs) > 2 else None

    assert len(launch(tmp_path, small_campaign(), InlineWorkers(FakeRunner(fail_finals)))) == 6
    assert stored(tmp_path).final is None
    runner = FakeRunner()
    launch(tmp_path, small_campaign(), InlineWorkers(runner))
    final = stored(tmp_path).final
    assert set(runner.requests[-1].programs) == {"baseline:ring", *final.results}
    assert len(final.results) >= 2
    before = len(runner.requests)
    launch(tmp_path, small_campaign(), InlineWorkers(runner))
    assert len(runner.requests) == before  # nothing new, so no new final


@pytest.mark.parametrize("stop_at", range(1, 9))
def test_interrupted_anywhere_and_resumed_nothing_is_lost_or_repeated(tmp_path, stop_at):
    """The interrupt comes in measurement number `stop_at`; the resumed launch ends with the same set of points."""
    calls: Iterator[int] = count(1)

    def interrupt(request: RunRequest) -> RunFailure | None:
        if next(calls) == stop_at:
            raise KeyboardInterrupt
        return None

    campaign = small_campaign(budget={"trials": 12})
    with pytest.raises(KeyboardInterrupt):
        launch(tmp_path, campaign, InlineWorkers(FakeRunner(interrupt)))
    before = (tmp_path / "trials.jsonl").read_bytes()
    runner = FakeRunner()
    trials = launch(tmp_path, campaign, InlineWorkers(runner))
    assert (tmp_path / "trials.jsonl").read_bytes().startswith(before)
    assert len({trial.candidate for trial in trials}) == len(trials) == 12
    assert len({trial.number for trial in trials}) == 12


def test_a_search_storage_that_breaks_ends_the_campaign_with_the_trial_saved(tmp_path, monkeypatch):
    def broken(self: Search, ticket: int, record: TrialRecord) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Search, "tell", broken)
    with pytest.raises(Unavailable, match="the Optuna storage failed"):
        launch(tmp_path, small_campaign(), InlineWorkers(FakeRunner()))
    assert len(stored(tmp_path).trials) == 1


def test_racing_measures_on_only_what_may_still_win(tmp_path):
    """The runner repeats itself exactly: where a program is slower than the best so far it has two repetitions."""
    campaign = small_campaign(pruner="racing", repeats=7, budget={"trials": 12}, parallel=1)
    trials = launch(tmp_path, campaign, InlineWorkers(FakeRunner()))
    best = [0.0, 0.0]
    repeats = []
    for trial in sorted(trials, key=lambda trial: trial.number):
        assert isinstance(trial, CompleteTrial)
        if trial.same_program_as is None:
            rivals = zip(trial.sizes, best, strict=True)
            out = [max(best) > 0 and size.speedup * 1.05 < max(1.0, known) for size, known in rivals]
            expected = [2 if slower else 7 for slower in out]
            repeats += expected
            assert [len(size.times_s) for size in trial.sizes] == expected
            best = [max(known, size.speedup) for size, known in zip(trial.sizes, best, strict=True)]
    assert set(repeats) == {2, 7}


class RunnerOnNodes(FakeRunner):
    """Runs on the nodes `n1,n3`, and after `moves_after` requests on others."""

    def __init__(self, moves_after: int) -> None:
        super().__init__()
        self._moves_after = moves_after

    def submit(self, request: RunRequest) -> Outcome:
        outcome = super().submit(request)
        assert isinstance(outcome, Measurement)
        nodes = "n1,n3" if len(self.requests) <= self._moves_after else "n1,n4"
        return replace(outcome, environment={**outcome.environment, "nodes": nodes})


def test_the_first_trial_on_other_nodes_is_measured_beside_the_baselines_and_nodes_that_stay_cost_nothing(
    tmp_path, caplog
):
    search = {"methods": ["bfb"], "channels": {"from": 1, "to": 6}}
    campaign = small_campaign(budget={"trials": 6}, parallel=1, search=search, pruner="none")
    with caplog.at_level(logging.WARNING, "chorale.controller"):
        trials = launch(tmp_path, campaign, InlineWorkers(RunnerOnNodes(moves_after=4)))
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    assert [trial.environment["nodes"] for trial in complete] == ["n1,n3"] * 4 + ["n1,n4"] * 2
    assert complete[4].sizes[0].beside  # the fifth would have shared the baselines of the fourth
    assert caplog.messages == ["measured on n1,n4, previously on n1,n3: the baselines are measured again"]
    elsewhere, staying = FakeRunner(), RunnerOnNodes(moves_after=1000)
    for name, runner in (("elsewhere", elsewhere), ("staying", staying)):
        (tmp_path / name).mkdir()
        launch(tmp_path / name, campaign, InlineWorkers(runner))
    assert len(elsewhere.requests) == len(staying.requests)


SIZES = (2**14, 2**20)
SEARCH = {"methods": ["ring"], "protocol": ["Simple", "LL", "LL128"]}


def gpu_campaign(search: dict[str, Any] = SEARCH, **changes: Any) -> Campaign:
    document: dict[str, Any] = {
        "name": "gpus",
        "sizes": list(SIZES),
        "search": search,
        "runner": {"kind": "msccl", "timeout_s": 60, "msccl": {"runtime": "executor"}},
        "baselines": ["library:nccl"],
        "repeats": 2,
        "sampler": "grid",
    }
    return small_campaign(**{**document, **changes})


def answer(chosen: Sequence[TableEntry]) -> dict[int, str]:
    """Return what to run at each size: the protocol of the program, or the baseline."""
    return {one.size_bytes: one.trial.candidate.protocol if one.trial else one.baseline for one in chosen}


@pytest.mark.skipif(not has_compiler(), reason="CAMPAIGNS ON MSCCL ARE NOT TESTED: there is no C++ compiler")
@pytest.mark.alone
def test_each_size_gets_its_protocol(tmp_path):
    (tmp_path / "libnccl.so").symlink_to(stand_in_library())
    played = {"STAND_IN_RUNTIME": "executor", "STAND_IN_FAULT": "LL128 falls back", "STAND_IN_SLOWNESS": "20"}
    folder = tmp_path / "launch"
    folder.mkdir()
    config = MscclConfig(
        runtime="executor", library_folder=str(tmp_path), memory="host", iterations=1, variables=played
    )
    with MscclRunner(config) as runner:
        trials = launch(folder, gpu_campaign(), InlineWorkers(runner))
    store = stored(folder)
    [fallen] = [trial for trial in trials if isinstance(trial, FailedTrial)]
    assert (fallen.candidate.protocol, fallen.failure_kind) == ("LL128", FailureKind.REJECTED)
    assert "fell back" in fallen.message
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    chosen = tuning_table(ranked_trials(complete, store.final), together=False)
    assert answer(chosen) == {2**14: "LL", 2**20: "Simple"}
    assert {trial.environment["runtime"] for trial in complete} == {"executor"}
    programs = [
        lift(text) for text in table_programs(chosen, lambda name: store.program_path(name).read_bytes()).values()
    ]
    assert [(one.protocol, one.min_bytes, one.max_bytes) for one in programs] == [
        ("LL", 2**14, 2**20 - 1),
        ("Simple", 2**20, 2**20),
    ]
    assert {one.target for one in programs} == {"msccl-executor-xml"}


def test_programs_too_long_for_a_runtime_are_pruned(tmp_path):
    """The executor takes 64 steps of a thread block, MSCCL 256."""
    search = {"methods": ["forest"], "depth": [20]}
    for runtime, state in (("executor", PrunedTrial), ("msccl", CompleteTrial)):
        (tmp_path / runtime).mkdir()
        campaign = gpu_campaign(search, runner={"kind": "msccl", "msccl": {"runtime": runtime}}, baselines=["ring"])
        [trial] = launch(tmp_path / runtime, campaign, InlineWorkers(FakeRunner()))
        assert isinstance(trial, state)
        if isinstance(trial, PrunedTrial):
            assert "a program must fit msccl-executor-xml: " in trial.reason
