"""What simulations cost a network at: rates and latencies as options, or a calibration; and the traffic to be priced.

A calibration file is what `chorale run --calibrate --json` printed; the traffic is that of a schedule file or method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chorale.synth.build.request import ScheduleRequest
from chorale.synth.build.schedules import build_schedule, verified_schedule
from chorale.synth.collective import CollectiveName, parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import METHODS
from chorale.synth.methods.closed_forms import pattern_of
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.schedule.traffic import Traffic, traffic_of
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.read_write import read_file
from chorale.tuner.files.schedule_files import SUFFIXES, load_schedule_in_its_form, read_parquet
from chorale.tuner.files.topology_specs import load_topology

if TYPE_CHECKING:
    from chorale.runners.simulated.calibration import Calibration
    from chorale.synth.programs.postconditions import AnyProgram
    from chorale.synth.programs.program import Program


def load_calibration(path: str) -> Calibration:
    """Return the calibration in the file at `path`, alone or under the key `calibration`."""
    try:
        document = json.loads(read_file(path))
    except ValueError as error:
        way_out = "give the JSON that `chorale run --calibrate --json` printed"
        raise InvalidInput("a calibration file must be JSON", f"{path}: {error}", way_out) from None
    return calibration_of(document)


def calibration_of(document: Any) -> Calibration:
    """Return the calibration that `document` is, or has under the key `calibration`."""
    from chorale.runners.simulated.calibration import Calibration  # noqa: PLC0415 (only who has one waits for it)

    inner = document.get("calibration") if isinstance(document, dict) else None
    return Calibration.from_json(document if inner is None else inner)


CALIBRATION_METHODS = ("bfb", "ring")
"""A method with few steps and one with many, so that alpha counts a different number of times."""
CALIBRATION_INSTANCES = (1, 4)
"""The same bytes in one message or in four, so that overhead counts a different number of times."""


def calibration_programs(program: Program, topology: Topology, target: str) -> dict[str, Program]:
    """Return programs, by name, to measure beside `program` so that latency, overhead and bandwidth can be told apart.

    Empty unless the collective is allgather, reduce_scatter or allreduce.
    """
    from chorale.synth.build.build import build_program  # noqa: PLC0415 (only who lowers waits for it)
    from chorale.synth.lowering.options import LoweringOptions  # noqa: PLC0415 (as above)

    collective = program.collective
    if collective.name not in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE):
        return {}
    programs = {}
    for method in CALIBRATION_METHODS:
        verified = build_schedule(ScheduleRequest(topology, collective, method)).verified
        for instances in CALIBRATION_INSTANCES:
            programs[f"{method} in {instances}"] = build_program(
                verified, LoweringOptions(target, instances=instances)
            ).program
    return programs


DEFAULTS: Mapping[str, str | None] = {"alpha_us": "0", "link_latency_us": "0.1", "hop_us": "0.3", "link_gbps": None}
"""The network of section 5 of the Swing paper, without its rate."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Either a network model or a calibration; `settings` are what a report says about it."""

    model: NetworkModel | None
    calibration: Calibration | None
    settings: Mapping[str, str | None]

    @staticmethod
    def of(options: Mapping[str, str | None], calibration: str | Mapping[str, Any] | None) -> Pricing:
        """Return the pricing by `options` (keys of `DEFAULTS`, None for the default), or by a calibration.

        calibration: path of a file, or what is in it
        Raises InvalidInput for both at once.
        """
        if calibration is None:
            settings = {name: DEFAULTS[name] if value is None else value for name, value in options.items()}
            return Pricing(NetworkModel.of(**settings), None, settings)  # type: ignore[arg-type]  # None is the rate only
        named = [name for name, value in options.items() if value is not None]
        if named:
            rule = "--calibration holds latencies and rates already"
            raise InvalidInput(rule, f"--{named[0].replace('_', '-')}", "leave out one of the two")
        if isinstance(calibration, str):
            return Pricing(None, load_calibration(calibration), {"calibration": calibration})
        return Pricing(None, calibration_of(calibration), {"calibration": "given"})

    def network(self, topology: Topology) -> NetworkModel:
        """Return the model for `topology`; InvalidInput if the model does not fit or no rate of links is known."""
        if self.calibration is not None:
            return self.calibration.network_model(topology)
        model = self.model or NetworkModel()
        model.unit_bytes_per_s(topology)
        return model

    def unmodelled_flows_s(self, traffic: Traffic) -> float:
        """Return the seconds of a run of `traffic` beside the network model: the calibrated overhead of messages."""
        return 0.0 if self.calibration is None else self.calibration.overhead_of_traffic_s(traffic)

    def unmodelled_program_s(self, program: AnyProgram) -> float:
        """Return the same for a run of `program`; InvalidInput for a plan, whose messages no calibration covers."""
        if self.calibration is None:
            return 0.0
        from chorale.synth.programs.program import Program  # noqa: PLC0415 (as above)

        if not isinstance(program, Program):
            way_out = "give latencies and rates instead"
            raise InvalidInput("a calibration must be for what is simulated", "a plan for MSCCL++", way_out)
        return self.calibration.overhead_of_program_s(program)


