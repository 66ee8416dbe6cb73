"""Calibrates the cost model: finds the latency, overhead and bandwidth that explain a runner's measurements.

Source: full paper on direct-connect topologies, appendix A.2, which fits the cost of steps and of bandwidth in two
        separate regressions. Here, both are terms in one regression, together with a rank's cost of handling a message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.runners.api.base import Measurement
from chorale.runners.simulated.program_flows import ProgramFlows
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.programs.program import Program
from chorale.synth.schedule.traffic import Traffic
from chorale.synth.simulation.simulate import NetworkModel, simulate_flows
from chorale.synth.targets.judge import network_of
from chorale.synth.topology.topology import Topology

FORMAT = "chorale-calibration/1"
_BYTE_A_SECOND = Fraction(8, 10**9)


@dataclass(frozen=True, slots=True)
class TimeTerms:
    """The numbers that determine a program's time. A calibration finds the machine's factor for each of them.

    chain:      length of the longest chain of messages that wait for one another; its factor is alpha
    messages:   largest number of messages that one rank sends and receives
    chunk_cost: the program's time in seconds without latencies, if chunks have one byte and bandwidth 1 means one byte
                per second
    """

    chain: float
    messages: int
    chunk_cost: float

    @staticmethod
    def of(program: Program, topology: Topology, loops: int = 1, slices: int = 1) -> TimeTerms:
        """Compute the terms of `program` with two flow simulations. `ProgramFlows` explains `loops` and `slices`."""
        topology = network_of(program, topology)
        graph = ProgramFlows(program, topology, loops, slices).graph
        alphas = NetworkModel(alpha_s=Fraction(1), link_gbps=_BYTE_A_SECOND)
        rates = NetworkModel(link_gbps=_BYTE_A_SECOND)
        chunks_s = simulate_flows(graph, topology, rates, 1 / (loops * slices)).end_s
        return TimeTerms(
            simulate_flows(graph, topology, alphas, 0.0).end_s,
            max_rank_messages(program),
            chunks_s * float(rates.unit_bytes_per_s(topology)),
        )


def max_rank_messages(program: Program) -> int:
    """Return the largest number of messages that one rank of `program` sends and receives."""
    return max(
        sum(step.op.sends + step.op.receives for block in rank.blocks for step in block.instructions)
        for rank in program.ranks
    )


@dataclass(frozen=True, slots=True)
class Observation:
    """A program's measured time for one chunk size, and the terms from which the model computes this time."""

    program: str
    terms: TimeTerms
    chunk_bytes: float
    time_s: float

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """Return the numbers by which constant_s, alpha_s, overhead_s and 1 / unit_bytes_per_s are multiplied."""
        return 1.0, self.terms.chain, float(self.terms.messages), self.terms.chunk_cost * self.chunk_bytes


