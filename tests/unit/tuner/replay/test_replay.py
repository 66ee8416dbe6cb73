"""Replays of small recorded grids: what the command prints, by seeds alone, and what it refuses."""

import json
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from chorale.runners.recorded.table import COLUMNS, RecordedTable
from chorale.synth.errors import InvalidInput
from chorale.tuner.replay.campaign import NOISES, Noise, ReplayedCampaign, ReplayOptions, replay_document
from chorale.tuner.replay.tasks import log_runs, read_records, replay_tasks
from tests.command import chorale

SIZES = (4096, 65536, 2**20)
KEYS = {"task", "candidates", "sizes", "trials_to_5pct_mean", "trials_to_5pct_all", "seconds_ratio"}
KEYS |= {"wrong_entries", "undecided", "false_wins", "coverage"}


def record(path: Path, fabrics: tuple[str, ...] = ("box",)) -> Path:
    """Write a table of 12 configurations and the library."""
    rows = [",".join(COLUMNS)]
    for fabric, size in product(fabrics, SIZES):
        rows.append(f"{fabric},allreduce,RCCL,rccl,,,,{size},,,{size / 100:.1f},0")
        for k, buffer in product((1, 2, 4), (1, 2, 4, 8)):
            time_us = size / 100 * (0.6 + 0.2 * abs(k - 2) + 0.1 * abs(buffer - 4) * (1 if size > 4096 else -0.5))
            rows.append(f"{fabric},allreduce,Forest,f_k{k},{k},1,{buffer * 2**20},{size},,,{time_us:.3f},0")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_the_document_has_what_it_is_said_to_have(tmp_path):
    request = ((record(tmp_path / "runs.csv"),), 8, 2, "launch", "sizes-gp", None)
    document = replay_document(*request)
    assert set(document) == {"tasks", "seconds"}
    [task] = document["tasks"]
    assert set(task) >= KEYS
    assert (task["task"], task["candidates"], task["sizes"]) == ("allreduce box", 12, 3)
    json.dumps(document, allow_nan=False)
    again = replay_document(*request)
    assert again["tasks"] == document["tasks"]


@pytest.mark.parametrize("sampler", ["random", "tpe", "forest", "halving"])
def test_without_noise_nothing_is_wrong_or_undecided(tmp_path, sampler):
    request = ((record(tmp_path / "runs.csv"),), 8, 2, "none", sampler, None)
    [task] = replay_document(*request)["tasks"]
    assert (task["wrong_entries"], task["undecided"], task["false_wins"], task["coverage"]) == (0, 0, 0, None)


def test_another_fabric_is_learned_from(tmp_path):
    path = record(tmp_path / "runs.csv", ("box", "rack"))
    cold = replay_document((path,), 12, 3, "none", "sizes-gp", None)
    warm = replay_document((path,), 12, 3, "none", "sizes-gp", "rack")
    assert [task["prior"] for task in warm["tasks"]] == [True, False]
    assert warm["tasks"][0]["trials_to_5pct_mean"] <= cold["tasks"][0]["trials_to_5pct_mean"]


def test_what_is_thrifty_measures_less_than_all_of_every_trial(tmp_path):
    [task] = replay_tasks(RecordedTable(read_records([record(tmp_path / "runs.csv")])))
    spent = []
    for thrifty in (True, False):
        campaign = ReplayedCampaign(task, ReplayOptions(8, Noise.parse("lognormal:0.05"), thrifty=thrifty), 0)
        campaign.search()
        assert len(campaign.tried) == 8
        spent.append(campaign.seconds)
    assert spent[0] < 0.5 * spent[1]


def test_logs_are_read_with_and_without_checks():
    checked = "  4096  1024  float  sum  -1  10.0  0.4  0.7  0  9.0  0.4  0.7  0\n"
    unchecked = "  4096  1024  float  sum  -1  10.0  0.4  0.7  N/A  9.0  0.4  0.7  N/A\n"
    for text, wrong in ((checked, 0), (unchecked, None)):
        out_of_place, in_place = log_runs(text, "forest_allreduce_k2_inst4-buff65536", "lab")
        assert out_of_place.wrong == in_place.wrong == wrong
        assert (out_of_place.time_s, in_place.time_s) == (10e-6, 9e-6)
        configuration = in_place.configuration
        assert (configuration.origin.k, configuration.origin.instances, configuration.buffer_bytes) == (2, 4, 65536)
    assert log_runs(checked, "rccl_half_allreduce_results", "lab")[0].configuration.origin.generator == "RCCL"


def test_times_of_logs_without_checks_are_marked(tmp_path, capsys):
    for name, wrong in (("rccl_allreduce", "0"), ("a_allreduce_k1", "N/A"), ("a_allreduce_k2", "N/A")):
        cell = f"10.{len(name)}  0.4  0.7  {wrong}"
        rows = [f"  {size}  1024  float  sum  -1  {cell}  {cell}" for size in SIZES]
        (tmp_path / f"{name}.log").write_text("\n".join(rows) + "\n")
    arguments = ("replay", tmp_path, "--trials", 2, "--seeds", 1)
    [task] = chorale(capsys, *arguments, "--json").document["tasks"]
    assert task["unchecked"] == pytest.approx(2 / 3)
    printed = " ".join(chorale(capsys, *arguments).stdout.split())
    assert "67% of the times are from runs whose results were not checked" in printed
    checked = replay_document((record(tmp_path / "runs.csv"),), 2, 1, "none", "sizes-gp", None)
    assert checked["tasks"][0]["unchecked"] == 0


def test_noise_is_fixed_by_its_seed_and_centred():
    times = np.full((1, 4000), 2.0)
    for noise in NOISES:
        drawn = [Noise.parse(noise).draw(times, 3, 0, np.random.default_rng(1)) for _ in range(2)]
        assert np.array_equal(drawn[0], drawn[1])
        assert 0.95 < np.median(drawn[0]) / 2 < 1.08


def test_what_is_unknown_or_no_regular_file_is_refused(tmp_path):
    path = record(tmp_path / "runs.csv")
    with pytest.raises(InvalidInput, match="unknown noise"):
        Noise.parse("loud")
    for sampler, prior, message in (
        ("magic", None, "unknown sampler"),
        ("sizes-gp", "elsewhere", "no recorded task is"),
    ):
        with pytest.raises(InvalidInput, match=message):
            replay_document((path,), 8, 1, "none", sampler, prior)
    with pytest.raises(InvalidInput, match=r"cannot read .*none\.csv"):
        read_records([tmp_path / "none.csv"])
    for kind in (".csv", ".txt"):
        os.mkfifo(tmp_path / f"pipe{kind}")
        (tmp_path / f"zero{kind}").symlink_to("/dev/zero")
        for name in ("pipe", "zero"):
            with pytest.raises(InvalidInput, match="is not a regular file"):
                read_records([tmp_path / f"{name}{kind}"])
