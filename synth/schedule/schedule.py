"""A schedule: who sends which part of which shard to whom, over which links, when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.identity import content_id
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.transfers import ColumnBounds, Transfers
from chorale.synth.topology.topology import Topology

Kind = Literal["stepped", "pipelined"]
Form = Literal["columns", "symmetric"]
Parameter = str | int | bool | None
MAX_EXPANDED_ROWS = 2**27


class AnySchedule(Protocol):
    """A schedule in any form: what users of schedules may rely on, whether or not the rows of all ranks exist.

    certificate:    JSON-able claim of the method about its own optimality
    transfer_count: rows of the expanded schedule
    expand:         the same schedule with the rows of all ranks, at most `most_rows` (else InvalidInput); itself where
                    it has them
    """

    @property
    def topology(self) -> Topology: ...
    @property
    def collective(self) -> Collective: ...
    @property
    def form(self) -> Form: ...
    @property
    def kind(self) -> Kind: ...
    @property
    def steps(self) -> int: ...
    @property
    def chunks_per_shard(self) -> int: ...
    @property
    def trees_per_root(self) -> int | None: ...
    @property
    def transfer_count(self) -> int: ...
    @property
    def method(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Parameter]: ...
    @property
    def certificate(self) -> Mapping[str, Any]: ...
    @property
    def id(self) -> str: ...
    def expand(self, most_rows: int = MAX_EXPANDED_ROWS) -> Schedule: ...


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """A collective on a topology as columns of transfers.

    kind:        "stepped": the transfers of a step start from what was there before the step;
                 "pipelined": trees that stream, `steps` is their height
    barriers:    of pipelined schedules: steps, ascending, before which everything earlier has ended. Streams
                 follow one another there, as the two halves of allreduce do, and their heights add up
    steps:       number of steps (or the height)
    method, parameters: how it was made (provenance; not part of `id`)
    certificate: JSON-able claim of the method about its own optimality, checked by separate code
    id:          content id over topology, collective, kind, chunks, routes and all rows

    Nothing here is checked: `chorale.synth.verify.verify` is the only way to a `VerifiedSchedule`.
    """

    topology: Topology
    collective: Collective
    kind: Kind
    steps: int
    chunks_per_shard: int
    transfers: Transfers
    routes: Routes
    method: str
    parameters: Mapping[str, Parameter]
    certificate: Mapping[str, Any] = field(default_factory=dict)
    trees_per_root: int | None = None
    barriers: tuple[int, ...] = ()
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", _schedule_id(self))

    def on(self, topology: Topology) -> Schedule:
        """Return this schedule with `topology`, an equal network of another spec, in place of its own."""
        return replace(self, topology=topology)

    @property
    def form(self) -> Form:
        return "columns"

    @property
    def transfer_count(self) -> int:
        return len(self.transfers)

    def expand(self, most_rows: int = MAX_EXPANDED_ROWS) -> Schedule:
        """Return this schedule: it has the rows of all ranks."""
        return self

    @property
    def shard_count(self) -> int:
        return shard_count(self.topology, self.collective)

    @property
    def bounds(self) -> ColumnBounds:
        """The counts that fix the types of the columns."""
        return ColumnBounds(self.steps, len(self.routes), self.shard_count, self.chunks_per_shard)

    @property
    def src(self) -> NDArray[np.int32]:
        """Sending rank of each transfer. O(rows)."""
        return self.routes.sources(self.topology.links)[self.transfers.route]

    @property
    def dst(self) -> NDArray[np.int32]:
        """Receiving rank of each transfer. O(rows)."""
        return self.routes.destinations(self.topology.links)[self.transfers.route]


def shard_count(topology: Topology, collective: Collective) -> int:
    """Return into how many shards the vector of `collective` is cut: one per rank, per pair for alltoall."""
    ranks = topology.compute_count
    return ranks * ranks if collective.name == "alltoall" else ranks


def _schedule_id(schedule: Schedule) -> str:
    facts: dict[str, Any] = {
        "format": "chorale-schedule/1",
        "topology": schedule.topology.id,
        "collective": schedule.collective.name.value,
        "root": schedule.collective.root,
        "kind": schedule.kind,
        "steps": schedule.steps,
        "chunks_per_shard": schedule.chunks_per_shard,
    }
    if schedule.barriers:
        facts["barriers"] = schedule.barriers
    columns: list[NDArray[Any]] = [schedule.routes.offsets, schedule.routes.link_ids, *schedule.transfers.columns]
    return content_id(facts, columns)