_RINGS: Mapping[str, bool] = {"ring": False, "biring": True}
"""Method -> whether its rings are bidirectional."""


@dataclass(frozen=True, slots=True, eq=False)
class PricedTraffic:
    """Traffic and its source; `schedule_id` is None where the traffic is known without a schedule."""

    traffic: Traffic
    method: str
    parameters: Mapping[str, Any]
    schedule_id: str | None

    @property
    def title(self) -> str:
        return f"{self.method} {self.traffic.collective.name.value} on {self.traffic.topology.spec}"


def traffic_of_file(path: str, collective: str | None, pricing: Pricing) -> PricedTraffic:
    """Return the traffic of the schedule in a file, after its verification."""
    if not path.endswith(SUFFIXES):
        choices = f"a .parquet or .json file, or one of {', '.join(METHODS)} with a topology"
        raise InvalidInput(
            "what is simulated must be a schedule file or a method with a topology", path, f"give {choices}"
        )
    schedule = load_schedule_in_its_form(path)
    if collective is not None and parse_collective(collective).name != schedule.collective.name:
        rule = f"--collective must be that of the schedule, {schedule.collective.name.value}"
        raise InvalidInput(rule, collective, "leave it out")
    pricing.network(schedule.topology)
    return _priced(verify(schedule).schedule)


def traffic_of_content(content: bytes, pricing: Pricing) -> PricedTraffic:
    """Return the traffic of the schedule in the bytes of a .parquet file, after its verification."""
    schedule = read_parquet(content)
    pricing.network(schedule.topology)
    return _priced(verify(schedule).schedule)


def traffic_of_method(
    method: str, spec: str, collective: str, pricing: Pricing, progress: Progress | None
) -> PricedTraffic:
    """Return the traffic of the schedule that `method` makes on the topology `spec`.

    Rings and algorithms with a closed form need no schedule, so that networks of 16,384 ranks are no trouble.
    """
    topology, target = load_topology(spec), parse_collective(collective)
    pricing.network(topology)
    pattern = pattern_of(method, topology, target)
    if pattern is not None:
        return PricedTraffic(pattern.traffic(), pattern.method, dict(pattern.parameters), None)
    if method in _RINGS:
        from chorale.synth.methods.rings.rings import ring_traffic  # noqa: PLC0415 (as above)

        return PricedTraffic(ring_traffic(topology, target, bidirectional=_RINGS[method]), method, {}, None)
    request = ScheduleRequest(topology, target, method)
    return _priced(verified_schedule(request, SerialExecutor(), progress).schedule)


def _priced(schedule: AnySchedule) -> PricedTraffic:
    return PricedTraffic(traffic_of(schedule), schedule.method, dict(schedule.parameters), schedule.id)
