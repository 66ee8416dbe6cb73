"""Whether a sequence of faults left what it had to: looks at files alone, and knows nothing of the code under test.

A folder has `history.jsonl` (events of the processes, in the order in which they arrived), and in `home` what the
campaign left: journals of JSON lines with checksums, and MLflow's database. Rules are in `check`.
"""

import json
import math
import re
import sqlite3
import statistics
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

ENDED = {"complete": "FINISHED", "failed": "FAILED", "pruned": "KILLED"}
INCOMPLETE = 4
"""Exit code of a launch that is tuned, but whose tracking lacks something."""
CODES = {0, 2, 3, INCOMPLETE, 130, -9, -15, 137}
"""Done; refused; unavailable; interrupted; killed; told to end before it listened; its driver below it was killed."""
ONE_LINE = re.compile(r"^chorale: [^;]+; .+$", re.MULTILINE)
SEAL = re.compile(rb'^(.*),"crc32":"([0-9a-f]{8})"\}$', re.DOTALL)
CHAMPION_TAGS = ("collective", "size_class", "size_range", "topology", "time_us", "speedup")


def check(folder: Path, calm: Path | None) -> dict[str, Any]:
    """Return counts, and a line for each violation of these rules.

    - one launch has begun, and each line of its journal is whole
    - no trial, candidate or number is in the journal twice; what was recorded is there, unless a fault took the line;
      nothing is there that nobody suggested and recorded
    - nothing is recorded twice, unless a fault took it in between
    - MLflow has one run per trial, ended as the trial did, with its times, and one parent run that ended
    - measurements, answer and registered champions are those of the calm run
    - processes end with codes of the contract, a line of three parts where they refuse, and never a traceback
    """
    events = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    trials = journal_trials(folder)
    violations = [
        *_journal_violations(folder, trials, events),
        *_tracking_violations(folder, trials),
        *_exit_violations(events),
        *(_answer_violations(folder, calm, events) if calm is not None else []),
    ]
    counts = Counter(event["event"] for event in events)
    return {"events": dict(counts), "trials": len(trials), "violations": violations}


def journal(folder: Path) -> list[bytes]:
    """Return the lines of the journal of the launch that has begun. ValueError unless there is one."""
    contents = [path.read_bytes() for path in sorted((folder / "home").glob("campaigns/soak/*/trials.jsonl"))]
    begun = [content for content in contents if b"\n" in content]
    if len(begun) != 1:
        raise ValueError(f"{len(begun)} launches have begun")
    return begun[0].split(b"\n")


def journal_trials(folder: Path) -> list[dict[str, Any]]:
    """Return the trials of the journal, in order, as far as it can be read."""
    try:
        lines = journal(folder)
    except ValueError:
        return []
    records = [json.loads(line) for line in lines[1:] if _is_whole(line)]
    return [record for record in records if "trial_id" in record]


def _is_whole(line: bytes) -> bool:
    seal = SEAL.match(line)
    return seal is not None and zlib.crc32(seal[1]) == int(seal[2], 16)


def _journal_violations(folder: Path, trials: list[dict[str, Any]], events: list[dict[str, Any]]) -> Iterator[str]:
    try:
        lines = journal(folder)
    except ValueError as error:
        yield str(error)
        return
    if lines[-1] or not all(map(_is_whole, lines[:-1])):
        yield "the journal has a line that is not whole"
    for name, keys in (
        ("trial", [trial["trial_id"] for trial in trials]),
        ("candidate", [_text(trial["candidate"]) for trial in trials]),
        ("number", [trial["number"] for trial in trials]),
    ):
        yield from (
            f"{name} {key} is in the journal {count} times" for key, count in Counter(keys).items() if count > 1
        )
    present = {trial["trial_id"] for trial in trials}
    suggested: set[tuple[int, str]] = set()
    tried: set[str] = set()
    recorded: set[str] = set()
    for event in events:
        kind, trial = event["event"], str(event.get("trial"))
        if kind == "suggested":
            suggested.add((event["process"], _text(event["candidate"])))
        elif kind == "recording":
            tried.add(trial)
            if (event["process"], _text(event["candidate"])) not in suggested:
                yield f"trial {trial[:8]} is recorded by a process to which it was not suggested"
        elif kind == "recorded":
            if trial in recorded:
                yield f"trial {trial[:8]} was recorded twice"
            recorded.add(trial)
        elif kind == "lost":
            recorded.discard(trial)
    yield from (f"trial {trial[:8]} was recorded and is lost" for trial in recorded - present)
    yield from (f"trial {trial[:8]} is in the journal, and nobody recorded it" for trial in present - tried)


