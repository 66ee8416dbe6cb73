"""Asking all experiments: what is kept, what is asked again, and how rows end in the report."""

from __future__ import annotations

import json
import sys
import time

import pytest

from experiments.experiment import Column, Experiment
from experiments.kept_results import KeptResults
from experiments.reproduce import Reproduction
from experiments.reproduction_report import Section, html, markdown
from experiments.row_verdict import count_endings, ending_of

TRIFLE = Experiment(
    name="swing-table-2",  # a known one: what is kept hangs on the files behind it
    question="Is <one> | one?",
    source="nobody",
    columns=(Column("value", lambda row: str(row["value"])),),
    run=lambda _report, _quick: [],
)
DOCUMENT = {"rows": [{"value": "a|b <c>", "verdict": "match", "holds": True}], "holds": True, "seconds": 1.0}


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
    assert ending_of(row) == ending
    assert count_endings([row, row])[ending] == 2


def task(folder, quick=True, seconds=60.0):
    (folder / "results").mkdir(exist_ok=True)
    return Reproduction(folder, quick, time.monotonic() + seconds)


def test_answers_are_kept_and_not_asked_again(tmp_path, monkeypatch):
    asked = tmp_path / "asked"
    script = f"open({str(asked)!r}, 'a').write('x'); print({json.dumps(DOCUMENT)!r}); raise SystemExit(1)"
    monkeypatch.setattr(Reproduction, "_command", lambda *_: [sys.executable, "-S", "-c", script])
    assert task(tmp_path).section(TRIFLE).rows == DOCUMENT["rows"]
    assert task(tmp_path, seconds=-1).section(TRIFLE).rows == DOCUMENT["rows"]
    assert asked.read_text() == "x"
    assert "no time left" in task(tmp_path, quick=False, seconds=-1).section(TRIFLE).trouble


@pytest.mark.parametrize(
    ("script", "trouble"),
    [
        ("import time; time.sleep(60)", "ran out of time"),
        ("raise SystemExit('no memory')", "no memory"),
        ("raise SystemExit(7)", "exit code 7"),
    ],
)
def test_no_answer_is_kept_of_what_fails(tmp_path, monkeypatch, script, trouble):
    monkeypatch.setattr(Reproduction, "_command", lambda *_: [sys.executable, "-S", "-c", script])
    section = task(tmp_path, seconds=0.5 if "sleep" in script else 60).section(TRIFLE)
    assert (section.document, trouble in section.trouble) == (None, True)
    assert KeptResults(tmp_path / "results").find(TRIFLE.name, True) is None


def test_report_escapes_what_it_shows():
    sections = [Section(TRIFLE, DOCUMENT, picture="trifle.svg"), Section(TRIFLE, None, "ran out of time")]
    text = markdown(sections, ["a fact"])
    assert "| a\\|b <c> | match |" in text
    assert "| swing-table-2 | 1 | 0 | 0 | 0 | 1 s |" in text
    page = html(sections, ["a fact"])
    assert '<tr class="match"><td>a|b &lt;c&gt;</td><td>match</td></tr>' in page
    assert page.count("ran out of time") == 2
