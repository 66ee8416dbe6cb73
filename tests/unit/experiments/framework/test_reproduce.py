"""Asking all experiments: what is kept, what is asked again, and how rows end in the report."""

from __future__ import annotations

import dataclasses
import json
import sys
import time

import psutil
import pytest

from chorale.experiments.framework.experiment import Column, Experiment
from chorale.experiments.framework.report import (
    ReportSection,
    Reproduction,
    count_outcomes,
    html,
    markdown,
    row_outcome,
)
from chorale.experiments.framework.run import ExperimentPart, PartStore, code_id

TRIFLE = Experiment(
    name="swing-table-2",  # a known one: what is kept hangs on the files behind it
    question="Is <one> | one?",
    source="nobody",
    columns=(Column("value", lambda row: str(row["value"])),),
    cases=["one"],
    evaluate=lambda _case: ROWS,
)
ROWS = [{"value": "a|b <c>", "verdict": "match", "holds": True}]
DOCUMENT = {"rows": ROWS, "holds": True, "seconds": 1.0}


@pytest.mark.parametrize(
    ("row", "ending"),
    [
        ({"holds": True}, "no claim"),
        ({"holds": False}, "not reached"),
        ({"holds": True, "verdict": "with overhead"}, "match"),
        ({"holds": True, "verdict": "not reproduced"}, "not reached"),
        ({"holds": True, "verdict": {"steps": "match", "rate": "better"}}, "better"),
        ({"holds": True, "verdict": {"steps": "impossible", "rate": "better"}}, "not reached"),
        ({"holds": True, "verdict": {}}, "no claim"),
    ],
)
def test_endings(row, ending):
    assert row_outcome(row) == ending
    assert count_outcomes([row, row])[ending] == 2


def task(folder, quick=True, seconds=60.0):
    code_id()  # reads files, which is not to count
    (folder / "parts").mkdir(exist_ok=True)
    return Reproduction(folder, PartStore(folder / "parts"), quick, time.monotonic() + seconds)


def test_the_command_goes_on_and_a_row_that_does_not_hold_is_an_answer(tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    script = f"open({str(asked)!r}, 'a').write('x'); print({json.dumps(DOCUMENT)!r}); raise SystemExit(1)"
    assert "--resume" in task(tmp_path)._command(TRIFLE, "")
    monkeypatch.setattr(Reproduction, "_command", lambda *_: [sys.executable, "-S", "-c", script])
    assert task(tmp_path).section(TRIFLE).rows == DOCUMENT["rows"]
    assert asked.read_text() == "x"
    assert "no time left" in task(tmp_path, quick=False, seconds=-1).section(TRIFLE).error


def test_an_answer_whose_parts_were_kept_is_not_asked_again(tmp_path):
    out_of_time = task(tmp_path, seconds=-1)
    out_of_time.store.save(TRIFLE.name, "one", ExperimentPart(ROWS, 2.0, 1))
    found = out_of_time.section(TRIFLE)
    assert (found.rows, found.error, found.document["seconds"]) == (ROWS, "", 2.0)
    drawn = dataclasses.replace(TRIFLE, plot=lambda _rows, _path: None)
    assert "no time left" in out_of_time.section(drawn).error  # its picture is missing
    (tmp_path / out_of_time._picture(drawn)).touch()
    assert out_of_time.section(drawn).picture.endswith(".svg")


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("import time; time.sleep(60)", "ran out of time"),
        ("raise SystemExit('no memory')", "no memory"),
        ("raise SystemExit(7)", "exit code 7"),
    ],
)
def test_what_fails_has_no_answer(tmp_path, monkeypatch, script, trouble):
    monkeypatch.setattr(Reproduction, "_command", lambda *_: [sys.executable, "-S", "-c", script])
    section = task(tmp_path, seconds=0.5 if "sleep" in script else 60).section(TRIFLE)
    assert (section.document, trouble in section.error) == (None, True)


def test_no_process_outlives_the_time(tmp_path, monkeypatch):
    mark = tmp_path / "child"
    child = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {child!r}])"
    monkeypatch.setattr(Reproduction, "_command", lambda *_: [sys.executable, "-S", "-c", script])
    assert "ran out of time" in task(tmp_path, seconds=2).section(TRIFLE).error
    deadline_s = time.monotonic() + 10
    while psutil.pid_exists(int(mark.read_text())) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not psutil.pid_exists(int(mark.read_text()))


def test_a_command_out_of_time_takes_down_what_it_started(tmp_path, monkeypatch):
    mark = tmp_path / "tidy"
    script = f"""
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    time.sleep(60)
finally:
    open({str(mark)!r}, "w").close()
"""
    monkeypatch.setattr(Reproduction, "_command", lambda *_: [sys.executable, "-S", "-c", script])
    assert "ran out of time" in task(tmp_path, seconds=1).section(TRIFLE).error
    assert mark.exists()


def test_what_ignores_an_interrupt_is_killed(tmp_path, monkeypatch):
    script = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    monkeypatch.setattr("chorale.experiments.framework.report._GRACE_S", 0.5)
    monkeypatch.setattr(Reproduction, "_command", lambda *_: [sys.executable, "-S", "-c", script])
    begun_s = time.monotonic()
    assert "ran out of time" in task(tmp_path, seconds=1).section(TRIFLE).error
    assert time.monotonic() - begun_s < 20


def test_report_escapes_what_it_shows():
    sections = [ReportSection(TRIFLE, DOCUMENT, picture="trifle.svg"), ReportSection(TRIFLE, None, "ran out of time")]
    text = markdown(sections, ["a fact"])
    assert "| a\\|b <c> | match |" in text
    assert "| swing-table-2 | 1 | 0 | 0 | 0 | 1 s |" in text
    page = html(sections, ["a fact"])
    assert '<tr class="match"><td>a|b &lt;c&gt;</td><td>match</td></tr>' in page
    assert page.count("ran out of time") == 2


def test_what_differs_comes_first_with_its_reason():
    columns = (Column("of", lambda row: row["of"]), Column("reason", lambda row: row["reason"] or ""))
    asked = dataclasses.replace(TRIFLE, columns=columns)
    rows = [
        {"of": "zero", "verdict": "better", "holds": True, "reason": None},
        {"of": "one", "verdict": "better", "holds": True, "reason": "a <better> way"},
        {"of": "two", "verdict": "match", "holds": True, "reason": "as printed"},
        {"of": "three", "verdict": "impossible", "holds": True, "reason": None},
    ]
    sections = [ReportSection(asked, {"rows": rows, "holds": True, "seconds": 2.0}), ReportSection(TRIFLE, DOCUMENT)]
    text = markdown(sections, [])
    assert "| all | 2 | 2 | 1 | 0 | 3 s |" in text
    differences = text.split("## What differs, and why")[1].split("##")[0].strip().splitlines()
    assert differences[2:] == [
        "| not reached | swing-table-2 | of: three | no reason is known |",
        "| better | swing-table-2 | of: zero | ours is ahead |",
        "| better | swing-table-2 | of: one | a <better> way |",
    ]
    page = html(sections, [])
    assert (
        '<tr class="better"><td>better</td><td>swing-table-2</td><td>of: one</td><td>a &lt;better&gt; way</td>' in page
    )
    assert '<a href="#swing-table-2">' in page
