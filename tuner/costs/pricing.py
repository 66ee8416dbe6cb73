"""Predicts times of collectives and training iterations from message costs, traffic and model profiles.

Message costs come from options or from a calibration file, the output of `chorale run --calibrate --json`. Traffic
comes from a schedule file or a method. Profiles are described in docs/guide/training.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from importlib import resources
from itertools import groupby
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from chorale.job.files import read_file
from chorale.runners.api.programs import Connection, ConnectionPaths, sent_chunks
from chorale.runners.simulated.calibration import Calibration
from chorale.runners.simulated.plan_flows import PlanMessages, flows_of, priced
from chorale.runners.simulated.program_flows import ProgramTrace
from chorale.runners.simulated.runner import buffer_splits
from chorale.synth import (
    CheckFailed,
    InvalidInput,
    LoweringOptions,
    NetworkModel,
    Options,
    Program,
    ScheduleRequest,
    SerialExecutor,
    Topology,
    VerifiedSchedule,
    parse_collective,
    simulate,
    traffic_of,
)
from chorale.synth.build.build import build_program, verified_schedule
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import unknown_name
from chorale.synth.executor.base import Progress
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.catalog import AUTO_METHOD, METHODS
from chorale.synth.methods.closed_forms import ALGORITHMS
from chorale.synth.methods.method import SynthesisTask
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import AnyProgram
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.simulate import (
    HOP_US,
    LINK_LATENCY_US,
    Congestion,
    Fidelity,
    congestion_of,
    simulate_flows,
)
from chorale.synth.targets.judge import network_of
from chorale.synth.topology.expansions import promoted
from chorale.synth.training import Layer, best_iteration
from chorale.synth.verify.verify import verify
from chorale.tuner.config.values import Strict
from chorale.tuner.files.schedule_files import is_schedule_name, load_schedule_in_its_form, load_topology

MAX_MESSAGES = 2**22
"""Maximum number of messages in a simulation; each message takes about a kilobyte of memory and ten microseconds."""
_BUFFER_BYTES: Mapping[str, int] = {"msccl-xml": 2**22, "msccl-executor-xml": 2**22}
"""Target -> bytes in the buffer of a connection, as in NCCL's Simple protocol. Longer chunks are sent in pieces."""

_FREE = NetworkModel(link_gbps=Fraction(100))
CALIBRATION_METHODS = ("bfb", "ring")
"""Methods to measure for a calibration: one with few steps and one with many, to determine the latency (alpha)."""
CALIBRATION_INSTANCES = (1, 4)
"""Numbers of instances to measure for a calibration. The same bytes are sent in one message or in four, from which
the overhead of a message follows."""
DEFAULT_METHOD = "bfb"
_GAP = Fraction(1, 100)


def usual_buffer_bytes(program: AnyProgram) -> int | None:
    """Return the size of a connection's buffer in the runtime of `program`, or None if there are no such buffers."""
    return _BUFFER_BYTES.get(program.target)


