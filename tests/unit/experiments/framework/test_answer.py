"""Answering experiments: parts over executors, what is kept and taken up again, verdicts, and the report."""

import dataclasses
import pickle
import time
from contextlib import closing
from fractions import Fraction

import pytest

from chorale.experiments.framework import run as parts
from chorale.experiments.framework.experiment import Column, Experiment, Interval, digits_of, judge
from chorale.experiments.framework.report import ReportSection, count_outcomes, markdown, row_outcome, section_of
from chorale.experiments.framework.run import (
    FILE,
    NAMES,
    ExperimentPart,
    PartStore,
    case_name,
    code_id,
    file_text,
    load,
    run_experiment,
    summaries,
)
from chorale.runners.ray.executor import RayExecutor
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor
from tests.command import python

CASES = """
import json, sys
from chorale.experiments.framework.run import load
print(json.dumps({name: [[repr(case) for case in load(name).chosen(quick)] for quick in (True, False)]
                  for name in sys.argv[1:]}))
"""


def squares(cases=(1, 2, 3), alone=False, answered=None):
    """An experiment under a known name, since what is kept hangs on the files behind it."""

    def row(case):
        if answered is not None:
            answered.append(case)
        return [{"value": case * case, "pair": (case, case), "holds": True, "reason": None}]

    columns = (Column("value", lambda one: str(one["value"])),)
    return Experiment("swing-table-2", "Squares?", "nobody", columns, cases, row, alone=alone)


@pytest.fixture
def kept(tmp_path):
    return PartStore(tmp_path)


def test_rows_come_in_the_order_of_cases_as_json_has_them_and_parts_that_must_be_alone_run_here():
    found = run_experiment(squares(), False)
    assert [row["value"] for row in found.rows] == [1, 4, 9]
    assert found.rows[0]["pair"] == [1, 1]
    assert found.holds
    assert found.document(squares(), True)["quick"] is True
    with pytest.raises(ValueError, match="JSON compliant"):
        run_experiment(dataclasses.replace(squares(), evaluate=lambda _case: [float("nan")]), False)

    class Refusing:
        name = "refusing"

        def map(self, *_tasks, **_callbacks):
            raise AssertionError

    assert len(run_experiment(squares(alone=True), False, Refusing()).rows) == 3
    with pytest.raises(AssertionError):
        run_experiment(squares(), False, Refusing())


def test_parts_are_taken_up_again_only_on_request_and_by_the_same_code(kept, monkeypatch):
    answered = []
    first = run_experiment(squares(answered=answered), False, store=kept)
    assert run_experiment(squares(answered=answered), False, store=kept, resume=True) == first
    assert answered == [1, 2, 3]
    run_experiment(squares(answered=answered), False, store=kept)
    assert answered == [1, 2, 3, 1, 2, 3]
    run_experiment(squares((1, 2, 4), answered=answered), False, store=kept, resume=True)
    assert answered[6:] == [4]
    monkeypatch.setattr(parts, "code_id", lambda: "other")
    run_experiment(squares((1, 2), answered=answered), False, store=kept, resume=True)
    assert answered[7:] == [1, 2]


def test_an_interrupted_answer_loses_nothing_that_was_there(kept):
    def third_stops(case):
        if case == 3:
            raise KeyboardInterrupt
        return [{"value": case, "holds": True}]

    with pytest.raises(KeyboardInterrupt):
        run_experiment(dataclasses.replace(squares(), evaluate=third_stops), False, store=kept)
    answered = []
    run_experiment(squares(answered=answered), False, store=kept, resume=True)
    assert answered == [3]


