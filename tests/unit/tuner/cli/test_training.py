"""`chorale training`, `record-training` and `record`: what they print, draw and refuse."""

import json
import sys

import pytest

from chorale.tuner.costs.pricing import load_profile
from tests.command import chorale

OPTIONS = ("--link-gbps", 25, "--alpha-us", 10, "--link-latency-us", 0, "--hop-us", 0)


def test_json_a_table_and_a_picture(capsys, tmp_path):
    done = chorale(
        capsys, "training", "gpt2-small", "circulant:12,2,3", "hamiltonian-ring@shiftedring:12", *OPTIONS, "--json"
    )
    assert done.code == 0
    document = done.document
    assert document["profile"]["parameters"] == 124_439_808
    assert document["parameters"]["buckets_bytes"] == [10**6, 10**7, 10**8, 10**9]
    ours, ring = document["results"]
    assert (ours["method"], ring["method"], ring["spec"]) == ("bfb", "hamiltonian-ring", "shiftedring:12")
    for row in (ours, ring):
        parts = row["compute_s"] + row["alltoall_s"] + row["exposed_allreduce_s"]
        assert row["iteration_s"] == pytest.approx(parts)
        assert row["bucket_bytes"] in document["parameters"]["buckets_bytes"]
        assert (row["alltoall_s"], row["alltoall_rate"]) == (0, None)
    assert ours["iteration_s"] < ring["iteration_s"]
    arguments = ("switch-base-256", "bfb@torus:4x4", "--buckets", "1M", *OPTIONS, "--json")
    (row,) = chorale(capsys, "training", *arguments).document["results"]
    tokens_s = 12 * 8 * 768 * 2 * (6 * 512 + 6 * 114) / 12 * 4
    assert row["alltoall_s"] == pytest.approx(tokens_s / 16 / (row["alltoall_rate"] * 25e9 / 8))
    assert row["bucket_bytes"] == 2**20
    picture = tmp_path / "parts.svg"
    assert "bfb@ring:8" in chorale(capsys, "training", "resnet-50", "ring:8", *OPTIONS, "--plot", picture).stdout
    assert picture.read_text().startswith("<?xml")


MODEL = """
import torch

def make():
    return torch.nn.Linear(2, 2).bfloat16(), torch.zeros(4, 2, dtype=torch.bfloat16)
"""


def test_a_recorded_profile_can_be_trained(capsys, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "model_to_record.py").write_text(MODEL)
    done = chorale(capsys, "record-training", "model_to_record:make", "-o", tmp_path / "profile.json", code=0)
    assert "1 layers, 6 parameters" in done.stdout
    profile = load_profile(str(tmp_path / "profile.json"))
    assert (profile.samples, profile.parameters, profile.bytes_per_parameter) == (4, 6, 2)


JOB = """
import os
from pathlib import Path
from chorale.job.record import recorder_of
recorder = recorder_of(0, 4)
for _ in range(3):
    recorder.add("allreduce", "float32", range(4), None, 4096, 0.25)
recorder.add("allreduce", "float32", (0, 2), None, 4096, 0.25)
assert recorder_of(1, 4) is None
assert recorder_of(0, 4) is recorder
"""


def test_a_job_is_run_and_its_calls_are_shown(capsys, tmp_path):
    file = tmp_path / "job.json"
    finished = chorale(capsys, "record", "-o", file, "--", sys.executable, "-c", JOB, code=0)
    assert "75% of the time is in collectives" in finished.stderr
    calls = json.loads(file.read_text())["calls"]
    assert calls[0] == {
        "collective": "allreduce", "dtype": "float32", "group": None, "root": None, "size_bytes": 4096, "calls": 3,
        "seconds": 0.75,
    }  # fmt: skip
    assert calls[1]["group"] == [0, 2]


def test_without_pytorch(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    recorded = ("record-training", "model:make", "-o", tmp_path / "profile.json")
    assert "PyTorch" in chorale(capsys, *recorded, code=3).stderr


def test_jobs_that_fail_or_do_not_use_the_backend(capsys, tmp_path):
    file = tmp_path / "job.json"
    job = ("record", "-o", file, "--", sys.executable, "-c")
    chorale(capsys, *job, "raise SystemExit(7)", code=7)
    assert not file.exists()
    file.write_text("of an earlier job")
    said = chorale(capsys, *job, "pass", code=1).stderr
    assert "the job wrote no record, because it did not use the backend chorale" in said