def program_loads(program: AnyProgram, topology: Topology) -> NDArray[np.int64]:
    """Return int64[links]: the number of chunks that cross each link, rounded up. O(instructions + links on routes)."""
    loads, parts = _loads(program, topology)
    return -(-loads // parts)


def program_time_per_byte(program: AnyProgram, topology: Topology) -> Fraction:
    """Return the busiest link's time per byte of the vector; the unit is 1 / `bandwidth_unit`."""
    loads, parts = _loads(program, topology)
    return topology.links.longest_time(loads) / (program.chunks * parts)


def _loads(program: AnyProgram, topology: Topology) -> tuple[NDArray[np.int64], int]:
    """Return the number of chunk parts that cross each link, and the number of parts per chunk."""
    if isinstance(program, Program) and program.switches:
        processes = promoted(topology, program.switches)
        loads = np.zeros(len(topology.links), dtype=np.int64)
        loads[processes.origin], parts = _loads(replace(program, switches=()), processes.network)
        return loads, parts
    paths, loads = ConnectionPaths(topology), np.zeros(len(topology.links), dtype=np.int64)
    moved: Iterable[tuple[Connection, int]] = ()
    parts = 1
    if isinstance(program, ExecutionPlan):
        messages = PlanMessages(program, topology)
        moved, parts = messages.all(), messages.parts
    else:
        moved = sent_chunks(program).items()
    for connection, chunks in moved:
        loads[list(paths.path(connection) or ())] += chunks
    return loads, parts


def simulate_program(
    program: AnyProgram,
    topology: Topology,
    network: NetworkModel,
    size_bytes: int,
    buffer_bytes: int | None,
    *,
    max_messages: int = MAX_MESSAGES,
) -> ProgramTrace:
    """Simulate a checked `program` on a vector of `size_bytes` with the flow model.

    `buffer_bytes`: see `chorale.runners.simulated.runner.SimulatedRunner`; MSCCL++ plans ignore it. If `network` has no
    fixed cost per message (alpha), a plan's operations have latencies and the links have none. The size need not be
    divisible by the chunk count. Raises InvalidInput for more than `max_messages`, and CheckFailed if the program
    deadlocks.
    """
    loops, slices = 1, 1  # see `ProgramFlows`; more than 1 if chunks must be cut to fit through buffers
    if buffer_bytes is not None and not program.one_sided:
        loops, slices = buffer_splits(size_bytes / program.chunks, buffer_bytes)
    messages = sum(1 for _ in program.messages()) * loops * slices
    if messages > max_messages:
        rule, value = f"at most {max_messages} messages are simulated", f"{messages} for {size_bytes} bytes"
        raise InvalidInput(rule, value, "choose a smaller size, or lower the schedule with fewer chunks")
    prices, network = priced(program, network)
    topology = network_of(program, topology)
    flows = flows_of(program, topology, loops, slices, prices)
    times = simulate_flows(flows.graph, topology, network, size_bytes / program.chunks / (loops * slices))
    for at in flows.stuck(times):
        value = f"rank {at.rank} block {at.block} instruction {at.step}: {at.reason}"
        raise CheckFailed("the program deadlocks: {}", value, "see the details with `chorale lift`")
    return flows.trace(times)


def lowering_loss(
    verified: VerifiedSchedule, program: Program, size_bytes: int, buffer_bytes: int | None, **limit: int
) -> float:
    """Return how much slower `program` is than its schedule (0.05 means 5 %) in the flow model without latencies.

    limit: `max_messages`, if given, is passed to `simulate_program`
    """
    topology = verified.schedule.topology
    planned_s = float(verified.cost.time_per_byte * size_bytes / _FREE.unit_bytes_per_s(topology))
    return simulate_program(program, topology, _FREE, size_bytes, buffer_bytes, **limit).end_s / planned_s - 1


def load_calibration(path: str) -> Calibration:
    """Return the calibration in a JSON file: the value of the key `calibration` or, without it, the whole document."""
    try:
        document = json.loads(read_file(path, 2**20))
    except ValueError as error:
        way_out = "give the JSON that `chorale run --calibrate --json` printed"
        raise InvalidInput("the calibration file is not JSON: {}", f"{path}: {error}", way_out) from None
    inner = document.get("calibration") if isinstance(document, dict) else None
    return Calibration.from_json(document if inner is None else inner)


def calibration_programs(program: Program, topology: Topology, target: str) -> dict[str, Program]:
    """Return name -> program, for the additional programs from whose times a calibration is computed.

    Their numbers of steps and messages differ, so latency, message overhead and bandwidth can be determined.

    The result is empty unless the collective is allgather, reduce_scatter or allreduce.
    """
    collective = program.collective
    if collective.name not in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE):
        return {}
    programs = {}
    for method in CALIBRATION_METHODS:
        verified = verified_schedule(ScheduleRequest(topology, collective, method))
        for instances in CALIBRATION_INSTANCES:
            options = LoweringOptions(target, instances=instances)
            programs[f"{method} in {instances}"] = build_program(verified, options).program
    return programs


DEFAULTS: Mapping[str, str | None] = {
    "alpha_us": "0", "link_latency_us": LINK_LATENCY_US, "hop_us": HOP_US, "link_gbps": None,
}  # fmt: skip
"""Default cost options. Their latencies (Swing paper, section 5) are not used for networks that specify latencies."""
_LATENCIES = ("link_latency_us", "hop_us")


