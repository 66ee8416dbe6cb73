"""What lowering loses, our schedules beside others, fabrics whose switches add, and replayed tuning."""

from dataclasses import replace

import numpy as np
import pytest

from chorale.experiments.framework.experiment import Row, synthesized
from chorale.experiments.framework.run import load, run_experiment
from chorale.experiments.ours import quality as lowering_quality
from chorale.experiments.ours.in_network import FABRICS, MIXED, PUBLISHED, PUBLISHED_RATES, RANDOM
from chorale.experiments.ours.quality import CASES, LOWERING_QUALITY_SIZES as SIZES, LoweringCase, row_of
from chorale.experiments.ours.tuning import (
    FABRIC,
    RecordedTask,
    best_on_other_fabric,
    mi250_program,
    mi250_runs,
    replay_search,
)
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.targets.judge import check_program
from chorale.synth.topology.spec import parse_topology


def lowered_row(case):
    return lowering_quality.LOWERING_QUALITY.evaluate(case)[0]


@pytest.mark.parametrize("case", [case for case in CASES if case.method == "bfb" and case.channels == 1], ids=str)
def test_steps_lose_nothing(case):
    found = lowered_row(case)
    assert found["holds"]
    assert found["reason"] is None
    assert max(found["loss"].values()) < 1e-9


def test_trees_load_links_as_planned_and_a_program_that_carries_more_does_not_hold():
    found = lowered_row(LoweringCase("a100:2", "forest", "allgather", 1))
    assert found["holds"]
    assert found["loss_on_links"] == "0"
    small, large = (found["loss"][str(size)] for size in SIZES)
    assert small > large > found["loss_small_buffers"] > 0
    assert "small buffers" in found["reason"]
    case = LoweringCase("ring:4", "bfb", "allgather")
    verified = case.schedule()
    wrong = replace(lower(synthesized("ring", "ring:4"), LoweringOptions("msccl-xml")), origin=verified.schedule.id)
    assert not row_of(case, verified, wrong)["holds"]


@pytest.mark.parametrize(("spec", "alone", "bound"), [("h100:1", 257.14, 450), ("h100:2", 266.67, 400)])
def test_a_fabric_has_both_bounds_and_what_nccl_reaches(spec, alone, bound):
    [row] = FABRICS.evaluate(spec)
    assert row["holds"], row
    assert (row["alone_algbw"], row["bound_algbw"]) == (pytest.approx(alone, abs=0.01), pytest.approx(bound))
    assert row["simulated_algbw"] < row["algbw"] == pytest.approx(bound)
    assert set(row["nccl_model_algbw"]) == {"tree", "ring", "nvls" if spec == "h100:1" else "nvls_tree"}
    assert row["published_algbw"]
    assert all(column.text(row) for column in FABRICS.columns)


@pytest.mark.parametrize("number", [0, 3, len(PUBLISHED) - 1])
def test_published_rates_lie_below_the_bound_and_near_the_model(number):
    [row] = PUBLISHED_RATES.evaluate(number)
    assert row["holds"], row
    assert row["published_algbw"] <= row["bound_algbw"]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [RANDOM, MIXED], ids=lambda each: each.name)
def test_random_fabrics(experiment):
    [row] = experiment.evaluate(0)
    assert row["at_gap_0"] + len(row["gaps"]) == row["networks"]
    assert row["holds"], row


SMALL = RecordedTask.of("mi250_16+16", "reduce_scatter")


@pytest.mark.parametrize(
    ("fabric", "collective", "count"), [("mi250_8+8", "allreduce", 32), ("mi250_16+16", "allgather", 111)]
)
def test_every_configuration_is_one_point(fabric: str, collective: str, count: int) -> None:
    task = RecordedTask.of(fabric, collective)
    assert len(task.candidates) == count
    assert set(task.candidates) == set(task.space(0).points) == set(task.space(1).points)
    assert task.times_s.shape == (count, len(task.sizes_bytes))


@pytest.mark.parametrize("strategy", ["sizes-gp", "tpe", "random", "grid"])
def test_in_the_end_the_answer_is_near_the_best_and_on_the_way_not_far_above_the_library(strategy: str) -> None:
    run = replay_search(SMALL, strategy, 1, len(SMALL.candidates))
    assert run.shape == SMALL.times_s.shape
    assert np.all(run >= 1)
    assert np.exp(np.log(run[-1]).mean()) < 1.02
    library = SMALL.library_s / np.minimum(SMALL.times_s.min(axis=0), SMALL.library_s)
    assert np.max(run / library) <= 1.02


def test_what_won_elsewhere_comes_first() -> None:
    starts = [one for one in best_on_other_fabric(SMALL) if one in SMALL.candidates]
    best = SMALL.times_s[[SMALL.candidates.index(one) for one in starts]].min(axis=0)
    run = replay_search(SMALL, "sizes-gp", 0, len(starts), starts)
    assert np.max(run[-1] - best / np.minimum(SMALL.times_s.min(axis=0), SMALL.library_s)) < 0.05


PROGRAMS = ("mi250-allgather", "mi250-allreduce", "mi250-reduce-scatter")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(run_experiment(load("mi250-prediction"), False).rows)


def test_programs_do_what_their_collective_says_and_runs_are_theirs():
    for program in map(mi250_program, PROGRAMS):
        assert len(program.ranks) == parse_topology(FABRIC).compute_count
        assert check_program(program) == []
    assert {run.program for run in mi250_runs()} == set(PROGRAMS)
    assert len({(run.program, run.buffer_bytes, run.size_bytes) for run in mi250_runs()}) == len(mi250_runs()) == 90


@pytest.mark.slow
def test_errors_are_as_documented(rows):
    assert all(row["holds"] for row in rows)
    fitted = [abs(row["error"]) for row in rows if row["buffer_bytes"] == 2**20]
    others = [abs(row["error"]) for row in rows if row["buffer_bytes"] != 2**20]
    assert sum(fitted) / len(fitted) < 0.1
    assert sum(others) / len(others) < 0.13
    assert max(map(abs, (row["error"] for row in rows))) > 0.3  # a perfect fit would mean that something is circular
    large = [row for row in rows if row["size_bytes"] >= 2**26 and row["buffer_bytes"] == 2**20]
    assert all(abs(row["error"]) < 0.07 and abs(row["unseen_error"]) < 0.16 for row in large)


def test_large_deviations_have_a_reason(rows):
    for row in rows:
        assert (row["reason"] is not None) or abs(row["error"]) <= 0.1
