"""Training profiles: what ships is what was published, and files that break a rule are refused by name."""

import json

import pytest

from chorale.synth.errors import InvalidInput
from chorale.tuner.costs.training import FORMAT, SHIPPED, load_profile

PARAMETERS = {
    "resnet-50": 25_557_032,
    "bert-large": 336_226_108 - 2_050,  # without the head that tells whether sentences follow one another
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
}
EXPERTS = {
    "switch-base-256": (14.7e9, 12, 256 * 2 * 768 * 3072),
    "switch-c-2048": (1.57e12, 30, 2048 * 2 * 2080 * 6144),
}


def document(**changes):
    layer = {"name": "layer", "parameters": 10, "forward_flops": 100, "alltoall_bytes": 3}
    return {
        "format": FORMAT,
        "name": "model",
        "source": "made up",
        "samples": 2,
        "flops_per_s": 50,
        "stages": [{"repeat": 3, "layers": [layer]}],
    } | changes


def load(tmp_path, content):
    file = tmp_path / "profile.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return load_profile(str(file))


def test_all_shipped_profiles_state_their_source_and_assumption():
    for name in SHIPPED:
        profile = load_profile(name)
        assert profile.name == name
        assert "not measured" in profile.source
        assert profile.has_experts == name.startswith("switch")


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS.items())
def test_parameters_are_those_of_the_published_models(name, parameters):
    assert load_profile(name).parameters == parameters


@pytest.mark.parametrize(("name", "published"), EXPERTS.items())
def test_experts_make_up_the_published_size(name, published):
    """Experts are spread over ranks and not in the profile; with them the model has the size that was published."""
    total, layers, parameters = published
    profile = load_profile(name)
    assert sum(1 for layer in profile.layers() if layer.alltoall_bytes) == layers
    assert profile.parameters + layers * parameters == pytest.approx(total, rel=0.005)


def test_resnet_takes_its_published_operations():
    """4.1 billion multiplications with additions."""
    profile = load_profile("resnet-50")
    forward_s = sum(layer.forward_s for layer in profile.layers())
    assert forward_s * profile.flops_per_s / profile.samples == pytest.approx(2 * 4.09e9, rel=0.01)


def test_layers_by_operations(tmp_path):
    layers = load(tmp_path, document()).layers()
    assert len(layers) == 3
    assert (layers[0].forward_s, layers[0].backward_s) == (4, 8)
    assert (layers[0].gradient_bytes, layers[0].alltoall_bytes) == (40, 6)


def test_layers_by_time(tmp_path):
    stages = [{"layers": [{"name": "layer", "forward_us": 5, "backward_us": 7.5}]}]
    (layer,) = load(tmp_path, document(stages=stages, flops_per_s=None)).layers()
    assert (layer.forward_s, layer.backward_s, layer.gradient_bytes) == (5e-6, 7.5e-6, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "the profile: Invalid JSON"),
        (document(format="other/1"), "format"),
        (document(colour="red"), "colour"),
        (document(flops_per_s=None), "need the flops_per_s"),
        (document(stages=[{"layers": []}]), r"stages\.0\.layers"),
        (document(stages=[{"layers": [{"name": "x"}]}]), r"stages\.0\.layers\.0: a layer has either"),
        (document(stages=[{"layers": [{"name": "x", "forward_us": -1, "backward_us": 1}]}]), "forward_us"),
        (document(stages=[{"repeat": 2**16, "layers": [{"name": "x", "forward_flops": 1}]}] * 2), "at most 65536"),
    ],
)
def test_broken_files_are_refused(tmp_path, content, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        load(tmp_path, content)
    assert "\n" not in str(refusal.value)
