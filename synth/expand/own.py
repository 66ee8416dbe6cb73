"""The allgather of a base: its own from the database, the mirror image of that, or BFB."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from chorale.synth.bases.database import load_bases
from chorale.synth.bases.schedule import base_schedule, transposed_base_schedule
from chorale.synth.bfb.bfb import bfb_allgather
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.expand.mirror import reverse_symmetry
from chorale.synth.schedule.renamed import renamed_schedule
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose

Origin = Literal["own", "mirrored", "bfb"]


def base_allgather(topology: Topology, executor: Executor, progress: Progress | None) -> Schedule:
    """Return the allgather of a base: `parameters` say which base, and by what method its schedule was made.

    "own" where the database stores one for this network, whatever its spec; "mirrored" where it stores one for the
    transpose only and the network is reverse-symmetric (found by search, up to 64 nodes), so that the same schedule
    runs under other names of the nodes; else "bfb".
    """
    schedule = stored_allgather(topology)
    if schedule is not None:
        return _told(schedule, topology, "own")
    mirrored = transpose(topology)
    schedule = stored_allgather(mirrored)
    image = None if schedule is None else reverse_symmetry(mirrored)
    if schedule is None or image is None:
        return _told(bfb_allgather(topology, executor, None, progress), topology, "bfb")
    return _told(renamed_schedule(schedule, image, topology), topology, "mirrored")


def stored_allgather(topology: Topology) -> Schedule | None:
    """Return the allgather that the database stores for exactly this network, a base or its transpose; else None."""
    for name, entry in load_bases().items():
        if not entry.has_stored_schedule or not entry.nodes == topology.compute_count == topology.node_count:
            continue
        base = base_topology(entry, f"base:{name}")
        if base.id == topology.id:
            return base_schedule(name, topology)
        if entry.transposed_schedule is not None and transpose(base).id == topology.id:
            return transposed_base_schedule(name, topology)
    return None


def _told(schedule: Schedule, topology: Topology, origin: Origin) -> Schedule:
    parameters = {"base": topology.spec, "base_method": origin}
    return replace(schedule, method="expand", parameters=parameters, certificate={})
