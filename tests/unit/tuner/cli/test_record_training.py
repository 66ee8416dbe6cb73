"""`chorale record-training`, with a fake in place of PyTorch."""

from __future__ import annotations

import sys

from chorale.tuner.costs.training import load_profile
from tests.command import chorale
from tests.fake_torch import FAKE_TORCH

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
