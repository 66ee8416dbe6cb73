"""Recording a profile: with a fake of PyTorch, and with PyTorch itself where it is installed."""

import importlib.util
import sys
import time

import pytest

from chorale.runners.measurement.torch_profile import load_model, record_profile, require_torch
from chorale.synth.errors import InvalidInput, Unavailable
from tests.fake_torch import FAKE_TORCH, FakeClock, FakeLeaf, FakeParameter, FakeSequence, FakeTensor


def fake_model(clock):
    shared = FakeParameter(10)
    first = FakeLeaf(clock, 0.5, 1.0, [FakeParameter(7), shared])
    twice = FakeLeaf(clock, 0.25, 2.0, [FakeParameter(3), FakeParameter(4, requires_grad=False)])
    last = FakeLeaf(clock, 1.5, 4.0, [shared])
    return FakeSequence([first, twice, twice, last])


def test_times_and_parameters_by_a_fake():
    clock = FakeClock()
    model = fake_model(clock)
    document = record_profile(model, FakeTensor(5), "fake", FAKE_TORCH, clock)
    assert document["samples"] == 5
    assert document["bytes_per_parameter"] == 2
    assert "PyTorch fake on cpu" in document["source"]
    assert document["stages"][0]["layers"] == [
        {"name": "0", "parameters": 17, "forward_us": 0.5e6, "backward_us": 1e6},
        {"name": "1", "parameters": 3, "forward_us": 0.5e6, "backward_us": 4e6},
        {"name": "3", "parameters": 0, "forward_us": 1.5e6, "backward_us": 4e6},
    ]
    assert all(not leaf.before and not leaf.after for leaf in model.leaves)


def test_hooks_go_even_if_the_model_fails():
    clock = FakeClock()
    model = fake_model(clock)
    model.leaves[2].forward_s = "nonsense"
    with pytest.raises(TypeError):
        record_profile(model, FakeTensor(5), "fake", FAKE_TORCH, clock)
    assert all(not leaf.before and not leaf.after for leaf in model.leaves)


def test_without_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="install PyTorch"):
        require_torch()


def test_models_are_found_by_name(monkeypatch, tmp_path):
    (tmp_path / "model_of_test.py").write_text(
        "def make():\n    return 'model', 'batch'\n\ndef other():\n    return 1\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert load_model("model_of_test:make") == ("model", "batch")
    for where in ("model_of_test", ":make", "model_of_test:", "model_of_test:nothing", "no_such_module:make"):
        with pytest.raises(InvalidInput, match="MODULE:FUNCTION"):
            load_model(where)
    with pytest.raises(InvalidInput, match="returned int"):
        load_model("model_of_test:other")


if importlib.util.find_spec("torch") is not None:

    def test_with_pytorch_itself():
        torch = require_torch()
        layers = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 8), torch.nn.ReLU(inplace=True))
        document = record_profile(layers, torch.zeros((4, 6), dtype=torch.long), "toy", torch, time.perf_counter)
        recorded = document["stages"][0]["layers"]
        assert [layer["parameters"] for layer in recorded] == [800, 136, 0]
        assert all(layer["forward_us"] > 0 and layer["backward_us"] > 0 for layer in recorded)
