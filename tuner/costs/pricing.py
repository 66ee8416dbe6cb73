"""What a simulated network costs: rates and latencies as given, or as a calibration found them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chorale.runners.simulated.calibration import Calibration
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import Program
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology
from chorale.tuner.costs.calibration_files import load_calibration

DEFAULTS: Mapping[str, str | None] = {"alpha_us": "0", "link_latency_us": "0.1", "hop_us": "0.3", "link_gbps": None}
"""The network of the swing paper, section 5, but for the rate."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Either a network model or a calibration; `settings` are what a report says about it."""

    model: NetworkModel | None
    calibration: Calibration | None
    settings: Mapping[str, str | None]

    @staticmethod
    def of(options: Mapping[str, str | None], calibration_path: str | None) -> Pricing:
        """Return the pricing by `given` (keys of `DEFAULTS`, None for the default), or by a calibration file.

        Raises InvalidInput for both at once.
        """
        if calibration_path is None:
            settings = {name: DEFAULTS[name] if value is None else value for name, value in options.items()}
            return Pricing(NetworkModel.of(**settings), None, settings)  # type: ignore[arg-type]  # None is the rate only
        named = [name for name, value in options.items() if value is not None]
        if named:
            rule = "--calibration holds latencies and rates already"
            raise InvalidInput(rule, f"--{named[0].replace('_', '-')}", "leave out one of the two")
        return Pricing(None, load_calibration(calibration_path), {"calibration": calibration_path})

    def network(self, topology: Topology) -> NetworkModel:
        """Return the model for `topology`; InvalidInput if it does not fit or the rate of a link is not known."""
        if self.calibration is not None:
            return self.calibration.network_model(topology)
        model = self.model or NetworkModel()
        model.unit_bytes_per_s(topology)
        return model

    def unmodelled_flows_s(self, traffic: Traffic) -> float:
        """Return the seconds of a run of `traffic` that the network model does not know of."""
        return 0.0 if self.calibration is None else self.calibration.overhead_of_traffic_s(traffic)

    def unmodelled_program_s(self, program: AnyProgram) -> float:
        """Return the same for a run of `program`; InvalidInput for a plan: what its messages cost is not calibrated."""
        if self.calibration is None:
            return 0.0
        if not isinstance(program, Program):
            way_out = "give latencies and rates instead"
            raise InvalidInput("a calibration must be for what is simulated", "a plan for MSCCL++", way_out)
        return self.calibration.overhead_of_program_s(program)