@dataclass(frozen=True, slots=True)
class Pricing:
    """Predicts the costs of messages from `model` or from the measured `calibration`; the other one is None.

    settings: description of the model or calibration for reports
    stated:   names of the settings that the user gave
    """

    model: NetworkModel | None
    calibration: Calibration | None
    settings: Mapping[str, str | None]
    stated: frozenset[str] = frozenset()

    @staticmethod
    def of(options: Mapping[str, object], calibration: str | None = None) -> Pricing:
        """Return a `Pricing` for `options` (names as in `DEFAULTS`; None: default value) or for a calibration file.

        Raises InvalidInput if both are given.
        """
        if calibration is None:
            settings = {name: DEFAULTS[name] if value is None else str(value) for name, value in options.items()}
            stated = frozenset(name for name, value in options.items() if value is not None)
            return Pricing(NetworkModel.of(**settings), None, settings, stated)  # type: ignore[arg-type]  # the rate only
        named = [name for name, value in options.items() if value is not None]
        if named:
            rule = "--calibration already has latencies and rates, so {} has no effect"
            raise InvalidInput(rule, f"--{named[0].replace('_', '-')}", "leave out one of them")
        return Pricing(None, load_calibration(calibration), {"calibration": calibration})

    @staticmethod
    def usual(**options: object) -> Pricing:
        """Return a `Pricing` for `options`, with defaults for options that are not given."""
        return Pricing.of({**dict.fromkeys(DEFAULTS), **options})

    def network(self, topology: Topology) -> NetworkModel:
        """Return the network model for `topology`. Raises InvalidInput if the link rate is needed but not given."""
        if self.calibration is not None:
            return self.calibration.network_model(topology)
        model = NetworkModel() if self.model is None else NetworkModel.of(**self.settings_on(topology))  # type: ignore[arg-type]  # as above
        model.unit_bytes_per_s(topology)
        return model

    def settings_on(self, topology: Topology) -> Mapping[str, str | None]:
        """Return the cost settings for `topology`; default latencies become 0 if the topology specifies latencies."""
        if not any(topology.links.latencies_s):
            return self.settings
        own = [name for name in _LATENCIES if name in self.settings and name not in self.stated]
        return {**self.settings, **dict.fromkeys(own, "0")}

    def unmodelled_flows_s(self, traffic: Traffic) -> float:
        """Return the calibrated message overhead of `traffic` that the network model does not include, in seconds."""
        return 0.0 if self.calibration is None else self.calibration.overhead_of_traffic_s(traffic)

    def times_s(
        self,
        traffic: Traffic,
        sizes_bytes: Sequence[int],
        fidelity: Fidelity = "step",
        pipeline_chunks: int | None = None,
        progress: Progress | None = None,
    ) -> list[float]:
        """Return the predicted time of `traffic` in seconds for each vector size."""
        network, beside_s = self.network(traffic.topology), self.unmodelled_flows_s(traffic)
        times_s = simulate(traffic, network, sizes_bytes, fidelity, pipeline_chunks=pipeline_chunks, progress=progress)
        return [beside_s + time_s for time_s in times_s]

    def unmodelled_program_s(self, program: AnyProgram) -> float:
        """Return the calibrated message overhead of `program`, in seconds. Raises InvalidInput for an MSCCL++ plan."""
        if self.calibration is None:
            return 0.0
        if not isinstance(program, Program):
            way_out = "give latencies and rates instead"
            raise InvalidInput("a calibration cannot be applied to {}", "a plan for MSCCL++", way_out)
        return self.calibration.overhead_of_program_s(program)


def goodput_row(size_bytes: int, time_s: float) -> dict[str, Any]:
    goodput = size_bytes * 8 / time_s / 1e9
    return {"size_bytes": size_bytes, "time_us": time_s * 1e6, "goodput_gbit_per_s": goodput}


@dataclass(frozen=True, slots=True, eq=False)
class PricedTraffic:
    """The traffic of a collective, and the method that produced it; `schedule_id` is None if no schedule was built."""

    traffic: Traffic
    method: str
    parameters: Mapping[str, Any]
    schedule_id: str | None

    @property
    def title(self) -> str:
        return f"{self.method} {self.traffic.collective.name.value} on {self.traffic.topology.spec}"


def traffic_of_file(path: str, collective: str | None, pricing: Pricing) -> PricedTraffic:
    if not is_schedule_name(path):
        fix = f"give a .parquet or .json file, or METHOD SPEC; methods: {', '.join(METHODS)}"
        raise InvalidInput("{} is neither a schedule file nor a method with a topology", path, fix)
    schedule = load_schedule_in_its_form(path)
    if collective is not None and parse_collective(collective).name != schedule.collective.name:
        rule = f"--collective must be that of the schedule, {schedule.collective.name.value}"
        raise InvalidInput(rule, collective, "leave it out")
    pricing.network(schedule.topology)
    return _priced(verify(schedule).schedule)


