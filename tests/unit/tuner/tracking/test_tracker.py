"""What MLflow is told and asked: the tracker with a store that fails, the registry, new databases, addresses."""

import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chorale.synth.errors import Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.tracking.mlflow_store import MlflowStore, RunState, what_is_at
from chorale.tuner.tracking.registry import PROGRAM_ID, RUNNER, best_programs, is_same
from chorale.tuner.tracking.tracker import LAUNCH_ID, LONGEST_PAUSE_S, TRIAL_ID, Tracker, TrackingResult
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.records import Candidate, RankedTrial, SizeResult
from chorale.tuner.trials.store import Store
from tests.campaigns import complete, small_campaign, tracked_runs
from tests.serving import served
from tests.unit.tuner.search.test_search import make_database

LAUNCH = Launch("launch", 1, {}, {"name": "small"}, 1e9)
TRIALS = [complete(Candidate("bfb", channels=number), number=number) for number in range(1, 6)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path, LAUNCH)
    yield store
    store.close()


def track(home: Home, store: Store, clock: Callable[[], float], *more: Callable[[], bool]) -> TrackingResult:
    """Track a launch of `TRIALS`; `more`: whether to wait for MLflow at the end."""
    campaign = small_campaign()
    tracker = Tracker(home, campaign, load_topology(campaign.topology), store, clock)
    tracker.start()
    for trial in TRIALS:
        store.add(trial)
        tracker.trial(trial)
    return tracker.finish(store.trials, None, "FINISHED", 60.0, *more)


def break_calls(
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    outages: list[bool],
    counts: Callable[..., bool] = lambda *_: True,
    lost_answer: bool = False,
) -> None:
    """Let calls of `step` that count fail as `outages` says, with `lost_answer` after they were done."""
    genuine, answers = getattr(MlflowStore, step), iter(outages)

    def broken(self: MlflowStore, *arguments: Any, **named: Any) -> Any:
        fails = counts(*arguments) and next(answers, False)
        done = None if fails and not lost_answer else genuine(self, *arguments, **named)
        if fails:
            raise Unavailable("MLflow cannot be reached", "the network", "wait")
        return done

    monkeypatch.setattr(MlflowStore, step, broken)


@pytest.mark.parametrize(
    ("step", "lost_answer"),
    [("start_run", False), ("start_run", True), ("log", True), ("upload", False), ("end_run", True)],
)
def test_after_an_outage_every_trial_is_told_once(home, store, monkeypatch, step, lost_answer):
    """The third call of `step` fails, before it reaches MLflow or, with a lost answer, after it was done."""
    break_calls(monkeypatch, step, [False, False, True], lost_answer=lost_answer)
    tracked = track(home, store, lambda: 0.0)
    assert tracked.problem is None
    found = tracked_runs(home.mlflow_uri)
    assert sorted(run.data.tags[TRIAL_ID] for run in found) == sorted(trial.trial_id for trial in TRIALS)
    assert {run.info.run_id for run in found} == set(tracked.run_ids.values())
    assert {run.info.status for run in found} == {"FINISHED"}


def test_trials_wait_while_mlflow_is_away_and_follow_when_it_is_back(home, store, monkeypatch):
    """Each reading of the clock is a minute later, so the pause is over with the next trial."""
    minutes = iter(range(1000))
    break_calls(monkeypatch, "upload", [True, True, False], lambda _run, files: "campaign.json" not in files)
    tracked = track(home, store, lambda: LONGEST_PAUSE_S * next(minutes))
    assert tracked.problem is None
    assert len(tracked.run_ids) == len(tracked_runs(home.mlflow_uri)) == len(TRIALS)


def test_who_can_wait_reaches_mlflow_after_the_end(home, store, monkeypatch):
    break_calls(monkeypatch, "experiment", [True] * 3)
    asked: list[bool] = []
    tracked = track(home, store, lambda: 0.0, lambda: asked.append(True) or True)
    assert len(asked) == 2  # the first outage was at the start, the second and third at the end
    assert tracked.problem is None
    assert len(tracked_runs(home.mlflow_uri)) == len(TRIALS)


def test_runs_that_were_made_twice_are_one_again(home):
    mlflow = MlflowStore(home.mlflow_uri, home.artifacts)
    experiment_id = mlflow.experiment("small")
    tags = {LAUNCH_ID: "launch", TRIAL_ID: "trial"}
    doubles = [mlflow.start_run(experiment_id, "double", tags, 0) for _ in range(3)]
    mlflow.end_run(doubles[1], "FINISHED")
    kept = mlflow.runs(experiment_id, LAUNCH_ID, "launch", TRIAL_ID)
    assert kept == {"trial": RunState(doubles[1], finished=True)}
    assert [run.info.run_id for run in tracked_runs(home.mlflow_uri)] == [doubles[1]]