def observations_of(
    measurement: Measurement, programs: Mapping[str, Program], topology: Topology
) -> tuple[Observation, ...]:
    """Return one observation for each measured program and size, with the median time."""
    found = []
    for name, measured in measurement.results.items():
        terms = TimeTerms.of(programs[name], topology)
        found += [
            Observation(name, terms, observation.size_bytes / programs[name].chunks, observation.median_s)
            for observation in measured
        ]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A model of times: constant_s + alpha_s * chain + overhead_s * messages + chunk_cost * bytes / unit_bytes_per_s.

    Here, bytes is the size of a chunk; for chain, messages and chunk_cost, see `TimeTerms`.

    bandwidth_unit, unit_bytes_per_s: the topology's unit of bandwidth, and the measured rate of a link of bandwidth 1
    mean_error, max_error: relative errors of the fitted times
    unseen_error: mean relative error for a program that is left out of the fit; None if there is only one program
    observations: number of measured times to which the model is fitted
    """

    bandwidth_unit: str
    constant_s: float
    alpha_s: float
    overhead_s: float
    unit_bytes_per_s: float
    mean_error: float
    max_error: float
    unseen_error: float | None
    observations: int

    def seconds(self, observation: Observation) -> float:
        coefficients = self.constant_s, self.alpha_s, self.overhead_s, 1 / self.unit_bytes_per_s
        return float(np.dot(observation.factors, coefficients))

    def network_model(self, topology: Topology) -> NetworkModel:
        """Return alpha and bandwidths for simulations on `topology`.

        The simulated times do not include `constant_s` and `overhead_s`.
        Raises InvalidInput for a topology with another bandwidth unit.
        """
        if topology.bandwidth_unit != self.bandwidth_unit:
            rule = f"the calibration is for bandwidths in {self.bandwidth_unit}: {{}}"
            raise InvalidInput(rule, f"{topology.spec} in {topology.bandwidth_unit}", "calibrate on such a network")
        alpha_s = parse_rational(self.alpha_s, "the fitted alpha")
        rate = parse_rational(self.unit_bytes_per_s, "the fitted rate")
        if topology.bandwidth_unit == "link":
            return NetworkModel(alpha_s, link_gbps=rate * 8 / 10**9)
        return NetworkModel(alpha_s, efficiency=rate / NetworkModel().unit_bytes_per_s(topology))

    def overhead_of_traffic_s(self, traffic: Traffic) -> float:
        """Return the seconds to add to the time that a simulation of `traffic` with `network_model` gives."""
        ranks = traffic.topology.compute_count
        messages = np.zeros(ranks, dtype=np.int64)
        for step, count in Counter(traffic.steps).items():
            ends = np.concatenate([traffic.src(step), traffic.dst(step)])
            messages += count * np.bincount(ends, minlength=ranks)
        return self.constant_s + self.overhead_s * int(messages.max(initial=0))

    def overhead_of_program_s(self, program: Program) -> float:
        """Return the seconds to add to the time that a simulation of `program` with `network_model` gives."""
        return self.constant_s + self.overhead_s * max_rank_messages(program)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @staticmethod
    def from_json(document: object) -> Calibration:
        """Return the calibration in a document that `to_json` wrote. Raises InvalidInput for any other document."""
        way_out = "give the JSON that `chorale run --calibrate --json` printed"
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InvalidInput(f"a calibration must be JSON of the format {FORMAT}", repr(document)[:60], way_out)
        values = {field.name: document.get(field.name) for field in fields(Calibration)}
        for name in ("constant_s", "alpha_s", "overhead_s", "unit_bytes_per_s"):
            value = values[name]
            least = 0 if name != "unit_bytes_per_s" else 1e-12
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e30:
                raise InvalidInput(f"{name} of a calibration must be a number of at least 0", repr(value), way_out)
        return Calibration(**values)  # type: ignore[arg-type]  # the numbers that count were checked


def calibrate(observations: Sequence[Observation], bandwidth_unit: str) -> Calibration:
    """Fit the model's four coefficients, none of them negative, by least squares of relative errors.

    Raises CheckFailed if no bandwidth explains the times, for example because all sizes are too small to show it.
    """
    coefficients = _fitted(observations)
    if coefficients[3] <= 0:
        rule = "measured times do not grow with the bytes on links, so no bandwidth can be fitted: {}"
        raise CheckFailed(rule, f"{len(observations)} measurements", "measure larger sizes as well")
    errors = _relative_errors(observations, coefficients)
    constant_s, alpha_s, overhead_s, pace = coefficients.tolist()
    names, unseen = dict.fromkeys(observation.program for observation in observations), []
    for name in names if len(names) > 1 else ():
        others = [observation for observation in observations if observation.program != name]
        own = [observation for observation in observations if observation.program == name]
        unseen.append(_relative_errors(own, _fitted(others)).mean())
    return Calibration(
        bandwidth_unit, constant_s, alpha_s, overhead_s, 1 / pace,
        float(errors.mean()), float(errors.max()), float(np.mean(unseen)) if unseen else None, len(observations),
    )  # fmt: skip


def _fitted(observations: Sequence[Observation]) -> NDArray[np.float64]:
    factors = np.array([observation.factors for observation in observations])
    times = np.array([observation.time_s for observation in observations])
    scale = factors.max(axis=0)  # scales the columns, because seconds and bytes differ by orders of magnitude
    scale[scale == 0] = 1.0
    from scipy.optimize import nnls  # noqa: PLC0415 (takes a second, only needed here)

    solution, _ = nnls(factors / scale / times[:, None], np.ones(len(times)))
    return np.asarray(solution / scale)


def _relative_errors(observations: Sequence[Observation], coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    factors = np.array([observation.factors for observation in observations])
    times = np.array([observation.time_s for observation in observations])
    return np.asarray(np.abs(factors @ coefficients / times - 1))
