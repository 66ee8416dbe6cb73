"""Several packings of one network side by side, of which the best is taken."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.forest.network import ForestNetwork
from chorale.synth.forest.objective import Objective, objective_key
from chorale.synth.forest.packing import pack_trees
from chorale.synth.forest.trees import Trees
from chorale.synth.topology.transversal import Transversal

MAX_SEEDS = 10_000


@dataclass(frozen=True, slots=True, eq=False)
class Portfolio:
    """A packing problem, the same for every seed."""

    network: ForestNetwork
    objective: Objective
    transversal: Transversal | None
    first: Trees | None

    def best(self, seeds: range, executor: Executor, progress: Progress | None = None) -> Trees:
        """Return the packing that suits the objective best, the first of equals; one task of `executor` per seed."""
        if not 1 <= len(seeds) <= MAX_SEEDS:
            raise InvalidInput(f"there must be 1 to {MAX_SEEDS} seeds", len(seeds), "choose another --seeds")
        packings = executor.map(_pack, seeds, self, progress)
        return min(packings, key=lambda trees: objective_key(self.network, trees, self.objective))


def _pack(portfolio: Portfolio, seed: int) -> Trees:
    return pack_trees(portfolio.network, portfolio.objective, seed, portfolio.transversal, portfolio.first)
