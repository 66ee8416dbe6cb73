"""From what a person names, a schedule file or a method, to the traffic that is priced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chorale.synth.build.build import verified_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.methods.catalog import METHODS
from chorale.synth.methods.closed_forms import pattern_of
from chorale.synth.methods.rings.ring import ring_traffic
from chorale.synth.schedule.schedule import AnySchedule
from chorale.synth.schedule.traffic import Traffic, traffic_of
from chorale.synth.verify.verify import verify
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.schedule_files import SUFFIXES, load_schedule_in_its_form, read_parquet
from chorale.tuner.specs import load_topology

_RINGS: Mapping[str, bool] = {"ring": False, "biring": True}
"""Whether a method's rings go both ways."""


@dataclass(frozen=True, slots=True, eq=False)
class PricedTraffic:
    """Traffic and where it comes from; `schedule_id` is None where no schedule was made."""

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
        known = f"a .parquet or .json file, or one of {', '.join(METHODS)} with a topology"
        raise InvalidInput(
            "what is simulated must be a schedule file or a method with a topology", path, f"give {known}"
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

    Algorithms with a closed form, and rings, tell it without a schedule, on networks of 16,384 ranks too.
    """
    topology, wanted = load_topology(spec), parse_collective(collective)
    pricing.network(topology)
    pattern = pattern_of(method, topology, wanted)
    if pattern is not None:
        return PricedTraffic(pattern.traffic(), pattern.method, dict(pattern.parameters), None)
    if method in _RINGS:
        return PricedTraffic(ring_traffic(topology, wanted, bidirectional=_RINGS[method]), method, {}, None)
    request = ScheduleRequest(topology, wanted, method)
    return _priced(verified_schedule(request, SerialExecutor(), progress).schedule)


def _priced(schedule: AnySchedule) -> PricedTraffic:
    return PricedTraffic(traffic_of(schedule), schedule.method, dict(schedule.parameters), schedule.id)
