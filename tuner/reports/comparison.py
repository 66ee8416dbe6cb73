"""Two schedules or programs side by side: exact cost terms, resources, times, and where one overtakes the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from typing import Any

from chorale.runners.api.units import format_size
from chorale.synth.errors import InvalidInput
from chorale.synth.identity import rational_text
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import Fidelity, simulate
from chorale.synth.targets.resources import resources_of
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.costs.program_costs import program_time_per_byte, simulate_program, usual_buffer_bytes
from chorale.tuner.reports.lazy_rich import Table
from chorale.tuner.reports.quantities import fact_label, fact_text
from chorale.tuner.reports.show import topology_document

_SAME = 1e-9  # times that differ by less are equal
_NARROW = 1.01


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two: a verified schedule or a checked program, with the name of its file."""

    name: str
    topology: Topology
    content: VerifiedSchedule | AnyProgram

    @property
    def collective(self) -> str:
        """The collective, with its root where it has one."""
        content = self.content.schedule if isinstance(self.content, VerifiedSchedule) else self.content
        return str(content.collective)

    @property
    def time_per_byte(self) -> Fraction:
        """Time of the busiest link per byte of the vector: of each step of a schedule, or of a whole program."""
        if isinstance(self.content, VerifiedSchedule):
            return self.content.cost.time_per_byte
        return program_time_per_byte(self.content, self.topology)

    def document(self) -> dict[str, Any]:
        """Return the exact terms and the resources as JSON has them."""
        content = self.content
        terms = _schedule_document(content) if isinstance(content, VerifiedSchedule) else _program_document(content)
        return {"name": self.name, **terms, "time_per_byte": rational_text(self.time_per_byte)}


def _schedule_document(verified: VerifiedSchedule) -> dict[str, Any]:
    schedule, factor = verified.schedule, verified.cost.bandwidth_factor
    return {
        "kind": schedule.kind,
        "method": schedule.method,
        "steps": schedule.steps,
        "bandwidth_factor": None if factor is None else rational_text(factor),
        "chunks_per_shard": schedule.chunks_per_shard,
        "transfers": schedule.transfer_count,
        "id": schedule.id,
    }


def _program_document(program: AnyProgram) -> dict[str, Any]:
    names = {"target": program.target, "chunks": program.chunks, "in_place": program.in_place}
    return {"kind": "program", **names, "protocol": program.protocol, **asdict(resources_of(program))}


@dataclass(frozen=True, slots=True)
class ComparisonModel:
    """How sides are priced: `fidelity` is for schedules; programs are simulated as flows, through buffers of
    `buffer_bytes` or, where that is None, those of their runtimes."""

    pricing: Pricing
    fidelity: Fidelity
    buffer_bytes: int | None

    def time_s(self, side: Side, size_bytes: int) -> float:
        """Return the seconds for a vector of `size_bytes`."""
        network, content = self.pricing.network(side.topology), side.content
        if isinstance(content, VerifiedSchedule):
            traffic = traffic_of(content.schedule)
            return simulate(traffic, network, [size_bytes], self.fidelity)[0] + self.pricing.unmodelled_flows_s(traffic)
        buffer_bytes = self.buffer_bytes or usual_buffer_bytes(content)
        trace = simulate_program(content, side.topology, network, size_bytes, buffer_bytes)
        return trace.end_s + self.pricing.unmodelled_program_s(content)


def comparison(first: Side, second: Side, model: ComparisonModel, sizes_bytes: Sequence[int]) -> dict[str, Any]:
    """Return the JSON document of two sides on one network.

    results:    seconds of both at each size, and how much faster the second is
    crossovers: sizes between those asked for, found by bisection to 1 %, at which one overtakes the other

    InvalidInput for different networks or collectives.
    """
    _require_comparable(first, second)
    times = {size: (model.time_s(first, size), model.time_s(second, size)) for size in sorted(sizes_bytes)}
    return {
        "topology": topology_document(first.topology),
        "collective": first.collective,
        "sides": [first.document(), second.document()],
        "time_per_byte_ratio": rational_text(first.time_per_byte / second.time_per_byte),
        "parameters": {**model.pricing.settings, "model": model.fidelity, "buffer_bytes": model.buffer_bytes},
        "results": [
            {
                "size_bytes": size,
                "time_us": [time_s * 1e6 for time_s in both],
                "speedup": both[0] / both[1],
                "faster": _faster(both),
            }
            for size, both in times.items()
        ],
        "crossovers": [
            _crossover(first, second, model, below, above)
            for below, above in pairwise(times)
            if {_faster(times[below]), _faster(times[above])} == {"first", "second"}
        ],
    }


def _require_comparable(first: Side, second: Side) -> None:
    if first.topology.id != second.topology.id:
        value = f"{first.topology.spec} and {second.topology.spec}"
        raise InvalidInput("what is compared must be for one network", value, "make both for the same")
    if first.collective != second.collective:
        value = f"{first.collective} and {second.collective}"
        raise InvalidInput("what is compared must be for one collective", value, "make both for the same")


def _faster(times_s: tuple[float, float]) -> str:
    first, second = times_s
    if abs(first - second) <= _SAME * max(first, second):
        return "equal"
    return "first" if first < second else "second"


def _crossover(first: Side, second: Side, model: ComparisonModel, below: int, above: int) -> dict[str, Any]:
    """Return where between two sizes, at which different sides are faster, that changes."""
    winner = _faster((model.time_s(first, below), model.time_s(second, below)))
    while above > _NARROW * below:
        middle = isqrt(below * above)
        if middle in (below, above):
            break
        is_before = _faster((model.time_s(first, middle), model.time_s(second, middle))) == winner
        below, above = (middle, above) if is_before else (below, middle)
    return {"size_bytes": above, "faster_below": winner, "faster_above": "second" if winner == "first" else "first"}


def comparison_tables(document: Mapping[str, Any]) -> list[Table]:
    """Return the tables for people: cost terms side by side, then times by size."""
    sides = document["sides"]
    unit = document["topology"]["bandwidth_unit"]
    terms = Table(title=f"{document['collective']} on {document['topology']['spec']}")
    for heading in ("", "first", "second"):
        terms.add_column(heading)
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        texts = ("" if side.get(name) is None else fact_text(name, side[name], unit) for side in sides)
        terms.add_row(fact_label(name), *texts)
    times = Table(title="time by size, us")
    for heading in ("size", "first", "second", "first / second"):
        times.add_column(heading, justify="right")
    for row in document["results"]:
        times.add_row(
            format_size(row["size_bytes"]), *(f"{time_us:.5g}" for time_us in row["time_us"]), f"{row['speedup']:.3f}"
        )
    for cross in document["crossovers"]:
        times.add_row(f"{format_size(cross['size_bytes'])} on", f"{cross['faster_above']} is faster", "", "")
    return [terms, times]