def _database(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{folder / 'home' / 'mlflow.db'}?mode=ro", uri=True)


def _tracking_violations(folder: Path, trials: list[dict[str, Any]]) -> Iterator[str]:
    try:
        with closing(_database(folder)) as database:
            found = database.execute("SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active'").fetchall()
            tags = database.execute("SELECT run_uuid, value FROM tags WHERE key = 'chorale.trial_id'").fetchall()
            rows = database.execute("SELECT run_uuid, key, step, value FROM metrics").fetchall()
    except sqlite3.Error as error:
        yield f"MLflow's database: {error}"
        return
    status, metrics = dict(found), {(run, key, step): value for run, key, step, value in rows}
    runs = {run: trial for run, trial in tags if run in status}
    times = Counter(runs.values())
    expected = {trial["trial_id"]: trial for trial in trials}
    yield from (f"MLflow has trial {trial[:8]} {times[trial]} times" for trial in expected if times[trial] != 1)
    yield from (f"MLflow has trial {trial[:8]}, the journal has not" for trial in times.keys() - expected.keys())
    parents = [status[run] for run in status.keys() - runs.keys()]
    if parents != ["FINISHED"]:
        yield f"the parent runs are {parents}"
    for run, name in runs.items():
        trial = expected.get(name)
        if trial is None:
            continue
        if status[run] != ENDED[trial["state"]]:
            yield f"trial {name[:8]} is {trial['state']}, its run {status[run]}"
        for size in trial.get("sizes", ()):
            time_us = 1e6 * statistics.median(size["times_s"])
            if not math.isclose(metrics.get((run, "time_us", size["size_bytes"]), -1.0), time_us, rel_tol=1e-9):
                yield f"MLflow has other times of trial {name[:8]}"


def _exit_violations(events: list[dict[str, Any]]) -> Iterator[str]:
    exits = [event for event in events if event["event"] == "exit"]
    for event in exits:
        code, errors = event["code"], event["errors"]
        words = " ".join(event["words"])
        if code not in CODES:
            yield f"`{words}` ended with {code}: {errors[-300:]}"
        if "Traceback (most recent call last)" in errors:
            yield f"`{words}` printed a traceback: {errors[-1500:]}"
        if code == INCOMPLETE and "MLflow does not have everything" not in errors:
            yield f"`{words}` ended with {code}, but not because of MLflow: {errors[-300:]}"
        if code in (2, 3, INCOMPLETE) and not ONE_LINE.search(errors):
            yield f"`{words}` refused without rule, value and way out: {errors[-300:]}"
        if "repair" in event["words"] and code != 0:
            yield f"`{words}` ended with {code}: {errors[-300:]}"
    if not any(event["event"] == "answer" for event in events):
        yield f"there is no answer: {exits[-1]['errors'][-300:] if exits else ''}"


def _answer_violations(folder: Path, calm: Path, events: list[dict[str, Any]]) -> Iterator[str]:
    if measurements(folder) != measurements(calm):
        yield f"{len(measurements(folder))} candidates were measured, {len(measurements(calm))} in the calm run"
    calm_events = map(json.loads, (calm / "history.jsonl").read_text().splitlines())
    if (found := _answer(events)) != (expected := _answer(calm_events)):
        yield f"the answer is {found}, of the calm run {expected}"
    if (found_table := champions(folder)) != (table := champions(calm)):
        yield f"registered are {found_table}, in the calm run {table}"


def measurements(folder: Path) -> dict[str, str]:
    """Return what was measured of each candidate, as text; of one that failed, that it did."""
    return {
        _text(trial["candidate"]): _text([(size["size_bytes"], size["times_s"]) for size in trial.get("sizes", ())])
        for trial in journal_trials(folder)
    }


def champions(folder: Path) -> list[list[str | None]]:
    """Return the registered champions: model, and what its version says."""
    try:
        with closing(_database(folder)) as database:
            versions = database.execute("SELECT name, version FROM registered_model_aliases WHERE alias = 'champion'")
            found = []
            for name, version in versions.fetchall():
                query = "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?"
                tags = dict(database.execute(query, (name, version)).fetchall())
                found.append([name, *(tags.get(f"chorale.{key}") for key in CHAMPION_TAGS)])
    except sqlite3.Error as error:
        return [[str(error)]]
    return sorted(found)


def _answer(events: Any) -> list[tuple[int, float, float]]:
    answers = [event["best"] for event in events if event["event"] == "answer"]
    return [(one["size_bytes"], one["time_us"], one["speedup_vs_baseline"]) for one in answers[-1]] if answers else []


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