def test_the_opening_can_be_waited_for(home, store, monkeypatch):
    """Whoever opens MLflow beside a tracker waits first: tables made by two threads at once fail for both."""
    tracker, events = Tracker(home, small_campaign(), load_topology("ring:4"), store), []
    genuine = MlflowStore.experiment
    slow = lambda *given: (time.sleep(0.5), events.append("opened"), genuine(*given))[-1]  # noqa: E731
    monkeypatch.setattr(MlflowStore, "experiment", slow)
    tracker.await_opening(60.0)
    events.append("waited")
    tracker.finish([], None, "FINISHED", 60.0)
    assert events == ["opened", "waited"]


def test_an_interrupt_waits_until_mlflow_is_imported(home, store, monkeypatch):
    imported = []
    monkeypatch.setattr(
        "chorale.tuner.tracking.tracker.load_mlflow", lambda: (signal.raise_signal(signal.SIGINT), imported.append(1))
    )
    with pytest.raises(KeyboardInterrupt):
        Tracker(home, small_campaign(), load_topology("ring:4"), store).start()
    assert imported


def test_winners_of_size_classes_are_versions_by_program_and_kind_of_runner():
    local, simulated = ({RUNNER: runner, PROGRAM_ID: "p"} for runner in ("local", "simulated"))
    assert is_same(local, local)
    assert not is_same(simulated, local)
    assert not is_same({}, local)
    small, large = best_programs([standing(1, (1.0, 4.0, 8.0)), standing(2, (3.0, 2.0, 2.0))])
    assert (small.size_class.exponent, large.size_class.exponent) == (10, 12)
    assert small.stored.candidate.channels == 1  # sqrt(8 * 2) against sqrt(8/3 * 4)
    assert small.speedup == pytest.approx(4.0)
    assert small.time_us == pytest.approx(2e6)
    assert large.trial.candidate.channels == 2
    assert best_programs([]) == []
    small, large = best_programs([standing(1, (7.9, 7.9, 4.0), ring=9.0, library_own=8.0)])
    assert (small.baseline, small.library, small.stored) == ("library:own", "own", None)
    assert small.time_us == pytest.approx(8e6)
    assert small.speedup == 1
    assert (large.baseline, large.library) == (None, None)
    [tie, _] = best_programs([standing(1, (8.0, 8.0, 1.0), ring=8.0)])
    assert (tie.baseline, tie.library, tie.stored) == ("ring", None, None)


def test_the_version_behind_an_alias_is_found_and_nothing_where_there_is_none(home, tmp_path):
    store = MlflowStore(home.mlflow_uri, tmp_path / "artifacts")
    assert store.aliased("model", "champion") is None
    run = store.start_run(store.experiment("small"), "run", {}, 1)
    first = store.register("model", {"of": "model"}, {"number": "1"}, run, {"file": b"1"})
    assert store.aliased("model", "champion") is None
    second = store.register("model", {"of": "nobody"}, {"number": "2"}, run, {"file": b"2"})
    store.set_alias(first, "champion")
    assert store.aliased("model", "champion") == first
    store.set_alias(second, "champion")
    assert store.aliased("model", "champion") == second
    assert store.model_tags("model") == {"of": "model"}


