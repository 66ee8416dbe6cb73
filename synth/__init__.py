"""Pure algorithms: from a topology to a verified schedule to a program.

The names below are stable; see docs/guide/python.md.
"""

from typing import TYPE_CHECKING

from synth.lazy_names import lazy_names

if TYPE_CHECKING:
    from synth.bound.bound import lower_bound as lower_bound
    from synth.collective import Collective as Collective
    from synth.collective import parse_collective as parse_collective
    from synth.errors import ChoraleError as ChoraleError
    from synth.executor.processes import ProcessExecutor as ProcessExecutor
    from synth.executor.serial import SerialExecutor as SerialExecutor
    from synth.lowering.lift import lift as lift
    from synth.lowering.lower import lower as lower
    from synth.lowering.options import LoweringOptions as LoweringOptions
    from synth.method import Options as Options
    from synth.methods import synthesize as synthesize
    from synth.schedule.traffic import traffic_of as traffic_of
    from synth.simulation.network_model import NetworkModel as NetworkModel
    from synth.simulation.simulate import simulate as simulate
    from synth.topology.networkx_graph import from_networkx as from_networkx
    from synth.topology.networkx_graph import to_networkx as to_networkx
    from synth.topology.spec import parse_topology as parse_topology
    from synth.topology.topology import Topology as Topology

_HOMES = {
    "ChoraleError": "synth.errors",
    "Collective": "synth.collective",
    "LoweringOptions": "synth.lowering.options",
    "Options": "synth.method",
    "NetworkModel": "synth.simulation.network_model",
    "ProcessExecutor": "synth.executor.processes",
    "SerialExecutor": "synth.executor.serial",
    "Topology": "synth.topology.topology",
    "from_networkx": "synth.topology.networkx_graph",
    "lift": "synth.lowering.lift",
    "lower": "synth.lowering.lower",
    "lower_bound": "synth.bound.bound",
    "parse_collective": "synth.collective",
    "parse_topology": "synth.topology.spec",
    "simulate": "synth.simulation.simulate",
    "synthesize": "synth.methods",
    "to_networkx": "synth.topology.networkx_graph",
    "traffic_of": "synth.schedule.traffic",
}

__all__ = list(_HOMES)  # names, found on first use
__getattr__ = lazy_names(__name__, _HOMES)