def test_a_change_of_any_source_or_data_file_changes_the_code_id(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    (tmp_path / "synth").mkdir()
    files = {name: tmp_path / name for name in ("version.py", "synth/a.py", "synth/bases.json", "synth/kernels.so")}
    ids = []
    for path in files.values():
        path.write_text("1")
        ids.append(code_id.__wrapped__())
    assert len(set(ids)) == 3  # what is compiled from sources does not count
    assert ids[2] == ids[3]


def test_report_names_the_case_that_is_next(kept):
    told = []
    for _ in range(2):  # the second time, nothing is left to do
        run_experiment(squares((1, 2)), False, store=kept, resume=True, progress=lambda *words: told.append(words))
    assert told == [("1", 0, 2), ("2", 1, 2)]
    assert case_name((3, "x")) == "3, x"


@pytest.mark.parametrize("executor", [ProcessExecutor, pytest.param(RayExecutor, marks=pytest.mark.ray)])
def test_every_executor_gives_the_same_rows(kept, executor, request):
    if executor is RayExecutor:
        request.getfixturevalue("ray_cluster")
    with closing(executor(2)) as opened:
        apart = run_experiment(load("swing-table-2"), False, opened, store=kept)
    assert apart.rows == run_experiment(load("swing-table-2"), False, SerialExecutor()).rows
    assert run_experiment(load("swing-table-2"), False, store=kept, resume=True) == apart
    assert apart.peak_memory_bytes > 10**7


def test_cases_travel_and_have_the_same_text_in_any_process():
    elsewhere = python("-c", CASES, *NAMES, PYTHONHASHSEED="7").document
    for name in NAMES:
        for quick, texts in zip((True, False), elsewhere[name], strict=True):
            cases = load(name).chosen(quick)
            assert [repr(case) for case in cases] == texts
            assert len(set(texts)) == len(texts) > 0
            assert pickle.loads(pickle.dumps(list(cases))) == list(cases)
            assert all(case_name(case) and " object at 0x" not in repr(case) for case in cases)


def test_a_printed_number_stands_for_what_rounds_to_it():
    assert digits_of("1.020") == Interval(Fraction(2039, 2000), Fraction(2041, 2000))
    assert digits_of("8.12e-4") == Interval(Fraction("8.115e-4"), Fraction("8.125e-4"))
    assert digits_of("5") == Interval(Fraction(9, 2), Fraction(11, 2))


@pytest.mark.parametrize(
    ("ours", "limit", "smaller_is_better", "verdict"),
    [
        ((3, 3), None, True, "match"),
        ((2, 2), None, True, "better"),
        ((4, 4), 3, True, "worse"),
        ((4, 4), 4, True, "impossible"),
        ((2, 2), 2, False, "impossible"),
        ((4, 4), 4, False, "better"),
        ((2, 4), 4, False, "match"),
        ((3.5, 3.5), None, True, "match"),
        ((2.5, 2.5), None, True, "match"),
    ],
)
def test_verdicts(ours, limit, smaller_is_better, verdict):
    assert judge("3", Interval(Fraction(ours[0]), Fraction(ours[1])), limit, smaller_is_better) == verdict


TRIFLE = dataclasses.replace(squares(["one"]), question="Is <one> | one?", evaluate=lambda _case: ROWS)
ROWS = [{"value": "a|b <c>", "verdict": "match", "holds": True}]
DOCUMENT = {"rows": ROWS, "holds": True, "seconds": 1.0}


@pytest.mark.parametrize(
    ("row", "ending"),
    [
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
    assert count_outcomes([row, row])[ending] == "2"


def section(experiment, folder, seconds=60.0):
    code_id()  # reads files, which is not to count
    (folder / "parts").mkdir(exist_ok=True)
    return section_of(experiment, True, folder, PartStore(folder / "parts"), time.monotonic() + seconds)


def test_it_goes_on_and_a_row_that_does_not_hold_is_an_answer(tmp_path):
    answered = []

    def rows(case):
        answered.append(case)
        return [{"value": case, "holds": False}]

    PartStore(tmp_path).save(TRIFLE.name, "one", ExperimentPart(ROWS, 2.0, 1))
    asked = dataclasses.replace(TRIFLE, cases=["one", "two"], evaluate=rows)
    found = section_of(asked, True, tmp_path, PartStore(tmp_path), time.monotonic() + 60)
    assert (found.rows, found.error, answered) == ([*ROWS, {"value": "two", "holds": False}], "", ["two"])


def test_an_answer_whose_parts_were_kept_is_not_asked_again(tmp_path):
    drawn = dataclasses.replace(TRIFLE, plot=lambda _rows, path: path.touch())
    assert section(drawn, tmp_path).picture.endswith(".svg")
    late = dataclasses.replace(drawn, evaluate=None, plot=lambda _rows, _path: 1 / 0)
    found = section(late, tmp_path, seconds=-1)
    assert (found.rows, found.error, found.picture[-4:]) == (ROWS, "", ".svg")


@pytest.mark.parametrize(("error", "text"), [(MemoryError("no memory"), "no memory"), (KeyError(), "KeyError")])
def test_what_fails_has_no_answer(tmp_path, error, text):
    def fail(_case):
        raise error

    found = section(dataclasses.replace(TRIFLE, evaluate=fail), tmp_path)
    assert (found.document, found.error) == (None, text)


def test_what_runs_out_of_time_takes_down_what_it_started(tmp_path):
    ended = []

    def sleep(_case):
        try:
            time.sleep(60)
        finally:
            ended.append("tidy")

    found = section(dataclasses.replace(TRIFLE, evaluate=sleep), tmp_path, seconds=0.5)
    assert (found.document, "ran out of time" in found.error, ended) == (None, True, ["tidy"])


def test_report_escapes_what_it_shows_and_what_differs_comes_first_with_its_reason():
    sections = [ReportSection(TRIFLE, DOCUMENT, picture="trifle.svg"), ReportSection(TRIFLE, None, "ran out of time")]
    text = markdown(sections, ["a fact"])
    assert "| a\\|b <c> | match |" in text
    assert "| swing-table-2 | 1 | 0 | 0 | 0 | 1 s |" in text
    assert text.count("ran out of time") == 2
    assert "![swing-table-2](trifle.svg)" in text
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


def test_the_file_is_what_the_experiments_say_of_themselves():
    assert FILE.read_text(encoding="utf-8") == file_text(), "run: python -m chorale.experiments.framework.run"
    assert tuple(summary.name for summary in summaries()) == NAMES
    [training] = [summary for summary in summaries() if summary.name == "training-experts"]
    assert training.aliases == ("direct-connect-figure-9",)
