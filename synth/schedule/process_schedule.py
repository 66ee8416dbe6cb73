"""Schedules of processes: one for each rank, then one for each switch that acts."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class ProcessSchedule(Schedule):
    """A schedule on a network in which switches that act are compute nodes after the ranks. Only for lowering.

    rank_count: the first compute nodes, those with data of their own; the vector has as many shards
    switches:   the nodes of the others in the network of the original schedule
    """

    rank_count: int = 0
    switches: tuple[int, ...] = ()

    @property
    def shard_count(self) -> int:
        return self.rank_count
