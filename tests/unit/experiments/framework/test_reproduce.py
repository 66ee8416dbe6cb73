"""Asking all experiments: what is kept, what is asked again, and how rows end in the report."""

import dataclasses
import time

import pytest

from chorale.experiments.framework.catalog import FILE, NAMES, file_text, summaries
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


def test_it_goes_on_and_a_row_that_does_not_hold_is_an_answer(tmp_path):
    answered = []

    def rows(case):
        answered.append(case)
        return [{"value": case, "holds": False}]

    asked = dataclasses.replace(TRIFLE, cases=["one", "two"], evaluate=rows)
    task(tmp_path).store.save(TRIFLE.name, "one", ExperimentPart(ROWS, 2.0, 1))
    section = task(tmp_path).section(asked)
    assert (section.rows, section.error, answered) == ([*ROWS, {"value": "two", "holds": False}], "", ["two"])


def test_an_answer_whose_parts_were_kept_is_not_asked_again(tmp_path):
    out_of_time = task(tmp_path, seconds=-1)
    out_of_time.store.save(TRIFLE.name, "one", ExperimentPart(ROWS, 2.0, 1))
    found = out_of_time.section(TRIFLE)
    assert (found.rows, found.error, found.document["seconds"]) == (ROWS, "", 2.0)
    drawn = dataclasses.replace(TRIFLE, plot=lambda _rows, path: path.touch())
    assert "no time left" in out_of_time.section(drawn).error  # its picture is missing
    assert task(tmp_path).section(drawn).picture.endswith(".svg")
    assert out_of_time.section(drawn).picture.endswith(".svg")


def test_what_fails_has_no_answer(tmp_path):
    def fail(_case):
        raise MemoryError("no memory")

    section = task(tmp_path).section(dataclasses.replace(TRIFLE, evaluate=fail))
    assert (section.document, section.error) == (None, "no memory")


def test_what_runs_out_of_time_takes_down_what_it_started(tmp_path):
    ended = []

    def sleep(_case):
        try:
            time.sleep(60)
        finally:
            ended.append("tidy")

    section = task(tmp_path, seconds=0.5).section(dataclasses.replace(TRIFLE, evaluate=sleep))
    assert (section.document, "ran out of time" in section.error, ended) == (None, True, ["tidy"])


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


def test_the_file_is_what_the_experiments_say_of_themselves():
    assert FILE.read_text(encoding="utf-8") == file_text(), "run: python -m chorale.experiments.framework.catalog"


def test_summaries_are_in_the_order_of_lists_with_their_other_names():
    assert tuple(summary.name for summary in summaries()) == NAMES
    aliases = {summary.name: summary.aliases for summary in summaries()}
    assert aliases["training-experts"] == ("direct-connect-figure-9",)
