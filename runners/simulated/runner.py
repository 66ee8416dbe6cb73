"""SimulatedRunner: simulates programs as flows that share links, and checks their results symbolically."""

import math
from dataclasses import replace
from itertools import islice

from chorale.runners.api.base import (
    FailureKind,
    Measurement,
    Outcome,
    RunFailure,
    RunRequest,
    SizeMeasurement,
    library_result,
)
from chorale.runners.api.config import MODELLED, MODELLED_COLLECTIVES
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.units import divisible_size
from chorale.runners.api.validation import validate_request
from chorale.runners.execution.rounds import on_switch_processes
from chorale.runners.measurement.machine import Facts, environment_id
from chorale.runners.simulated.library_model import library_algorithms, library_best, library_choice
from chorale.runners.simulated.plan_flows import flows_of, priced
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.check_execution import execution_violations
from chorale.synth.programs.memory import collective_of_ranks
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.run import plan_execution_violations
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import AnyProgram, Program
from chorale.synth.simulation.simulate import NetworkModel, simulate_flows
from chorale.synth.targets.registry import target_named

_SHOWN_BLOCKS = 8


class SimulatedRunner:
    """Implements `Runner` with a simulation, so that the same request always gives the same times.

    `model` gives the cost of messages; see `ProgramFlows` and `simulate_flows` for the simulation. If `buffer_bytes` is
    set (in the runner or in a request's settings), long chunks go through buffers of that size as on GPUs: every block
    loops over parts of at most half a buffer, each in two slices. Otherwise, a chunk is one message. A program that
    deadlocks at its protocol's queue depth is reported as a timeout. If the model has no alpha, plans (and programs
    that are lowered to plans) get a latency for each kind of operation. Nothing is random and no clock is read, so all
    `repeats` times are identical, and `timeout_s` and `seed` have no effect.
    """

    name = "simulated"

    def __init__(self, model: NetworkModel, buffer_bytes: int | None = None) -> None:
        if buffer_bytes is not None and buffer_bytes < 1:
            raise InvalidInput("a buffer must have at least one byte", buffer_bytes, "leave it out or choose more")
        self._model = model
        self._buffer_bytes = buffer_bytes

    def submit(self, request: RunRequest) -> Outcome:
        """Simulate every program at every size. Raises InvalidInput if the model lacks a link's rate."""
        if request.topology.bandwidth_unit == "link" and self._model.link_gbps is None:
            way_out = "add the rate of a link, such as --link-mbps 1000"
            raise InvalidInput("{} has no link rates", request.topology.spec, way_out)
        environment = self._environment()
        if (fault := validate_request(request, self.library, plans=True, switches=True)) is not None:
            return RunFailure(*fault, environment=environment)
        try:
            request = on_switch_processes(request)
        except InvalidInput as refused:
            return RunFailure(FailureKind.REJECTED, str(refused), environment=environment)
        results = {}
        for name, program in request.programs.items():
            measured = self._replay(name, program, request, environment)
            if isinstance(measured, RunFailure):
                return measured
            results[name] = measured
        if request.library:
            # Use the library's published model. If programs have no latencies, the library has none either.
            collective = collective_of_ranks(next(iter(request.programs.values())))
            algorithms = library_algorithms(request.topology, collective)
            if not algorithms:
                rule = "the library's times cannot be modelled on {}, which has no bandwidths"
                raise InvalidInput(rule, request.topology.spec, "compare with methods")
            if not (self._model.alpha_s or self._model.per_hop_s):
                algorithms = [replace(library_best(algorithms), latency_s=0.0, correction=())]
            times = [(size, library_choice(algorithms, size).seconds(size)) for size in request.sizes_bytes]
            results[library_result(MODELLED)] = tuple(
                SizeMeasurement(size, size, (time_s,) * request.repeats, correct=True) for size, time_s in times
            )
        return Measurement(self.name, results, environment)

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the name for the library's own choice of algorithm, with times from the library's published model."""
        return (MODELLED,) if collective in MODELLED_COLLECTIVES else ()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _replay(
        self, name: str, requested: AnyProgram, request: RunRequest, environment: Facts
    ) -> tuple[SizeMeasurement, ...] | RunFailure:
        program = requested  # if the target's runtime has one-sided operations, it executes the program's plan instead
        if isinstance(program, Program) and target_named(program.target).limits.one_sided_operations is not None:
            program = plan_of(program)
        prices, model = priced(program, self._model)
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        counts = [other.chunks for other in request.without_plans.values()]
        measurements = []
        own = request.settings.get(name)
        buffer_bytes = self._buffer_bytes if own is None or own.buffer_bytes is None else own.buffer_bytes
        for requested_bytes in request.sizes_bytes:
            size_bytes = divisible_size(requested_bytes, element_bytes, counts)
            chunk_bytes = size_bytes // program.chunks
            whole = buffer_bytes is None or program.one_sided
            loops, slices = (1, 1) if whole else buffer_splits(chunk_bytes, buffer_bytes or 1)
            flows = flows_of(program, request.topology, loops, slices, prices)
            times = simulate_flows(flows.graph, request.topology, model, chunk_bytes / (loops * slices))
            if stuck := flows.stuck(times):
                places = (f"rank {at.rank} block {at.block} instruction {at.step}: {at.reason}" for at in stuck)
                message = f"program {name} hangs with {len(stuck)} blocks unfinished"
                message = "; ".join([message, *islice(places, _SHOWN_BLOCKS)])
                blocked = tuple((at.rank, at.block, at.step) for at in stuck)
                return RunFailure(FailureKind.TIMEOUT, message, stuck[0].rank, environment, blocked)
            times_s = (flows.trace(times).end_s,) * request.repeats
            measurements.append(SizeMeasurement(size_bytes, requested_bytes, times_s, correct=True))
        return _fault(name, program, environment) or tuple(measurements)

    def _environment(self) -> dict[str, str | int | float | None]:
        model = {
            "runner": self.name,
            "alpha_s": str(self._model.alpha_s),
            "link_latency_s": str(self._model.link_latency_s),
            "hop_s": str(self._model.hop_s),
            "link_gbps": None if self._model.link_gbps is None else str(self._model.link_gbps),
            "buffer_bytes": self._buffer_bytes,
        }
        return {**model, "environment_id": environment_id(model)}


def buffer_splits(chunk_bytes: float, buffer_bytes: int) -> tuple[int, int]:
    """Return (loops, slices per loop) into which a chunk is cut to fit through buffers of `buffer_bytes`.

    NCCL, RCCL and MSCCL do the same with the Simple protocol: half a buffer per loop, in two slices.
    """
    return max(1, math.ceil(chunk_bytes * 2 / buffer_bytes)), 2


def _fault(name: str, program: AnyProgram, environment: Facts) -> RunFailure | None:
    if isinstance(program, ExecutionPlan):
        violations = plan_structure_violations(program) or plan_execution_violations(program)
    else:
        assert isinstance(program, Program)
        violations = execution_violations(program)
    for violation in violations:
        kind = FailureKind.TIMEOUT if violation.rule == "deadlock" else FailureKind.WRONG_RESULT
        return RunFailure(kind, f"program {name}: {violation.message}", violation.rank, environment)
    return None
