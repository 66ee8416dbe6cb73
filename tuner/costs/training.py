"""Training iterations: model profiles (docs/guide/training.md), and iteration times on several networks."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from importlib import resources
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from chorale.job.files import read_file
from chorale.synth import InvalidInput, NetworkModel, Topology
from chorale.synth.errors import unknown_name
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.catalog import METHODS
from chorale.synth.simulation.simulate import Congestion, congestion_of
from chorale.synth.training import Layer, best_iteration
from chorale.tuner.config.values import Strict
from chorale.tuner.costs.pricing import Pricing, traffic_of_method
from chorale.tuner.files.schedule_files import load_topology

FORMAT = "chorale-training-profile/1"
SHIPPED = ("resnet-50", "bert-large", "gpt2-small", "gpt2-medium", "gpt2-large", "switch-base-256", "switch-c-2048")
MAX_LAYERS = 2**16
_BACKWARD_OPERATIONS = 2
"""Backward operations per forward operation: one computes the gradients of inputs, one the gradients of parameters."""

_Amount = Annotated[int, Field(ge=0)]
_Microseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProfiledLayer(Strict):
    """A layer. Its times are either given, or computed from `forward_flops` and the profile's `flops_per_s`.

    parameters:     number of parameters that every rank holds and whose gradients are summed
    forward_flops:  operations for one sample
    forward_us, backward_us: measured microseconds for all samples on a rank
    alltoall_bytes: bytes per sample that are sent to experts and back in each pass
    """

    name: str
    parameters: _Amount = 0
    forward_flops: _Amount | None = None
    forward_us: _Microseconds | None = None
    backward_us: _Microseconds | None = None
    alltoall_bytes: _Amount = 0

    @model_validator(mode="after")
    def _has_one_kind_of_time(self) -> Self:
        measured = [time for time in (self.forward_us, self.backward_us) if time is not None]
        if (self.forward_flops is None) != (len(measured) == 2) or len(measured) == 1:
            raise ValueError("a layer has either forward_flops, or forward_us and backward_us")
        return self


class Stage(Strict):
    """A sequence of layers that is repeated `repeat` times."""

    repeat: Annotated[int, Field(ge=1, le=MAX_LAYERS)] = 1
    layers: Annotated[list[ProfiledLayer], Field(min_length=1, max_length=MAX_LAYERS)]


class TrainingProfile(Strict):
    """The work of training a model, as one rank sees it.

    samples:     number of samples in the batch on each rank
    flops_per_s: operations per second in layers with `forward_flops`
    source:      origin of the numbers
    """

    format: Literal["chorale-training-profile/1"]
    name: str
    source: str
    samples: Annotated[int, Field(ge=1)]
    bytes_per_parameter: Annotated[int, Field(ge=1)] = 4
    flops_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    stages: Annotated[list[Stage], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_a_rate_and_an_end(self) -> Self:
        if self.flops_per_s is None and any(layer.forward_flops is not None for layer in self._profiled()):
            raise ValueError("layers with forward_flops need the flops_per_s of the profile")
        if sum(stage.repeat * len(stage.layers) for stage in self.stages) > MAX_LAYERS:
            raise ValueError(f"a profile has at most {MAX_LAYERS} layers")
        return self

    @property
    def parameters(self) -> int:
        return sum(stage.repeat * layer.parameters for stage in self.stages for layer in stage.layers)

    @property
    def has_experts(self) -> bool:
        return any(layer.alltoall_bytes for layer in self._profiled())

    def layers(self) -> list[Layer]:
        """Return all layers in forward order, with their seconds and bytes on one rank."""
        layers = []
        for layer in (layer for stage in self.stages for _ in range(stage.repeat) for layer in stage.layers):
            if layer.forward_us is not None and layer.backward_us is not None:
                forward_s, backward_s = layer.forward_us / 1e6, layer.backward_us / 1e6
            else:
                forward_s = self.samples * (layer.forward_flops or 0) / (self.flops_per_s or 1)
                backward_s = _BACKWARD_OPERATIONS * forward_s
            gradient_bytes = self.bytes_per_parameter * layer.parameters
            sent_bytes = self.samples * layer.alltoall_bytes
            layers.append(Layer(layer.name, forward_s, backward_s, gradient_bytes, sent_bytes))
        return layers

    def _profiled(self) -> Iterator[ProfiledLayer]:
        return (layer for stage in self.stages for layer in stage.layers)


def load_profile(name: str) -> TrainingProfile:
    """Return the shipped profile `name`, or the profile in the file of that name.

    Raises InvalidInput for any other file, naming the key, the value and a remedy.
    """
    if name in SHIPPED:
        return parse_profile(
            resources.files("chorale.tuner.costs").joinpath(f"profiles/{name}.json").read_bytes(), name
        )
    if "/" not in name and not name.endswith(".json"):
        raise unknown_name("profile", name, (*SHIPPED, "or give a JSON file"))
    return parse_profile(read_file(name, 2**24), name)


def parse_profile(content: bytes, name: str) -> TrainingProfile:
    """Return the profile in the bytes of the file `name`. Raises InvalidInput as `load_profile` does."""
    try:
        return TrainingProfile.model_validate_json(content)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(map(str, fault["loc"])) or "the profile"
        rule = fault["msg"].removeprefix("Value error, ").replace("Input should", "the value should", 1)
        raise InvalidInput(f"training profile, {key}: {rule}", name, "see docs/guide/training.md") from None


DEFAULT_METHOD = "bfb"
_GAP = Fraction(1, 100)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCosts:
    """Times of collectives on one network, in seconds.

    unmodelled_s:  calibrated overhead of each allreduce that the network model omits; 0 without a calibration
    alltoall_rate: rate at which every rank sends to every other, relative to a link's rate; None without all-to-all
    """

    topology: Topology
    method: str
    congestion: Congestion
    model: NetworkModel
    unmodelled_s: float
    alltoall_rate: Fraction | None

    def allreduce_s(self, size_bytes: int) -> float:
        return self.unmodelled_s + float(self.congestion.seconds(self.model, size_bytes))

    def alltoall_s(self, size_bytes: int) -> float:
        """Return the seconds of an all-to-all in which each rank divides `size_bytes` equally among all ranks, itself
        included.

        Assumes optimal routes and no latencies (full paper on direct-connect topologies, appendices A.4 and A.5).
        """
        if self.alltoall_rate is None:
            raise ValueError("these costs were made without an all-to-all rate")
        pair_bytes = Fraction(size_bytes, self.topology.compute_count)
        return float(pair_bytes / (self.alltoall_rate * self.model.unit_bytes_per_s(self.topology)))


def split_network(text: str) -> tuple[str, str]:
    """Split `METHOD@SPEC` into (method, spec). The method is bfb if `text` is only a spec."""
    method, separator, spec = text.partition("@")
    return (method, spec) if separator and method in METHODS else (DEFAULT_METHOD, text)


def training_costs(method: str, spec: str, pricing: Pricing, with_alltoall: bool) -> TrainingCosts:
    """Return the costs of an allreduce by `method` on `spec`, and of an all-to-all at a rate within 1 % of the best."""
    if method == DEFAULT_METHOD and load_topology(spec).switch_count:
        raise InvalidInput(f"{method} needs a network without switches", spec, f"write forest@{spec}")
    traffic = traffic_of_method(method, spec, "allreduce", pricing, None).traffic
    topology = traffic.topology
    rate = alltoall_rate(topology, _GAP).lower if with_alltoall else None
    return TrainingCosts(
        topology, method, congestion_of(traffic), pricing.network(topology), pricing.unmodelled_flows_s(traffic), rate
    )


def training_row(profile: TrainingProfile, buckets_bytes: Sequence[int], costs: TrainingCosts) -> dict[str, Any]:
    layers = profile.layers()
    iteration = best_iteration(layers, buckets_bytes, costs.allreduce_s, costs.alltoall_s)
    rate = costs.alltoall_rate
    return {
        "spec": costs.topology.spec,
        "nodes": costs.topology.compute_count,
        "method": costs.method,
        "iteration_s": iteration.total_s,
        **asdict(iteration),
        "alltoall_rate": None if rate is None else float(rate),
    }
