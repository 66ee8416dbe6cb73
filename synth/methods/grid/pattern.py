"""From subcollectives on a grid to a schedule, or to its traffic where the schedule would be too large to write out."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.distinct import distinct
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.methods.grid.routing import PairRoutes, pair_routes
from chorale.synth.methods.grid.steps import Step, SubCollective
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Kind, Parameter, Schedule
from chorale.synth.topology.topology import Topology

if TYPE_CHECKING:
    from chorale.synth.schedule.traffic import Traffic, TrafficStep


@dataclass(frozen=True)
class CollectivePattern:
    """A collective on `topology` whose `subcollectives` run side by side, each on an equal part of every shard.

    Both `schedule` and `traffic` come from the same subcollectives and routes; the second never names shards and
    takes O(messages). Steps in which none sends are left out.
    """

    topology: Topology
    collective: Collective
    method: str
    parameters: Mapping[str, Parameter]
    subcollectives: tuple[SubCollective, ...]
    kind: Kind = "stepped"

    def schedule(self, chunks: int | None = None) -> Schedule:
        """Return the schedule with `chunks` chunks per shard, by default the fewest that give all equal parts.

        Raises InvalidInput where there would be more than 2^27 transfers. O(transfers log messages).
        """
        chunk_count = self._parts if chunks is None else chunks
        if chunk_count < 1:
            raise InvalidInput("chunks per shard must be at least 1", chunks, "choose a larger number")
        self._check_size()
        ranks = self.topology.compute_count
        bounds = ColumnBounds(len(self._steps), len(self._pairs.routes), ranks, chunk_count)
        columns = [
            bounds.pack(columns).columns
            for number, step in enumerate(self._steps)
            for columns in self._rows(number, step, chunk_count)
        ]
        transfers = bounds.pack([np.concatenate(parts) for parts in zip(*columns, strict=True)])
        parameters = {**self.parameters, "chunks": chunks}
        return Schedule(
            self.topology, self.collective, self.kind, len(self._steps), chunk_count, transfers, self._pairs.routes,
            self.method, parameters,
        )  # fmt: skip

    def traffic(self) -> Traffic:
        """Return what the schedule with its default chunks sends. Equal steps are one object. O(messages)."""
        from chorale.synth.schedule.traffic import Traffic  # noqa: PLC0415 (only who simulates waits for it)

        by_signature: dict[tuple[Hashable, ...], TrafficStep] = {}
        steps = []
        for step in self._steps:
            signature = self._signature(step)
            if signature not in by_signature:
                by_signature[signature] = self._traffic_step(step)
            steps.append(by_signature[signature])
        denominator = self.topology.compute_count * self._parts
        return Traffic(self.topology, self.collective, self.kind, tuple(steps), denominator, self._pairs.routes)

    @property
    def step_count(self) -> int:
        """The steps of the schedule. O(messages)."""
        return len(self._steps)

    @property
    def denominator(self) -> int:
        """An amount a in `messages` is a / denominator of the vector."""
        return self.topology.compute_count * len(self.subcollectives) * self._pieces

    def messages(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield for each step who sends, to whom and how much, as a multiple of 1 / `denominator`. O(messages)."""
        for step in self._steps:
            columns: list[tuple[NDArray[np.int64], ...]] = []
            for part in self._at(step):
                src, dst, shards = part.messages()
                columns.append((src, dst, shards * (self._pieces // part.pieces)))
            src, dst, amount = map(np.concatenate, zip(*columns, strict=True))
            yield src, dst, amount

    @cached_property
    def _steps(self) -> list[int]:
        """The steps in which any subcollective sends."""
        count = max(map(len, self.subcollectives))
        return [step for step in range(count) if any(len(part.messages()[0]) for part in self._at(step))]

    @cached_property
    def _pairs(self) -> PairRoutes:
        ranks = self.topology.compute_count
        keys: list[NDArray[np.int64]] = []
        signatures = set()
        for step in self._steps:
            if (signature := self._signature(step)) in signatures:
                continue
            signatures.add(signature)
            for part in self._at(step):
                src, dst, _ = part.messages()
                keys.append(src * ranks + dst)
        return pair_routes(self.topology, grid_shape(self.topology), distinct(np.concatenate(keys)))

    @cached_property
    def _parts(self) -> int:
        return len(self.subcollectives) * self._units

    @cached_property
    def _units(self) -> int:
        """The number of equal units of the data of a subcollective: pieces, and halves of them where messages split."""
        return self._pieces * (2 if self._pairs.splits else 1)

    @cached_property
    def _pieces(self) -> int:
        return lcm(*{part.pieces for step in self._steps for part in self._at(step)})

    def _at(self, step: int) -> Iterator[Step]:
        return (part[step] for part in self.subcollectives if step < len(part))

    def _signature(self, step: int) -> tuple[Hashable, ...]:
        return tuple(part[step].signature() if step < len(part) else None for part in self.subcollectives)

    def _traffic_step(self, step: int) -> TrafficStep:
        from chorale.synth.schedule.traffic import merged_step  # noqa: PLC0415 (as above)

        routes, amounts = [], []
        for part in self._at(step):
            src, dst, shards = part.messages()
            first, second = self._pairs.find(src, dst)
            amount = shards * (self._units // part.pieces)
            two = second >= 0
            routes += [first, second[two]]
            amounts += [np.where(two, amount // 2, amount), amount[two] // 2]
        return merged_step(np.concatenate(routes), np.concatenate(amounts))

    def _rows(self, number: int, step: int, chunks: int) -> Iterator[list[NDArray[np.int64]]]:
        """Yield columns of rows of `step`, which is the `number`-th in which any subcollective sends."""
        for index, steps in enumerate(self.subcollectives):
            if step >= len(steps):
                continue
            part = steps[step]
            pieces, position = len(self.subcollectives) * part.pieces, index * part.pieces + part.piece
            lo, hi = chunks * position // pieces, chunks * (position + 1) // pieces
            if lo == hi:
                continue
            src, dst, shard = part.sends()
            first, second = self._pairs.find(src, dst)
            middle = np.where(second >= 0, (lo + hi) // 2, hi)
            for route, start, end in (
                (first, np.full_like(middle, lo), middle),
                (second, middle, np.full_like(middle, hi)),
            ):
                used = start < end
                same = np.ones(int(used.sum()), dtype=np.int64)
                yield [number * same, route[used], shard[used], start[used], end[used], part.reduces * same]

    def _check_size(self) -> None:
        transfers = sum(int(part.messages()[2].sum()) for step in self._steps for part in self._at(step))
        if transfers > MAX_TRANSFERS:
            rule = f"a schedule of {self.method} holds at most {MAX_TRANSFERS} transfers"
            raise InvalidInput(rule, f"{transfers} for {self.topology.spec}", "use fewer nodes, or simulate the method")
