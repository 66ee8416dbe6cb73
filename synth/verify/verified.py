"""What verification knows about a schedule: replayed facts, exact cost, gap to the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chorale.synth.schedule.schedule import AnySchedule


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact cost terms of a schedule, in the topology's bandwidth unit.

    steps:            T_L in hops of latency (number of steps, or height of the trees)
    time_per_byte:    T_B / M, in 1 / bandwidth_unit
    bandwidth_factor: T_B / (M / B) with B the egress bandwidth of a node; None unless the topology is regular,
                      direct-connect and of unit capacity
    latency_s:        sum over steps of the largest latency, along its route, of a transfer in the step
    time_s:           seconds at the size that verification was asked about, see `chorale.synth.verify.timing`; else
    None
    """

    steps: int
    time_per_byte: Fraction
    bandwidth_factor: Fraction | None
    latency_s: Fraction
    time_s: Fraction | None = None


@dataclass(frozen=True, slots=True)
class LoadSummary:
    """Bytes on links as fractions of the vector M, over the whole schedule."""

    largest: Fraction
    smallest: Fraction
    total: Fraction
    idle_links: int
    duplicate_deliveries: int


@dataclass(frozen=True, slots=True)
class Optimality:
    """`achieved` time per byte against `lower_bound`, with the certificate of the bound as JSON-able facts."""

    lower_bound: Fraction
    achieved: Fraction
    certificate: Mapping[str, Any]

    @property
    def gap(self) -> Fraction:
        """achieved / lower_bound - 1; 0 when the schedule is provably optimal."""
        return self.achieved / self.lower_bound - 1


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedSchedule:
    """A schedule, in any form, in which no fault was found. Only `chorale.synth.verify.verify` makes one."""

    schedule: AnySchedule
    cost: Cost
    link_loads: LoadSummary
