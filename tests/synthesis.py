"""Schedules by the name of a method, in this process."""

from typing import Any

from chorale.synth.collective import ALLGATHER, Collective, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule


def synthesized(
    method: str, topology: Topology | str, collective: Collective | str = ALLGATHER, **options: Any
) -> VerifiedSchedule:
    """Return the verified schedule of `method` for a topology or its spec; `options` as `Options` has them."""
    network = parse_topology(topology) if isinstance(topology, str) else topology
    wanted = parse_collective(collective) if isinstance(collective, str) else collective
    return synthesize(method, network, wanted, Options(**options), SerialExecutor())
