"""Answering experiments: parts over executors, what is kept and taken up again, and cases that can travel."""

import json
import pickle
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.experiments.framework import run as answering
from chorale.experiments.framework import run as parts
from chorale.experiments.framework.catalog import NAMES, load
from chorale.experiments.framework.experiment import Column, Experiment, Interval, digits_of, judge
from chorale.experiments.framework.run import ROOT, PartStore, case_name, code_id, run_experiment, stored_result
from chorale.runners.ray.executor import RayExecutor
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.executor.processes import ProcessExecutor

CASES = """
import json, sys
from chorale.experiments.framework.catalog import load
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


def test_rows_come_in_the_order_of_cases_as_json_has_them():
    found = run_experiment(squares(), False)
    assert [row["value"] for row in found.rows] == [1, 4, 9]
    assert found.rows[0]["pair"] == [1, 1]
    assert found.holds
    assert found.document(squares(), True)["quick"] is True


def test_parts_are_taken_up_again_only_on_request(kept):
    answered = []
    first = run_experiment(squares(answered=answered), False, store=kept)
    assert run_experiment(squares(answered=answered), False, store=kept, resume=True) == first
    assert answered == [1, 2, 3]
    run_experiment(squares(answered=answered), False, store=kept)
    assert answered == [1, 2, 3, 1, 2, 3]
    assert stored_result(squares((1, 2)), False, kept).rows == first.rows[:2]
    assert stored_result(squares((1, 2, 4)), False, kept) is None


def test_an_interrupted_answer_loses_nothing_that_was_there(kept):
    def third_stops(case):
        if case == 3:
            raise KeyboardInterrupt
        return [{"value": case, "holds": True}]

    asked = squares()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(Experiment(asked.name, "?", "", (), asked.cases, third_stops), False, store=kept)
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


def test_a_part_of_other_code_is_not_taken_up(kept, monkeypatch):
    run_experiment(squares(), False, store=kept)
    monkeypatch.setattr("chorale.experiments.framework.run.code_id", lambda: "other")
    assert stored_result(squares(), False, kept) is None


def test_report_names_the_case_that_is_next(kept):
    told = []
    run_experiment(squares((1, 2)), False, store=kept, progress=lambda *words: told.append(words))
    assert told == [("1", 0, 2), ("2", 1, 2)]
    run_experiment(
        squares((1, 2, (3, "x"))[:2]), False, store=kept, resume=True, progress=lambda *words: told.append(words)
    )
    assert len(told) == 2
    assert case_name((3, "x")) == "3, x"


@pytest.mark.parametrize(
    "name",
    [
        "swing-table-2",
        "swing-figure-15",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("direct-connect-figure-18", "frontier-all")),
    ],
)
def test_every_executor_gives_the_same_rows(name, kept):
    opened = ProcessExecutor(2)
    try:
        apart = run_experiment(load(name), True, opened, store=kept)
    finally:
        opened.close()
    assert apart.rows == run_experiment(load(name), True, SerialExecutor()).rows
    assert stored_result(load(name), True, kept).rows == apart.rows
    assert apart.peak_memory_bytes > 10**7


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_ray_workers_give_the_same_rows(kept):
    opened = RayExecutor(2)
    try:
        apart = run_experiment(load("swing-table-2"), False, opened, store=kept)
    finally:
        opened.close()
    assert apart.rows == run_experiment(load("swing-table-2"), False).rows
    assert apart.rows == stored_result(load("swing-table-2"), False, kept).rows


def test_parts_that_must_be_alone_run_here():
    class Refusing:
        name = "refusing"

        def map(self, *_tasks, **_callbacks):
            raise AssertionError

    assert len(run_experiment(squares(alone=True), False, Refusing()).rows) == 3
    with pytest.raises(AssertionError):
        run_experiment(squares(), False, Refusing())


def test_cases_travel_and_have_the_same_text_in_any_process():
    done = subprocess.run(
        [sys.executable, "-c", CASES, *NAMES],
        cwd=ROOT.parent,
        env={"PYTHONHASHSEED": "7"},
        capture_output=True,
        check=True,
    )
    elsewhere = json.loads(done.stdout)
    for name in NAMES:
        for quick, texts in zip((True, False), elsewhere[name], strict=True):
            cases = load(name).chosen(quick)
            assert [repr(case) for case in cases] == texts
            assert len(set(texts)) == len(texts) > 0
            assert pickle.loads(pickle.dumps(list(cases))) == list(cases)
            assert all(case_name(case) and " object at 0x" not in repr(case) for case in cases)


def test_a_part_that_json_cannot_have_is_an_error():
    asked = squares()
    with pytest.raises(ValueError, match="JSON compliant"):
        answering.run_experiment(Experiment(asked.name, "?", "", (), asked.cases, lambda _case: [float("nan")]), False)


def test_a_printed_number_stands_for_what_rounds_to_it():
    assert digits_of("1.020") == Interval(Fraction(2039, 2000), Fraction(2041, 2000))
    assert digits_of("8.12e-4") == Interval(Fraction("8.115e-4"), Fraction("8.125e-4"))
    assert digits_of("5") == Interval(Fraction(9, 2), Fraction(11, 2))


@given(st.fractions(0, 10), st.integers(0, 5))
def test_every_number_matches_its_own_rounding(value, digits):
    rounded = round(value, digits)
    text = f"{float(rounded):.{digits}f}"
    assert judge(text, Interval.exactly(value)) == "match"
    assert judge(text, Interval.exactly(value), smaller_is_better=False) == "match"


@pytest.mark.parametrize(
    ("ours", "limit", "smaller_is_better", "verdict"),
    [
        ((3, 3), None, True, "match"),
        ((2, 2), None, True, "better"),
        ((4, 4), None, True, "worse"),
        ((4, 4), 3, True, "worse"),
        ((4, 4), 4, True, "impossible"),
        ((2, 2), None, False, "worse"),
        ((2, 2), 2, False, "impossible"),
        ((4, 4), 4, False, "better"),
        ((2, 4), 4, False, "match"),
    ],
)
def test_verdicts(ours, limit, smaller_is_better, verdict):
    assert judge("3", Interval(Fraction(ours[0]), Fraction(ours[1])), limit, smaller_is_better) == verdict
