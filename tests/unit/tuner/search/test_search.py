"""The search: no point twice, what a resumed study knows, hostile results, and storages that are none."""

import math
import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from chorale.runners.api.base import FailureKind
from chorale.synth.errors import CheckFailed, ChoraleError, Unavailable
from chorale.tuner.search.search import (
    REPEAT_OF,
    TRIAL_ID,
    Search,
    SearchPlan,
    distribution_of,
    make_sampler,
    open_storage,
    search_failure,
)
from chorale.tuner.search.size_model import AcquisitionOptimizer
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.trials.records import (
    Candidate,
    CompleteTrial,
    FailedTrial,
    PrunedTrial,
    SizeResult,
    TrialRecord,
    trial_id,
)
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


def test_a_path_as_mlflow_writes_it_is_a_journal_that_other_tools_of_optuna_read(tmp_path):
    for name, prefix in {"plain": "", "file": "file:", "url": "file://"}.items():
        work(Search(plan("random"), open_storage(f"{prefix}{tmp_path}/{name}", tmp_path / "other")), 1)
        assert b'"op_code"' in (tmp_path / name).read_bytes()
    assert not (tmp_path / "other").exists()
    for _ in range(2):  # made, and found again
        optuna.create_study(
            storage=open_storage(str(tmp_path / "optuna.log"), tmp_path / "no"), study_name="a", load_if_exists=True
        )
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "optuna.log"))
    assert optuna.get_all_study_names(optuna.storages.JournalStorage(backend)) == ["a"]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_whole_grid_is_tried_once(sampler, tmp_path):
    search = Search(plan(sampler), open_storage(None, tmp_path / "journal"))
    done = work(search)
    assert len(done) == len({trial.candidate for trial in done}) == len(SPACE)
    assert search.ask() is None
    assert [trial.candidate for trial in done[:2]] == SPACE.starts()
    states = told(search)
    assert {trial.trial_id: state_of(trial) for trial in done} == states


@pytest.mark.parametrize(
    ("sampler", "before"), [("tpe", 0), ("qmc", 1), ("random", 1), ("sizes-gp", 1), ("nsga2", 5), ("sizes-gp", 11)]
)
def test_a_resumed_search_repeats_nothing_and_begins_with_what_was_under_way(sampler, before, tmp_path):
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


def test_what_the_store_knows_and_the_study_does_not_is_added(tmp_path):
    known = [record(point) for point in SPACE.points[:6]]
    search = Search(plan(), open_storage(None, tmp_path / "journal"), known)
    assert told(search) == {trial.trial_id: state_of(trial) for trial in known}
    assert {trial.candidate for trial in work(search)}.isdisjoint({trial.candidate for trial in known})
    journal = tmp_path / "died"  # the process, between the journal and the study
    first = Search(plan(), open_storage(None, journal))
    suggestion = first.ask()
    trial = complete(suggestion.candidate, 1.0)
    second = Search(plan(), open_storage(None, journal), [trial])
    assert told(second) == {trial.trial_id: TrialState.COMPLETE}
    assert len(second.trials()) == 1
    assert second.trials()[0].value == trial.speedup


def test_candidates_under_way_are_not_suggested_again_and_a_torn_study_does_no_harm(tmp_path):
    search = Search(plan("random"), open_storage(None, tmp_path / "under way"))
    asked = [search.ask() for _ in range(len(SPACE))]
    assert len({suggestion.candidate for suggestion in asked if suggestion}) == len(SPACE)
    assert search.ask() is None
    runs = [work(Search(plan("tpe", 7), open_storage(None, tmp_path / name))) for name in ("a", "b")]
    assert runs[0] == runs[1]
    journal = tmp_path / "journal"
    done = work(Search(plan(), open_storage(None, journal)), 4)
    with journal.open("ab") as stream:
        stream.write(b'{"op_code": 4, "wor')
    (tmp_path / "journal.lock").symlink_to(journal)
    assert len(work(Search(plan(), open_storage(None, journal), done))) == len(SPACE) - 4


def test_distributions_and_samplers_of_optuna():
    assert distribution_of((1, 2, 3)) == IntDistribution(1, 3, step=1)
    assert distribution_of((2, 4, 6)) == IntDistribution(2, 6, step=2)
    for values in ((1, 2, 4), (None, 1, 2), (3,), (3, 2, 1)):
        assert distribution_of(values) == CategoricalDistribution(values)
    found = {name: type(make_sampler(name, 1)).__name__ for name in SAMPLERS}
    optunas = {"tpe": "TPESampler", "random": "RandomSampler", "nsga2": "NSGAIISampler", "qmc": "QMCSampler"}
    assert found == {**optunas, "sizes-gp": "RandomSampler"}  # the last only for points that nobody planned


def state_of(trial: TrialRecord) -> TrialState:
    return {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL, "pruned": TrialState.PRUNED}[trial.state]


