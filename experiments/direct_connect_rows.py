"""The quantities of a row of tables 4 and 7: both come from the same topologies."""

from __future__ import annotations

from fractions import Fraction

from chorale.experiments.comparison import Quantity, short_text
from chorale.experiments.measured import MeasuredSchedule, alltoall_interval, distance_bound, moore_rate
from chorale.experiments.verdict import Interval
from chorale.synth.finder.candidate import least_bandwidth_factor, least_steps

DEGREE = 4


def schedule_quantities(measured: MeasuredSchedule) -> list[Quantity]:
    """Return steps, T_B in M/B and diameter of a verified allgather; the first two with what no schedule can beat."""
    least = least_bandwidth_factor(measured.topology.compute_count)
    return [
        Quantity("steps", Interval.exactly(measured.cost.steps), measured.diameter, "the network has that diameter"),
        Quantity("bandwidth_factor", Interval.exactly(measured.factor), least, f"{least} is least on any network"),
        Quantity("diameter", Interval.exactly(measured.diameter), measured.diameter, "distances were counted"),
    ]


def bound_quantities(nodes: int) -> list[Quantity]:
    """Return the same for what no network can beat, and the bound on the all-to-all rate."""
    steps = Interval.exactly(least_steps(nodes, DEGREE))
    return [
        Quantity("steps", steps),
        Quantity("bandwidth_factor", Interval.exactly(least_bandwidth_factor(nodes))),
        Quantity("diameter", steps),
        Quantity("rate", Interval.exactly(moore_rate(nodes, DEGREE)), smaller_is_better=False),
    ]


def rate_quantity(measured: MeasuredSchedule, gap: Fraction) -> Quantity:
    """Return the all-to-all rate between certified bounds; what proves the upper one, and a simpler proof beside it."""
    ours = alltoall_interval(measured.topology, gap)
    bound = distance_bound(measured.topology)
    proof = f"prices on links prove that no rate is above {short_text(ours.high)}, links / sum of distances = {bound} "
    proof += f"that none is above {short_text(bound)}"
    return Quantity("rate", ours, ours.high, proof, smaller_is_better=False)
