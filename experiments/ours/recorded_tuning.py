"""Tuning replayed on recorded measurements: a search proposes candidates, and the record gives their times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from chorale.runners.recorded.table import RecordedConfiguration, RecordedTable, mi250_table
from chorale.tuner.config.values import Value
from chorale.tuner.search.search import Search, SearchPlan
from chorale.tuner.search.space import SearchSpace
from chorale.tuner.search.storage import storage_in_memory
from chorale.tuner.trials.records import Candidate, CompleteTrial, SizeResult
from chorale.tuner.trials.tuning_table import MIN_SPEEDUP

Floats = NDArray[np.float64]

REPEATS = 5
LARGEST_BYTES = 2**30  # beyond, half of the configurations were not measured
_PARAMETERS = ("method", "k", "chunks", "instances", "buffer_bytes")
_MATTERS = {"ForestColl": ("k", "instances", "buffer_bytes"), "TACCL": ("chunks", "instances", "buffer_bytes")}
_TACCL_CHUNKS, _TACCL_INSTANCES = re.compile(r"\.chunks([0-9]+)-"), re.compile(r"_i([0-9]+)_")
LIBRARY = "library"


class ReplayTask(Protocol):
    """What a search can be replayed on: measurements of every point of a space, and of the library."""

    @property
    def candidates(self) -> tuple[Candidate, ...]: ...

    @property
    def sizes_bytes(self) -> tuple[int, ...]: ...

    @property
    def times_s(self) -> Floats:
        """True times, (candidates, sizes)."""
        ...

    @property
    def library_s(self) -> Floats:
        """True times of the library at each size."""
        ...

    def space(self, seed: int) -> SearchSpace: ...

    def measured_s(self, seed: int) -> tuple[list[Floats], Floats]:
        """Return drawn repetitions of every candidate (sizes, repeats) and of the library, the same for a seed."""
        ...


@dataclass(frozen=True)
class RecordedTask:
    """All configurations of a collective on a fabric that were measured at all `sizes_bytes`, and the library's times.

    sizes_bytes: those at which every configuration really ran its schedule
    times_s:     recorded (configurations, sizes); `library_s` (sizes)
    """

    fabric: str
    collective: str
    configurations: tuple[RecordedConfiguration, ...]
    library: RecordedConfiguration
    sizes_bytes: tuple[int, ...]
    table: RecordedTable

    @staticmethod
    def of(fabric: str, collective: str) -> RecordedTask:
        """Return the task of the shipped record, everything in place."""
        table = mi250_table()
        [library] = [one for one in table.libraries(fabric, collective) if one.in_place]
        made = [one for one in table.configurations(fabric, collective) if one.in_place]
        ran = [
            size
            for size in table.sizes_bytes(library)
            if size <= LARGEST_BYTES and not any(table.fell_back(one, size) for one in made)
        ]
        whole = [one for one in made if set(ran) <= set(table.sizes_bytes(one))]
        return RecordedTask(fabric, collective, tuple(whole), library, tuple(ran), table)

    @property
    def name(self) -> str:
        return f"{self.collective} {self.fabric.removeprefix('mi250_')}"

    @cached_property
    def _drawn(self) -> dict[int, tuple[list[Floats], Floats]]:
        return {}

    @cached_property
    def times_s(self) -> Floats:
        return np.array([self._recorded_s(one) for one in self.configurations])

    @cached_property
    def library_s(self) -> Floats:
        return np.array(self._recorded_s(self.library))

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """The configurations as points of a search space."""
        return tuple(map(_candidate, self.configurations))

    def space(self, seed: int) -> SearchSpace:
        """Return the search space, the values of each parameter in random order: nobody knows what to prefer."""
        random = np.random.default_rng(seed)
        found = [one.parameters for one in self.candidates]
        columns = {name: list(dict.fromkeys(one[name] for one in found)) for name in _PARAMETERS}
        dimensions: dict[str, tuple[Value, ...]] = {
            name: tuple(values[place] for place in random.permutation(len(values))) for name, values in columns.items()
        }
        return SearchSpace(dimensions, _RecordedConstraints(frozenset(self.candidates)))

    def measured_s(self, seed: int) -> tuple[list[Floats], Floats]:
        """Return drawn repetitions of every configuration (sizes, repeats) and of the library; drawn once per seed."""
        if seed not in self._drawn:
            draws = [self._drawn_s(one, seed) for one in self.configurations]
            self._drawn[seed] = draws, self._drawn_s(self.library, seed)
        return self._drawn[seed]

    def _recorded_s(self, configuration: RecordedConfiguration) -> list[float]:
        return [min(self.table.times_s(configuration, size)) for size in self.sizes_bytes]

    def _drawn_s(self, configuration: RecordedConfiguration, seed: int) -> Floats:
        return np.array([self.table.draw_s(configuration, size, REPEATS, seed) for size in self.sizes_bytes])


@dataclass(frozen=True, slots=True)
class _RecordedConstraints:
    """What a search over the record knows beforehand: what was recorded."""

    candidates: frozenset[Candidate]

    def matters(self, parameter: str, method: str) -> bool:
        return parameter in _MATTERS[method]

    def reason_not_to_try(self, candidate: Candidate) -> str | None:
        return None if candidate in self.candidates else "it was not recorded"


def replay_search(
    task: ReplayTask, strategy: str, seed: int, max_trials: int, start_candidates: Sequence[Candidate] = ()
) -> Floats:
    """Return the true time of the choice over the best one's after each of `max_trials` trials, (trials, sizes).

    The choice at a size is what measured fastest, or the library where nothing clearly beats it. `start_candidates` are
    tried first.
    """
    draws, library = task.measured_s(seed)
    number = {candidate: place for place, candidate in enumerate(task.candidates)}
    plan = SearchPlan(
        task.space(seed), "recorded", strategy, seed, lambda one: one.id, task.sizes_bytes, starts=start_candidates
    )
    search = Search(plan, storage_in_memory())
    history: list[Floats] = []
    best, answer = np.median(library, axis=1) / MIN_SPEEDUP, task.library_s
    while len(history) < max_trials and (suggestion := search.ask()) is not None:
        place = number[suggestion.candidate]
        search.tell(suggestion.ticket, _record(task, suggestion.candidate, draws[place], library))
        own = np.median(draws[place], axis=1)
        answer = np.where(own < best, task.times_s[place], answer)
        best = np.minimum(own, best)
        history.append(answer)
    return np.asarray(np.array(history) / np.minimum(task.times_s.min(axis=0), task.library_s))


def _record(task: ReplayTask, candidate: Candidate, times_s: Floats, library_s: Floats) -> CompleteTrial:
    sizes = tuple(
        SizeResult(size, size, tuple(own), {LIBRARY: tuple(library)})
        for size, own, library in zip(task.sizes_bytes, times_s, library_s, strict=True)
    )
    return CompleteTrial(candidate.id, 0, candidate, 0.0, 0.0, "", candidate.id, sizes)


def _candidate(configuration: RecordedConfiguration) -> Candidate:
    origin, buffer_bytes = configuration.origin, configuration.buffer_bytes
    if origin.generator == "ForestColl":
        return Candidate("ForestColl", k=origin.k, instances=origin.instances or 1, buffer_bytes=buffer_bytes)
    chunks, instances = _TACCL_CHUNKS.search(origin.schedule), _TACCL_INSTANCES.search(origin.schedule)
    return Candidate(
        "TACCL",
        chunks=int(chunks[1]) if chunks else 1,
        instances=int(instances[1]) if instances else 1,
        buffer_bytes=buffer_bytes,
    )
