"""What lowering loses: nothing where steps follow one another; and our schedules beside those of others."""

from dataclasses import replace

import pytest

from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment
from chorale.experiments.ours import quality as lowering_quality
from chorale.experiments.ours.quality import CASES, FAMILIES, SIDE_BY_SIDE_SIZES, LoweringCase, row_of
from chorale.experiments.ours.quality import LOWERING_QUALITY_SIZES as SIZES
from chorale.experiments.ours.quality import SIDE_BY_SIDE_NETWORKS as NETWORKS
from chorale.experiments.ours.quality import SIDE_BY_SIDE_SLOW as SLOW
from chorale.synth.collective import parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology


def row(case):
    topology, collective = parse_topology(case.spec), parse_collective(case.collective)
    verified = synthesize(case.method, topology, collective, Options(k=case.k), SerialExecutor())
    return row_of(case, verified, lower(verified, case.options(verified)))


@pytest.mark.parametrize("case", [case for case in CASES if case.method == "bfb" and case.channels == 1], ids=str)
def test_steps_lose_nothing(case):
    found = row(case)
    assert found["holds"]
    assert found["reason"] is None
    assert max(found["loss"].values()) < 1e-9


def test_trees_load_links_as_planned_and_fill_the_pipeline():
    found = row(LoweringCase("a100:2", "forest", "allgather", 1))
    assert found["holds"]
    assert found["loss_on_links"] == "0"
    small, large = (found["loss"][str(size)] for size in SIZES)
    assert small > large > found["loss_small_buffers"] > 0
    assert "small buffers" in found["reason"]


def test_channels_let_trees_pass_one_another():
    one, four = (row(LoweringCase("a100:2", "forest", "allreduce", 1, channels)) for channels in (1, 4))
    assert one["loss_small_buffers"] > 0.4
    assert "take turns" in one["reason"]
    assert four["reason"] is None


def test_a_program_that_carries_more_than_its_schedule_does_not_hold():
    case = LoweringCase("ring:4", "bfb", "allgather")
    verified = synthesize("bfb", parse_topology("ring:4"), parse_collective("allgather"), None, SerialExecutor())
    ring = synthesize("ring", parse_topology("ring:4"), parse_collective("allgather"), None, SerialExecutor())
    wrong = replace(lower(ring, LoweringOptions("msccl-xml")), origin=verified.schedule.id)
    assert not row_of(case, verified, wrong)["holds"]


def test_quick_leaves_out_the_slow_network():
    experiment, reported = lowering_quality.LOWERING_QUALITY, []
    assert {case.spec for case in CASES} - {case.spec for case in experiment.chosen(quick=True)} == {"mi250:2"}
    small = replace(experiment, quick=(LoweringCase("ring:4", "bfb", "allgather"),))
    rows = run_experiment(small, True, progress=lambda *told: reported.append(told)).rows
    assert [found["spec"] for found in rows] == ["ring:4"]
    assert reported == [("ring:4, bfb, allgather, None, 1, 1", 0, 1)]


KIB, MIB = 2**10, 2**20
FASTEST = {
    ("torus:8x8", KIB): "Swing",
    ("torus:8x8", 256 * MIB): "BFB",
    ("torus:16x4", MIB): "Swing",
    ("hyperx:8x8", KIB): "BFB",
    ("genkautz:4,64", 64 * MIB): "BFB",
    ("circulant:64,5,6", KIB): "Swing",
    ("a100:2", KIB): "forest",
    ("a100:2", 256 * MIB): "forest",
    ("hxmesh:2,4x4", 64 * MIB): "Swing",
    ("hxmesh:2,4x4", 4096 * MIB): "rings",
    ("mi250:2", KIB): "Swing",
    ("mi250:2", 256 * MIB): "forest",
}


def check(quick, specs):
    rows = run_experiment(load("side-by-side"), quick).rows
    assert [(row["spec"], row["size_bytes"]) for row in rows] == [
        (spec, size) for spec in specs for size in SIDE_BY_SIDE_SIZES
    ]
    assert all(row["holds"] for row in rows)
    for row in rows:
        assert row["us"][row["fastest"]] == min(row["us"].values())
        assert all(row["method"][family] in FAMILIES[family] for family in row["us"])
        if (row["spec"], row["size_bytes"]) in FASTEST:
            assert row["fastest"] == FASTEST[row["spec"], row["size_bytes"]]
    return rows


def test_quick(tmp_path):
    rows = check(True, [spec for spec in NETWORKS if spec not in SLOW])
    assert {family for row in rows for family in row["us"]} == set(FAMILIES)
    assert all(("BFB" in row["us"]) == (row["spec"] != "a100:2") for row in rows)
    for file in (tmp_path / "one.svg", tmp_path / "two.svg"):
        load("side-by-side").plot(rows, file)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
def test_all_networks():
    check(False, NETWORKS)