HOSTILE_POINTS = tuple(Candidate(method, k=k, channels=c) for method in "abc" for k in (1, 2, 4) for c in (1, 2))
HOSTILE_SIZES = (1024, 65536, 2**20)
HOSTILE = {
    "constant": lambda random: np.ones(3),
    "zero": lambda random: np.zeros(3),
    "nan": lambda random: np.full(3, math.nan),
    "infinite": lambda random: np.full(3, math.inf),
    "wild": lambda random: 10.0 ** random.uniform(-300, 300, 3),
    "contradictory": lambda random: random.choice([1e-9, 1e9], 3),
    "mixed": lambda random: random.choice([0.0, math.nan, 1e-300, 1.0, 1e300, -1.0], 3),
}


def space_plan(sampler: str) -> SearchPlan:
    dimensions = {"method": ("a", "b", "c"), "k": (1, 2, 4), "channels": (1, 2)}

    everything = SimpleNamespace(matters=lambda *_: True, reason_not_to_try=lambda _: None)
    return SearchPlan(SearchSpace(dimensions, everything), "fuzz", sampler, 0, lambda one: one.id, HOSTILE_SIZES)


def timed_record(candidate: Candidate, times: np.ndarray) -> CompleteTrial:
    sizes = tuple(
        SizeResult(s, s, (float(t),) * 3, {"library": (1.0,) * 3}) for s, t in zip(HOSTILE_SIZES, times, strict=True)
    )
    return CompleteTrial(candidate.id, 1, candidate, 0.0, 0.0, "", candidate.id, sizes)


@pytest.mark.parametrize(("sampler", "kind"), [*(("sizes-gp", kind) for kind in HOSTILE), ("tpe", "infinite")])
def test_every_point_is_tried_whatever_the_times_are(sampler, kind):
    random = np.random.default_rng(0)
    search = Search(space_plan(sampler))
    tried = []
    while (suggestion := search.ask()) is not None:
        tried.append(suggestion.candidate)
        search.tell(suggestion.ticket, timed_record(suggestion.candidate, HOSTILE[kind](random)))
    assert len(tried) == len(set(tried)) == len(HOSTILE_POINTS)


def test_what_stands_in_for_a_broken_model_is_noted(monkeypatch):
    def broken(*_: object) -> None:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    optimizer = AcquisitionOptimizer(HOSTILE_POINTS, HOSTILE_SIZES, False, 0)
    monkeypatch.setattr(optimizer, "_next", broken)
    gains = {point: np.array([index, 0.0, 0.0]) for index, point in enumerate(HOSTILE_POINTS[:4])}
    assert optimizer.next(gains, [], []) not in gains
    assert set(optimizer.notes) == {"the model was reset to its prior", "a point was drawn at random"}
    assert isinstance(search_failure(sqlite3.OperationalError("disk I/O error")), Unavailable)
    assert isinstance(search_failure(OSError(28, "No space left on device")), Unavailable)
    blamed = search_failure(np.linalg.LinAlgError("Eigenvalues did not converge"))
    assert isinstance(blamed, CheckFailed)
    assert "sampler" in str(blamed)
    assert "storage" not in str(blamed)


def make_database(file: Path, *tables: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        for table in tables:
            connection.execute(f"CREATE TABLE {table} (id INTEGER)")


@pytest.fixture(scope="module")
def mistakes(tmp_path_factory):
    """Return a folder of files that are no storages."""
    tmp_path = tmp_path_factory.mktemp("mistakes")
    make_database(tmp_path / "mlflow.db", "experiments", "runs", "alembic_version")
    optuna.create_study(storage=f"sqlite:///{tmp_path}/optuna.db")
    with closing(sqlite3.connect(tmp_path / "optuna.db")) as new:
        new.execute(f"VACUUM INTO '{tmp_path}/old.db'")
    with closing(sqlite3.connect(tmp_path / "old.db", isolation_level=None)) as old:
        old.execute("UPDATE alembic_version SET version_num = 'v2.6.0.a'")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes.txt").write_text("no journal\n" * 200)
    return tmp_path


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("{}/mlflow.db", "is MLflow's database"),
        ("sqlite:///{}/mlflow.db", "is MLflow's database"),
        ("{}/optuna.db", "write sqlite:///"),
        ("sqlite:///{}/old.db", "optuna storage upgrade"),
        ("{}/notes.txt", "is not a journal of Optuna"),
        ("{}/none/optuna.log", "no folder"),
        ("{}", "is a folder"),
        ("{}/pipe", "is not a regular file"),
        ("sqlite:///{}/pipe", "is not a regular file"),
        ("sqlite:///{}", "is a folder"),
        ("sqlite:///{}/notes.txt", "not a database"),
        ("sqlte:///{}/new.db", "did you mean 'sqlite'"),
        ("sqlite:/new.db", "write `sqlite://`"),
        ("nodriver://nowhere/db", "choose from sqlite, postgresql"),
        ("postgresql://user@127.0.0.1:1/db", "Connection refused"),
    ],
)
def test_each_mistake_has_its_message(mistakes, address, words):
    before = (mistakes / "mlflow.db").read_bytes()
    with pytest.raises(ChoraleError, match=words):
        open_storage(address.format(mistakes), mistakes / "unused")
    assert (mistakes / "mlflow.db").read_bytes() == before
