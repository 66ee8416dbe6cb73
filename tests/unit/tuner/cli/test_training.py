"""`chorale training` and `record-training`: what they print, draw and refuse."""

import sys

import pytest

from chorale.tuner.costs.training import load_profile
from tests.command import chorale
from tests.fake_torch import FAKE_TORCH

OPTIONS = ("--link-gbps", 25, "--alpha-us", 10, "--link-latency-us", 0, "--hop-us", 0)


def test_json(capsys):
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


def test_experts(capsys):
    arguments = ("switch-base-256", "bfb@torus:4x4", "--buckets", "1M", *OPTIONS, "--json")
    (row,) = chorale(capsys, "training", *arguments).document["results"]
    tokens_s = 12 * 8 * 768 * 2 * (6 * 512 + 6 * 114) / 12 * 4
    assert row["alltoall_s"] == pytest.approx(tokens_s / 16 / (row["alltoall_rate"] * 25e9 / 8))
    assert row["bucket_bytes"] == 2**20


def test_for_people_and_as_a_picture(capsys, tmp_path):
    picture = tmp_path / "parts.svg"
    done = chorale(capsys, "training", "resnet-50", "ring:8", *OPTIONS, "--plot", picture)
    assert "bfb@ring:8" in done.stdout
    assert picture.read_text().startswith("<?xml")


MODEL = """
from tests.fake_torch import FakeClock, FakeLeaf, FakeParameter, FakeSequence, FakeTensor

def make():
    return FakeSequence([FakeLeaf(FakeClock(), 1.0, 2.0, [FakeParameter(6)])]), FakeTensor(4)
"""


def test_a_recorded_profile_can_be_trained(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", FAKE_TORCH)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "fake_model_of_test.py").write_text(MODEL)
    done = chorale(capsys, "record-training", "fake_model_of_test:make", "-o", tmp_path / "profile.json")
    assert done.code == 0
    assert "1 layers, 6 parameters" in done.stdout
    profile = load_profile(str(tmp_path / "profile.json"))
    assert (profile.samples, profile.parameters, profile.bytes_per_parameter) == (4, 6, 2)


def test_without_pytorch(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    done = chorale(capsys, "record-training", "model:make", "-o", tmp_path / "profile.json")
    assert done.code == 3
    assert "PyTorch" in done.stderr