def test_what_cannot_be_asked_is_not_taken_for_nothing(home, tmp_path, monkeypatch):
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)  # MLflow tries ten times, for 100 s
    store = MlflowStore(home.mlflow_uri, tmp_path / "artifacts")
    (home.root / "mlflow.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(Unavailable):
        store.aliased("model", "champion")
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file"):
        MlflowStore(f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}", tmp_path / "artifacts")

    class ForbiddenError(Exception):
        error_code = "PERMISSION_DENIED"

    def ask() -> str:
        raise ForbiddenError

    mlflow = MlflowStore(f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "artifacts")
    assert mlflow._of_model("chorale.new", ask) is None
    mlflow._client.create_registered_model("chorale.of-others")
    with pytest.raises(ForbiddenError):
        mlflow._of_model("chorale.of-others", ask)


SIZES = (1024, 1536, 4096)


def standing(channels: int, times: tuple[float, ...], **baselines: float) -> RankedTrial:
    beside = {name.replace("_", ":"): (time,) for name, time in (baselines or {"ring": 8.0}).items()}
    sizes = tuple(SizeResult(size, size, (time,), beside) for size, time in zip(SIZES, times, strict=True))
    return RankedTrial(complete(Candidate("bfb", channels=channels), number=channels), sizes)


ROOT = Path(__file__).parents[4]


def start(code: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-c", code, f"sqlite:///{folder / 'mlflow.db'}", str(folder / "artifacts"), *arguments]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


QUICK_KILLED = """
import os, sqlite3, sys
from chorale.tuner.tracking import mlflow_store
def die(uri):
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as connection:
        connection.execute("CREATE TABLE scorers (scorer_id TEXT)")
    os._exit(9)
mlflow_store._make_tables = die
mlflow_store.create_database(sys.argv[1])
"""
QUICK_WORKING = """
import shutil, sys, time
from chorale.tuner.tracking import mlflow_store
def make(uri):
    print("made")
    time.sleep(0.5)
    shutil.copy(sys.argv[3], uri.removeprefix("sqlite:///"))
mlflow_store._make_tables = make
mlflow_store.create_database(sys.argv[1])
"""


def test_what_a_killed_process_left_is_made_again_by_one_of_several(tmp_path, mlflow_template):
    killed = start(QUICK_KILLED, tmp_path)
    killed.communicate(timeout=60)
    assert killed.returncode == 9
    assert not (tmp_path / "mlflow.db").exists()
    assert (tmp_path / "mlflow.db.new").exists()
    processes = [start(QUICK_WORKING, tmp_path, str(mlflow_template)) for _ in range(4)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, answers
    assert sorted(answers) == [("", "")] * 3 + [("made\n", "")]
    assert (tmp_path / "mlflow.db").read_bytes() == mlflow_template.read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*.new*")) == []
    assert stat.S_IMODE((tmp_path / "mlflow.db").stat().st_mode) == 0o600


@pytest.mark.parametrize("is_cut", [True, False])
def test_one_that_was_not_made_to_its_end_is_named_with_a_way_out(tmp_path, mlflow_template, is_cut, monkeypatch):
    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1 if not is_cut else 10)  # ten times take 100 s
    file = tmp_path / "mlflow.db"
    if is_cut:
        file.write_bytes(mlflow_template.read_bytes()[: mlflow_template.stat().st_size // 2])
    else:  # as MLflow itself leaves it when it is killed
        make_database(file, "experiments", "scorers")
    with pytest.raises(Unavailable, match="--resume"):
        MlflowStore(f"sqlite:///{file}?again", tmp_path / "artifacts").experiment("second")


def guarded(request: Request) -> Response:
    """Answer as a server that is healthy for everybody, and knows its own user only, or has pages."""
    is_known = request.headers.get("Authorization") == "Basic dTpw"  # u:p
    is_open = request.url.path == "/health" or request.url.path.startswith("/page/") or is_known
    return Response("{}" if is_known else "<html>sign in</html>", 200 if is_open else 401)


@pytest.fixture
def port() -> Iterator[int]:
    with served(Starlette(routes=[Route("/{path:path}", guarded, methods=["GET", "POST"])])) as address:
        yield int(address.rpartition(":")[2])


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:{port}", "401"),
        ("http://u:no@127.0.0.1:{port}", "401"),
        ("http://127.0.0.1:{port}/page", "JSON"),
        ("http:/127.0.0.1", "http:/127.0.0.1"),
        ("file:{folder}/mlruns", "set `MLFLOW_ALLOW_FILE_STORE=true`"),
        ("{folder}/mlruns", "set `MLFLOW_ALLOW_FILE_STORE=true`"),
        ("sqlite:///{folder}/optuna.db", "a study of Optuna"),
        ("sqlite:///{folder}/text", "file is not a database"),
        ("postgresql://u:secret@127.0.0.1:1/db", "Connection refused"),
        ("nonsense://x", "unsupported URI"),
    ],
)
def test_what_does_not_work_is_said_with_its_cause(tmp_path, port, address, words, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    make_database(tmp_path / "optuna.db", "studies", "trials", "study_directions", "alembic_version")
    (tmp_path / "text").write_text("no database")
    with pytest.raises(Unavailable) as caught:
        what_is_at(address.format(port=port, folder=tmp_path))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "mlruns").exists()


def test_what_works_is_said(tmp_path, port, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    assert "answers" in what_is_at(f"http://u:p@127.0.0.1:{port}")
    assert "the first campaign creates" in what_is_at(f"sqlite:///{tmp_path}/new/mlflow.db")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert "the folder" in what_is_at(f"file:{tmp_path}/mlruns")
