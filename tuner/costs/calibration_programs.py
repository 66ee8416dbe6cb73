"""Programs that tell latency, overhead and bandwidth apart when they are measured together."""

from __future__ import annotations

from chorale.synth.build.build import build_program, build_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program
from chorale.synth.topology.topology import Topology

CALIBRATION_METHODS = ("bfb", "ring")
"""Few steps and many: alpha counts a different number of times."""
CALIBRATION_INSTANCES = (1, 4)
"""The same bytes in one message or in four: overhead counts a different number of times."""


def calibration_programs(program: Program, topology: Topology, target: str) -> dict[str, Program]:
    """Return programs for the collective of `program` beside it, by name.

    They are for allgather, reduce_scatter and allreduce; for others there are none.
    """
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
