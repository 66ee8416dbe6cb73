"""The allgather of a base graph: stored in the database, its mirror image, or made by BFB."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.schedule.transforms import renamed_schedule
from chorale.synth.topology.bases.database import StoredSends, base_entry, load_bases
from chorale.synth.topology.families.bases import base_topology
from chorale.synth.topology.symmetry_search import isomorphism
from chorale.synth.topology.topology import Topology, transpose


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
    base = base_topology(entry, f"base:{name}")
    _require_same(topology, base, f"that of the base {name}")
    return _allgather(name, entry.schedule, topology or base)


def transposed_base_schedule(name: str, topology: Topology | None = None) -> Schedule:
    """Return the allgather that the database stores for the transpose of the base `name`, on `topology` or on that.

    Only bases with a schedule of their own that are not reverse-symmetric have one; on the others, theirs runs under
    other names of the nodes. Nothing is verified here. Raises InvalidInput as `base_schedule` does.
    """
    entry = base_entry(name)
    if entry.transposed_schedule is None:
        rule = "a base must have a schedule stored for its transpose"
        raise InvalidInput(
            rule, f"{name}, which has none", "use the method expand, which makes one from the stored schedule or by bfb"
        )
    base = transpose(base_topology(entry, f"base:{name}"))
    _require_same(topology, base, f"the transpose of the base {name}")
    return _allgather(name, entry.transposed_schedule, topology or base)


def _require_same(topology: Topology | None, base: Topology, what: str) -> None:
    if topology is not None and topology.id != base.id:
        raise InvalidInput(f"the topology must be {what}", topology.spec, f"use {base.spec}")


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


Origin = Literal["own", "mirrored", "bfb"]


def base_allgather(topology: Topology, executor: Executor, progress: Progress | None) -> Schedule:
    """Return the allgather of a base: `parameters` say which base, and by what method its schedule was made.

    "own" where the database stores one for this network, whatever its spec; "mirrored" where it stores one for the
    transpose only and the network is reverse-symmetric (found by search), so that the same schedule
    runs under other names of the nodes; else "bfb".
    """
    schedule = stored_allgather(topology)
    if schedule is not None:
        return _with_origin(schedule, topology, "own")
    mirrored = transpose(topology)
    schedule = stored_allgather(mirrored)
    image = None if schedule is None else isomorphism(mirrored, topology)
    if schedule is None or image is None:
        return _with_origin(bfb_allgather(topology, executor, None, progress), topology, "bfb")
    return _with_origin(renamed_schedule(schedule, image, topology), topology, "mirrored")


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


def _with_origin(schedule: Schedule, topology: Topology, origin: Origin) -> Schedule:
    parameters = {"base": topology.spec, "base_method": origin}
    return replace(schedule, method="expand", parameters=parameters, certificate={})
