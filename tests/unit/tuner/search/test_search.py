"""The search: no point twice, the end of the grid, and what a resumed study knows."""

from functools import partial
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from chorale.runners.api.base import FailureKind
from chorale.tuner.search.search import REPEAT_OF, TRIAL_ID, Search, SearchPlan
from chorale.tuner.search.storages import open_storage
from chorale.tuner.search.study import distribution_of, make_sampler
from chorale.tuner.trials.records import Candidate, FailedTrial, PrunedTrial, TrialRecord, trial_id
from tests.campaigns import complete, small_campaign, space_of

SPACE = space_of(small_campaign())
SAMPLERS = ["sizes-gp", "tpe", "random", "nsga2", "qmc"]


def plan(sampler: str = "tpe", seed: int = 0) -> SearchPlan:
    return SearchPlan(SPACE, "study", sampler, seed, partial(trial_id, "launch"), (4096, 65536))


def record(candidate: Candidate) -> TrialRecord:
    """Complete, failed and pruned trials in turn; bfb is twice as fast."""
    facts = (trial_id("launch", candidate), 1, candidate, 1e9, 1.0)
    if candidate.channels == 2 and candidate.chunks == 1:
        return FailedTrial(*facts, FailureKind.CRASH, "made to fail")
    if candidate.channels == 2 and candidate.chunks == 2:
        return PrunedTrial(*facts, "makes no sense")
    return complete(candidate, 1.0 if candidate.method == "bfb" else 2.0)


def work(search: Search, most: int = 1000) -> list[TrialRecord]:
    """Ask and tell until the search ends or `most` trials are done."""
    done: list[TrialRecord] = []
    while len(done) < most and (suggestion := search.ask()) is not None:
        done.append(record(suggestion.candidate))
        search.tell(suggestion.ticket, done[-1])
    return done


def told(search: Search) -> dict[str, TrialState]:
    """Return the state of each finished trial in the study that is not a repeat."""
    named = [trial for trial in search.trials() if REPEAT_OF not in trial.user_attrs]
    assert all(TRIAL_ID in trial.user_attrs for trial in named)
    return {trial.user_attrs[TRIAL_ID]: trial.state for trial in named if trial.state.is_finished()}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_whole_grid_is_tried_once(sampler: str, tmp_path: Path) -> None:
    search = Search(plan(sampler), open_storage(None, tmp_path / "journal"))
    done = work(search)
    assert len(done) == len({trial.candidate for trial in done}) == len(SPACE)
    assert search.ask() is None
    assert [trial.candidate for trial in done[:2]] == SPACE.starts()
    states = told(search)
    assert {trial.trial_id: state_of(trial) for trial in done} == states


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("before", [0, 1, 5, 11])
def test_a_resumed_search_repeats_nothing_and_begins_with_what_was_under_way(
    sampler: str, before: int, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    first = Search(plan(sampler), open_storage(None, journal))
    done = work(first, before)
    lost = first.ask()
    assert lost is not None
    second = Search(plan(sampler), open_storage(None, journal), done)
    rest = work(second)
    assert rest[0].candidate == lost.candidate
    assert {trial.candidate for trial in [*done, *rest]} == set(SPACE.points)
    assert len(done) + len(rest) == len(SPACE)


def test_what_the_store_knows_and_the_study_does_not_is_added(tmp_path: Path) -> None:
    known = [record(point) for point in SPACE.points[:6]]
    search = Search(plan(), open_storage(None, tmp_path / "journal"), known)
    assert told(search) == {trial.trial_id: state_of(trial) for trial in known}
    assert {trial.candidate for trial in work(search)}.isdisjoint({trial.candidate for trial in known})


def test_a_trial_recorded_but_not_told_gets_its_value(tmp_path: Path) -> None:
    """The process died between the journal and the study."""
    journal = tmp_path / "journal"
    first = Search(plan(), open_storage(None, journal))
    suggestion = first.ask()
    assert suggestion is not None
    trial = complete(suggestion.candidate, 1.0)
    second = Search(plan(), open_storage(None, journal), [trial])
    assert told(second) == {trial.trial_id: TrialState.COMPLETE}
    assert len(second.trials()) == 1
    assert second.trials()[0].value == trial.speedup


def test_candidates_under_way_are_not_suggested_again(tmp_path: Path) -> None:
    search = Search(plan("random"), open_storage(None, tmp_path / "journal"))
    asked = [search.ask() for _ in range(len(SPACE))]
    assert len({suggestion.candidate for suggestion in asked if suggestion}) == len(SPACE)
    assert search.ask() is None


def test_equal_seeds_give_equal_searches(tmp_path: Path) -> None:
    runs = [work(Search(plan("tpe", 7), open_storage(None, tmp_path / name))) for name in ("a", "b")]
    assert runs[0] == runs[1]


def test_a_torn_study_and_a_left_lock_do_no_harm(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    done = work(Search(plan(), open_storage(None, journal)), 4)
    with journal.open("ab") as stream:
        stream.write(b'{"op_code": 4, "wor')
    os_lock = tmp_path / "journal.lock"
    os_lock.symlink_to(journal)
    search = Search(plan(), open_storage(None, journal), done)
    assert len(work(search)) == len(SPACE) - 4


def test_numbers_in_even_steps_are_ordered_and_the_rest_are_choices() -> None:
    assert distribution_of((1, 2, 3)) == IntDistribution(1, 3, step=1)
    assert distribution_of((2, 4, 6)) == IntDistribution(2, 6, step=2)
    assert distribution_of((1, 2, 4)) == CategoricalDistribution((1, 2, 4))
    assert distribution_of((None, 1, 2)) == CategoricalDistribution((None, 1, 2))
    assert distribution_of((3,)) == CategoricalDistribution((3,))
    assert distribution_of((3, 2, 1)) == CategoricalDistribution((3, 2, 1))


def test_samplers_by_their_names_in_campaign_files() -> None:
    found = {name: type(make_sampler(name, 1)).__name__ for name in SAMPLERS}
    optunas = {"tpe": "TPESampler", "random": "RandomSampler", "nsga2": "NSGAIISampler", "qmc": "QMCSampler"}
    assert found == {**optunas, "sizes-gp": "RandomSampler"}  # the last only for points that nobody planned


def state_of(trial: TrialRecord) -> TrialState:
    return {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL, "pruned": TrialState.PRUNED}[trial.state]
