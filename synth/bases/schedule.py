"""The stored schedules of base graphs that BFB does not serve best."""

from __future__ import annotations

import numpy as np

from synth.bases.database import get
from synth.collective import ALLGATHER
from synth.errors import InvalidInput
from synth.schedule.routes import Routes
from synth.schedule.schedule import Schedule
from synth.schedule.transfers import ColumnBounds
from synth.topology.families.bases import base_topology
from synth.topology.topology import Topology


def base_schedule(name: str, topology: Topology | None = None) -> Schedule:
    """Return the allgather that the database stores for the base `name`, on `topology` or on base:NAME.

    `topology` is for a network of another spec, such as diamond; it must be the same as that of the base. Nothing is
    verified here. Raises InvalidInput for an unknown base, one without a schedule of its own, and another network.
    """
    entry = get(name)
    if entry.schedule is None:
        rule = "a base must have a schedule of its own to be expanded"
        raise InvalidInput(
            rule, f"{name}, which has none", f"use the method bfb, which reaches {entry.claim.steps} steps"
        )
    own = base_topology(entry, f"base:{name}")
    if topology is not None and topology.id != own.id:
        raise InvalidInput(f"the topology must be that of the base {name}", topology.spec, f"use base:{name}")
    chosen = own if topology is None else topology
    columns = np.array(entry.schedule.rows, dtype=np.int64).T
    steps = int(columns[0].max()) + 1
    bounds = ColumnBounds(steps, len(chosen.links), chosen.compute_count, entry.schedule.chunks_per_shard)
    return Schedule(
        topology=chosen,
        collective=ALLGATHER,
        kind="stepped",
        steps=steps,
        chunks_per_shard=entry.schedule.chunks_per_shard,
        transfers=bounds.pack((*columns, np.zeros(columns.shape[1], dtype=np.int64))),
        routes=Routes.direct(len(chosen.links)),
        method="expand",
        parameters={"base": name},
    )
