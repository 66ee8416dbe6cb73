"""The stored schedules of base graphs that BFB does not serve best."""

from __future__ import annotations

import numpy as np

from chorale.synth.bases.database import base_entry
from chorale.synth.bases.entry import StoredSends
from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.transfers import ColumnBounds
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose


def base_schedule(name: str, topology: Topology | None = None) -> Schedule:
    """Return the allgather that the database stores for the base `name`, on `topology` or on base:NAME.

    `topology` is for a network of another spec, such as diamond; it must be the same as that of the base. Nothing is
    verified here. Raises InvalidInput for an unknown base, one without a schedule of its own, and another network.
    """
    entry = base_entry(name)
    if entry.schedule is None:
        rule = "a base must have a schedule of its own to be expanded"
        raise InvalidInput(
            rule, f"{name}, which has none", f"use the method bfb, which reaches {entry.claim.steps} steps"
        )
    own = base_topology(entry, f"base:{name}")
    _require_same(topology, own, f"that of the base {name}")
    return _allgather(name, entry.schedule, topology or own)


def transposed_base_schedule(name: str, topology: Topology | None = None) -> Schedule:
    """Return the allgather that the database stores for the transpose of the base `name`, on `topology` or on that.

    Only bases with a schedule of their own that are not reverse-symmetric have one; on the others, theirs runs under
    other names of the nodes. Nothing is verified here. Raises InvalidInput as `base_schedule` does.
    """
    entry = base_entry(name)
    if entry.transposed_schedule is None:
        rule = "a base must have a schedule stored for its transpose"
        raise InvalidInput(rule, f"{name}, which has none", "use the method expand, which knows what to do instead")
    own = transpose(base_topology(entry, f"base:{name}"))
    _require_same(topology, own, f"the transpose of the base {name}")
    return _allgather(name, entry.transposed_schedule, topology or own)


def _require_same(topology: Topology | None, own: Topology, what: str) -> None:
    if topology is not None and topology.id != own.id:
        raise InvalidInput(f"the topology must be {what}", topology.spec, f"use {own.spec}")


def _allgather(name: str, sends: StoredSends, topology: Topology) -> Schedule:
    columns = np.array(sends.rows, dtype=np.int64).T
    steps = int(columns[0].max()) + 1
    bounds = ColumnBounds(steps, len(topology.links), topology.compute_count, sends.chunks_per_shard)
    return Schedule(
        topology=topology,
        collective=ALLGATHER,
        kind="stepped",
        steps=steps,
        chunks_per_shard=sends.chunks_per_shard,
        transfers=bounds.pack((*columns, np.zeros(columns.shape[1], dtype=np.int64))),
        routes=Routes.direct(len(topology.links)),
        method="expand",
        parameters={"base": name},
    )
