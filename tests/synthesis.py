"""Schedules by the name of a method or of a collective, in this process."""

from fractions import Fraction

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.closed_forms import double_binary_tree
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.simulate import NetworkModel, congestion_of
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify


def schedule_for(name: CollectiveName, topology: Topology) -> VerifiedSchedule:
    """Return a schedule of a standard collective by a method that suits it; rank 1 is the root where there is one."""
    if name is CollectiveName.ALLTOALL:
        return verify(alltoall_schedule(topology))
    if name in (CollectiveName.BROADCAST, CollectiveName.REDUCE):
        return verify(double_binary_tree(topology, Collective(name, 1)).schedule(6))
    return synthesized("bfb", topology, Collective(name))


def predicted_s(verified: VerifiedSchedule, size_bytes: int) -> Fraction:
    """Return the seconds that the simulator's model predicts with the topology's own latencies."""
    streams = traffic_of(verified.schedule).streams()
    return sum((congestion_of(stream).seconds(NetworkModel(), size_bytes) for stream in streams), Fraction(0))
