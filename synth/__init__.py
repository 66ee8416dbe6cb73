"""Contains Chorale's algorithms, which turn a topology into a verified schedule and the schedule into a program.

The names below are stable; see docs/guide/python.md. Each is imported from its module on first use.
"""

from typing import TYPE_CHECKING

from chorale.synth.lazy_modules import lazy_names

if TYPE_CHECKING:
    from chorale.synth.bounds.lower_bound import lower_bound as lower_bound
    from chorale.synth.build.build import CachingBuilder as CachingBuilder
    from chorale.synth.build.request import (
        BuildFailure as BuildFailure,
        BuildRequest as BuildRequest,
        BuildResult as BuildResult,
        ScheduleRequest as ScheduleRequest,
    )
    from chorale.synth.collective import Collective as Collective, parse_collective as parse_collective
    from chorale.synth.errors import (
        CheckFailed as CheckFailed,
        ChoraleError as ChoraleError,
        InvalidInput as InvalidInput,
        Unavailable as Unavailable,
    )
    from chorale.synth.executor.base import SerialExecutor as SerialExecutor
    from chorale.synth.executor.processes import ProcessExecutor as ProcessExecutor
    from chorale.synth.lowering.lower import lower as lower
    from chorale.synth.lowering.options import LoweringOptions as LoweringOptions
    from chorale.synth.methods.catalog import synthesize as synthesize
    from chorale.synth.methods.method import Options as Options
    from chorale.synth.programs.program import Program as Program
    from chorale.synth.schedule.traffic import traffic_of as traffic_of
    from chorale.synth.simulation.simulate import NetworkModel as NetworkModel, simulate as simulate
    from chorale.synth.targets.lift import lift as lift, lift_code as lift_code
    from chorale.synth.targets.registry import target_named as target_named
    from chorale.synth.topology.formats.networkx_graph import from_networkx as from_networkx, to_networkx as to_networkx
    from chorale.synth.topology.spec import parse_topology as parse_topology
    from chorale.synth.topology.topology import Topology as Topology
    from chorale.synth.verify.verified import VerifiedSchedule as VerifiedSchedule

_HOMES = {
    "chorale.synth.bounds.lower_bound": "lower_bound",
    "chorale.synth.build.build": "CachingBuilder",
    "chorale.synth.build.request": "BuildFailure BuildRequest BuildResult ScheduleRequest",
    "chorale.synth.collective": "Collective parse_collective",
    "chorale.synth.errors": "CheckFailed ChoraleError InvalidInput Unavailable",
    "chorale.synth.executor.processes": "ProcessExecutor",
    "chorale.synth.executor.base": "SerialExecutor",
    "chorale.synth.lowering.lower": "lower",
    "chorale.synth.lowering.options": "LoweringOptions",
    "chorale.synth.methods.catalog": "synthesize",
    "chorale.synth.methods.method": "Options",
    "chorale.synth.programs.program": "Program",
    "chorale.synth.schedule.traffic": "traffic_of",
    "chorale.synth.simulation.simulate": "NetworkModel simulate",
    "chorale.synth.targets.lift": "lift lift_code",
    "chorale.synth.targets.registry": "target_named",
    "chorale.synth.topology.formats.networkx_graph": "from_networkx to_networkx",
    "chorale.synth.topology.spec": "parse_topology",
    "chorale.synth.topology.topology": "Topology",
    "chorale.synth.verify.verified": "VerifiedSchedule",
}

__all__ = [name for names in _HOMES.values() for name in names.split()]  # found on first use
__getattr__ = lazy_names(__name__, _HOMES)
