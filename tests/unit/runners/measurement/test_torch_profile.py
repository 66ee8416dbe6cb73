"""Recording a profile of a PyTorch model, with layers that move a clock of their own."""

import sys

import pytest

pytest.importorskip("torch", reason="PROFILES OF PYTORCH ARE NOT TESTED: pip install torch")

import torch

from chorale.runners.measurement.torch_profile import load_model, record_profile, require_torch
from chorale.synth.errors import InvalidInput, Unavailable


class Clock:
    """Seconds that pass only when a layer works."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor, layer):
        context.layer = layer
        layer.clock.now_s += layer.forward_s
        return tensor.clone()

    @staticmethod
    def backward(context, gradient):
        context.layer.clock.now_s += context.layer.backward_s
        return gradient, None


class Layer(torch.nn.Module):
    def __init__(self, clock, forward_s, backward_s, *parameters):
        super().__init__()
        self.clock, self.forward_s, self.backward_s = clock, forward_s, backward_s
        for number, parameter in enumerate(parameters):
            self.register_parameter(str(number), parameter)

    def forward(self, tensor):
        return Pass.apply(tensor, self)


def weights(count, requires_grad=True):
    return torch.nn.Parameter(torch.zeros(count, dtype=torch.bfloat16), requires_grad)


def model(clock):
    shared = weights(10)
    first, twice = Layer(clock, 0.5, 1.0, weights(7), shared), Layer(clock, 0.25, 2.0, weights(3), weights(4, False))
    return torch.nn.Sequential(first, twice, twice, Layer(clock, 1.5, 4.0, shared))


BATCH = torch.zeros(5, 3, requires_grad=True)


def test_times_and_parameters_and_hooks_that_go_even_if_the_model_fails():
    clock = Clock()
    made = model(clock)
    document = record_profile(made, BATCH, "toy", torch, clock)
    assert (document["samples"], document["bytes_per_parameter"]) == (5, 2)
    assert f"PyTorch {torch.__version__} on cpu" in document["source"]
    assert document["stages"][0]["layers"] == [
        {"name": "0", "parameters": 17, "forward_us": 0.5e6, "backward_us": 1e6},
        {"name": "1", "parameters": 3, "forward_us": 0.5e6, "backward_us": 4e6},
        {"name": "3", "parameters": 0, "forward_us": 1.5e6, "backward_us": 4e6},
    ]
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in made)
    made[2].forward_s = "nonsense"
    with pytest.raises(TypeError):
        record_profile(made, BATCH, "toy", torch, clock)
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in made)


def test_layers_that_change_their_input_in_place():
    made = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 8), torch.nn.ReLU(inplace=True))
    document = record_profile(made, torch.zeros((4, 6), dtype=torch.long), "toy", torch, iter(range(10**6)).__next__)
    recorded = document["stages"][0]["layers"]
    assert [layer["parameters"] for layer in recorded] == [800, 136, 0]
    assert all(layer["forward_us"] > 0 and layer["backward_us"] > 0 for layer in recorded)


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
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match="install PyTorch"):
        require_torch()
