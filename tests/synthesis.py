"""Schedules by the name of a method or of a collective, in this process."""

from typing import Any

from chorale.synth.collective import ALLGATHER, Collective, CollectiveName, parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify


def synthesized(
    method: str, topology: Topology | str, collective: Collective | str = ALLGATHER, **options: Any
) -> VerifiedSchedule:
    """Return the verified schedule of `method` for a topology or its spec; `options` as `Options` has them."""
    network = parse_topology(topology) if isinstance(topology, str) else topology
    wanted = parse_collective(collective) if isinstance(collective, str) else collective
    return synthesize(method, network, wanted, Options(**options), SerialExecutor())


def schedule_for(name: CollectiveName, topology: Topology) -> VerifiedSchedule:
    """Return a schedule of a standard collective by a method that suits it; rank 1 is the root where there is one."""
    if name is CollectiveName.ALLTOALL:
        return verify(alltoall_schedule(topology))
    if name in (CollectiveName.BROADCAST, CollectiveName.REDUCE):
        return verify(double_binary_tree(topology, Collective(name, 1)).schedule(6))
    return synthesized("bfb", topology, Collective(name))
