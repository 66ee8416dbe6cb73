"""Random sequences of faults, a few of the 500 of `make soak`; and that their checker notices what it is for."""

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.command import python
from tests.soak.checker import check
from tests.soak.sequence import LIVE, plan_of

TRIAL = '{"trial_id":"%s","number":%d,"candidate":{"method":"%s"},"sizes":[],"state":"complete"'


def test_a_seed_gives_the_same_sequence_and_all_faults_are_drawn() -> None:
    plans = [plan_of(seed) for seed in range(1, 200)]
    assert plans == [plan_of(seed) for seed in range(1, 200)]
    assert set(LIVE) <= {attempt.live for plan in plans for attempt in plan.attempts}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_faults_change_no_answer() -> None:
    found = python("-m", "tests.soak", "--count", 1, "--seed", 9, timeout_s=230).document
    assert (found["sequences"], found["failed"]) == (1, [])
    assert sum(found["faults"].values()) >= 2


def line(text: str) -> bytes:
    """Return a line of a journal with its checksum, written as the format says."""
    return f'{text},"crc32":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a launch with two trials leaves, with its history."""
    launch = tmp_path / "home/campaigns/soak/1"
    launch.mkdir(parents=True)
    (launch / "trials.jsonl").write_bytes(
        line('{"launch_id":"x"') + line(TRIAL % ("a", 1, "bfb")) + line(TRIAL % ("b", 2, "ring"))
    )
    with closing(sqlite3.connect(tmp_path / "home/mlflow.db")) as database:
        database.executescript(
            """
            CREATE TABLE runs (run_uuid, status, lifecycle_stage); CREATE TABLE tags (run_uuid, key, value);
            CREATE TABLE metrics (run_uuid, key, step, value);
            INSERT INTO runs VALUES ('p', 'FINISHED', 'active'), ('1', 'FINISHED', 'active');
            INSERT INTO runs VALUES ('2', 'FINISHED', 'active');
            INSERT INTO tags VALUES ('1', 'chorale.trial_id', 'a'), ('2', 'chorale.trial_id', 'b');
            """
        )
    events: list[dict[str, Any]] = []
    for trial, method in (("a", "bfb"), ("b", "ring")):
        facts = {"process": 7, "trial": trial, "candidate": {"method": method}}
        events += [{"event": kind, **facts} for kind in ("suggested", "recording", "recorded")]
    events += [
        {"event": "exit", "process": 7, "code": 0, "errors": "", "words": ["tune"]},
        {"event": "answer", "best": []},
    ]
    write_history(tmp_path, events)
    return tmp_path


def write_history(folder: Path, events: list[dict[str, Any]]) -> None:
    (folder / "history.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def in_journal(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def corrupt(folder: Path) -> None:
        file = folder / "home/campaigns/soak/1/trials.jsonl"
        file.write_bytes(change(file.read_bytes()))

    return corrupt


last_removed = in_journal(lambda content: b"".join(content.splitlines(keepends=True)[:-1]))


def in_database(statement: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "home/mlflow.db")) as database:
            database.execute(statement)
            database.commit()

    return change


def in_history(kind: str, **changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        events = [json.loads(text) for text in (folder / "history.jsonl").read_text().splitlines()]
        next(event for event in events if event["event"] == kind).update(changes)
        write_history(folder, events)

    return change


CORRUPTIONS: dict[str, Callable[[Path], object]] = {
    "is in the journal 2 times": in_journal(lambda content: content + line(TRIAL % ("b", 3, "ring"))),
    "was recorded and is lost": last_removed,
    "not whole": in_journal(lambda content: content.replace(b'"number":1', b'"number":7')),
    "2 launches have begun": lambda folder: shutil.copytree(
        folder / "home/campaigns/soak/1", folder / "home/campaigns/soak/2"
    ),
    "nobody recorded it": in_history("recording", trial="z"),
    "was recorded twice": in_history("recorded", trial="b"),
    "was not suggested": in_history("suggested", process=8),
    "0 times": in_database("DELETE FROM tags WHERE value = 'a'"),
    "2 times": in_database("UPDATE tags SET value = 'a'"),
    "the parent runs are": in_database("UPDATE runs SET status = 'RUNNING' WHERE run_uuid = 'p'"),
    "is complete, its run": in_database("UPDATE runs SET status = 'FAILED' WHERE run_uuid = '1'"),
    "ended with 1": in_history("exit", code=1),
    "printed a traceback": in_history("exit", errors="Traceback (most recent call last):\n…"),
    "without rule, value and way out": in_history("exit", code=3, errors="chorale: no\n"),
    "there is no answer": in_history("answer", event="nothing"),
}


def test_the_checker_finds_nothing_without_fault_and_compares_with_the_calm_run(folder, tmp_path_factory):
    found = check(folder, None)
    assert (found["trials"], found["violations"]) == (2, [])
    calm = tmp_path_factory.mktemp("calm") / "run"
    shutil.copytree(folder, calm)
    for place in (folder, calm):
        in_database("CREATE TABLE registered_model_aliases (name, version, alias)")(place)
        in_database("CREATE TABLE model_version_tags (name, version, key, value)")(place)
    assert check(folder, calm)["violations"] == []
    in_database("INSERT INTO registered_model_aliases VALUES ('m', 1, 'champion')")(folder)
    best = [{"size_bytes": 1, "time_us": 2.0, "speedup_vs_baseline": 3.0}]
    in_history("answer", best=best)(folder)
    last_removed(folder)
    words = " ".join(check(folder, calm)["violations"])
    assert all(part in words for part in ("candidates were measured", "the answer is", "registered are"))


@pytest.mark.parametrize("violation", CORRUPTIONS)
def test_the_checker_notices(folder: Path, violation: str) -> None:
    CORRUPTIONS[violation](folder)
    assert any(violation in found for found in check(folder, None)["violations"])
