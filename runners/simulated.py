"""SimulatedRunner: exact alpha-beta replay of programs, with the symbolic check of what they compute."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from runners.admission import refusal
from runners.api import FailureKind, Measurement, Outcome, RunFailure, RunRequest, SizeMeasurement
from runners.environment import Facts, environment_id
from runners.link_model import LinkModel, Ticks
from runners.simulation import Simulation
from runners.sizes import divisible_size
from synth.lowering.check_execution import execution_violations
from synth.lowering.program import Program

_SHOWN_BLOCKS = 8


class SimulatedRunner:
    """Implements `runners.api.Runner` without running anything: the same request always gives the same times.

    `model` says what messages cost; see `Simulation` for what is replayed. A program that hangs at the queue
    depth of its protocol is a timeout, one that computes something else a wrong result. Nothing is random and
    no clock is read, so `repeats` equal times are reported and `timeout_s` and `seed` do not matter.
    """

    name = "simulated"

    def __init__(self, model: LinkModel) -> None:
        self._model = model

    def submit(self, request: RunRequest) -> Outcome:
        """Replay every program at every size; InvalidInput if the model lacks the rate of a link."""
        environment = self._environment()
        reason = refusal(request)
        if reason is not None:
            return RunFailure(FailureKind.REJECTED, reason, environment=environment)
        results = {}
        for name, program in request.programs.items():
            measured = self._replay(name, program, request, environment)
            if isinstance(measured, RunFailure):
                return measured
            results[name] = measured
        return Measurement(self.name, results, environment)

    def close(self) -> None:
        """Nothing is held."""

    def _replay(
        self, name: str, program: Program, request: RunRequest, environment: Facts
    ) -> tuple[SizeMeasurement, ...] | RunFailure:
        element_bytes = np.dtype(request.dtype).itemsize
        counts = [other.chunks for other in request.programs.values()]
        measurements = []
        for requested_bytes in request.sizes_bytes:
            size_bytes = divisible_size(requested_bytes, element_bytes, counts)
            ticks = Ticks.of(self._model, request.topology, size_bytes // program.chunks)
            simulation = Simulation(program, request.topology, ticks)
            seconds = float(Fraction(simulation.run(), ticks.per_second))
            if failure := _hang(name, simulation, environment):
                return failure
            times_s = (seconds,) * request.repeats
            measurements.append(SizeMeasurement(size_bytes, requested_bytes, times_s, correct=True))
        return _fault(name, program, environment) or tuple(measurements)

    def _environment(self) -> dict[str, str | int | float | None]:
        model = {
            "runner": self.name,
            "alpha_s": str(self._model.alpha_s),
            "link_latency_s": str(self._model.link_latency_s),
            "link_gbps": None if self._model.link_gbps is None else str(self._model.link_gbps),
        }
        return {**model, "environment_id": environment_id(model)}


def _hang(name: str, simulation: Simulation, environment: Facts) -> RunFailure | None:
    stuck = simulation.stuck()
    if not stuck:
        return None
    places = [f"rank {at.rank} block {at.block} instruction {at.step}: {at.reason}" for at in stuck[:_SHOWN_BLOCKS]]
    message = "; ".join([f"program {name} hangs with {len(stuck)} blocks unfinished", *places])
    blocked = tuple((at.rank, at.block, at.step) for at in stuck)
    return RunFailure(FailureKind.TIMEOUT, message, stuck[0].rank, environment, blocked)


def _fault(name: str, program: Program, environment: Facts) -> RunFailure | None:
    for violation in execution_violations(program):
        kind = FailureKind.TIMEOUT if violation.rule == "deadlock" else FailureKind.WRONG_RESULT
        return RunFailure(kind, f"program {name}: {violation.message}", violation.rank, environment)
    return None