def traffic_of_content(content: bytes, pricing: Pricing) -> PricedTraffic:
    """Verify the schedule in the bytes of a .parquet file and return its traffic."""
    schedule = from_parquet(content, load_topology)
    pricing.network(schedule.topology)
    return _priced(verify(schedule).schedule)


def traffic_of_method(
    method: str, spec: str, collective: str, pricing: Pricing, progress: Progress | None
) -> PricedTraffic:
    """Return the traffic of the schedule that `method` builds on the topology `spec`.

    Algorithms with a closed form need no schedule, so they are fast even on networks of 16,384 ranks.
    """
    topology, target = load_topology(spec), parse_collective(collective)
    pricing.network(topology)
    if method in ALGORITHMS:
        pattern = ALGORITHMS[method].pattern(topology, target)
        return PricedTraffic(pattern.traffic(), pattern.method, dict(pattern.parameters), None)
    request = ScheduleRequest(topology, target, method)
    return _priced(verified_schedule(request, progress=progress).schedule)


def fastest_traffic(
    spec: str, collective: str, pricing: Pricing, sizes_bytes: Sequence[int], progress: Progress | None
) -> list[tuple[PricedTraffic, tuple[int, ...]]]:
    """Return pairs of a method's traffic and the sizes at which this method is predicted to be the fastest.

    Schedules are verified. If the traffic of a method has a closed form, no schedule is built.
    """
    topology, target = load_topology(spec), parse_collective(collective)
    task = SynthesisTask(topology, target, Options(), SerialExecutor(), progress)
    choices = AUTO_METHOD.timed(task, pricing.network(topology))
    chosen = [(choices.at(size_bytes), size_bytes) for size_bytes in sizes_bytes]
    runs = []
    for _, group in groupby(chosen, key=lambda pair: id(pair[0].traffic)):
        (choice, *_), sizes = zip(*group, strict=True)
        if choice.method in ALGORITHMS:
            runs.append((PricedTraffic(choice.traffic, choice.method, {}, None), sizes))
        else:
            runs.append((_priced(verify(choice.schedule()).schedule), sizes))
    return runs


def _priced(schedule: AnySchedule) -> PricedTraffic:
    return PricedTraffic(traffic_of(schedule), schedule.method, dict(schedule.parameters), schedule.id)


FORMAT = "chorale-training-profile/1"
SHIPPED = ("resnet-50", "bert-large", "gpt2-small", "gpt2-medium", "gpt2-large", "switch-base-256", "switch-c-2048")
MAX_LAYERS = 2**16
_BACKWARD_OPERATIONS = 2
"""Backward operations per forward operation: one for the gradients of inputs, one for the gradients of parameters."""

_Amount = Annotated[int, Field(ge=0)]
_Microseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProfiledLayer(Strict):
    """A layer of a model. Its times are given, or computed from `forward_flops` and the profile's `flops_per_s`.

    parameters:     number of parameters that every rank holds and whose gradients are summed
    forward_flops:  floating-point operations of the forward pass for one sample
    forward_us, backward_us: measured microseconds for all samples on a rank
    alltoall_bytes: bytes per sample that are sent to experts, and sent back, in each pass
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
    """Describes one rank's work when a model is trained.

    samples:     number of samples in the batch on each rank
    flops_per_s: assumed compute rate, in operations per second, of layers with `forward_flops`
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
        """Return all layers in forward order, with the computation times and bytes of one rank."""
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
    """Return the shipped profile `name`, or the profile in the file `name`.

    Raises InvalidInput for an invalid file; the message names the key, the value and a fix.
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


@dataclass(frozen=True, slots=True, eq=False)
class TrainingCosts:
    """Computes the times of a training iteration's collectives on one network, in seconds.

    congestion:    link loads of the allreduce, from which its time is computed
    unmodelled_s:  calibrated part of an allreduce's time that the network model omits; 0 without a calibration
    alltoall_rate: rate from every rank to every other, relative to a link's rate; None if there is no all-to-all
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
        """Return an all-to-all's time in seconds. Each rank sends equal parts of `size_bytes` to all, including itself.

        Assumes optimal routes and no latencies. Source: Zhao et al., Efficient Direct-Connect Topologies for Collective
        Communications, full version, appendices A.4 and A.5.
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
