"""What a controller orders from its workshop: recipes of candidates, and requests with the baselines in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from runners.api import RunRequest, Settings, library_result
from runners.preparation import Prepared, Recipe
from runners.race import Race
from synth.collective import parse_collective
from synth.lowering.program import Program
from synth.method import Options
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.dialect import Dialect, dialect_for
from tuner.campaigns.records import Candidate, CompleteTrial

BASELINE = "baseline:"
LIBRARY = library_result("")


@dataclass(frozen=True, slots=True)
class Orders:
    """Writes the orders of one launch. `baselines`: key of the order -> what every measurement has beside its own."""

    campaign: Campaign
    topology: Topology
    baselines: dict[str, Prepared] = field(default_factory=dict)

    @property
    def dialect(self) -> Dialect:
        """That of all programs of the launch."""
        return dialect_for(self.campaign.runner)

    def baseline_recipes(self) -> dict[str, Recipe]:
        """Return the recipe of every baseline by the key of its order."""
        methods = [name for name in self.campaign.baselines if not name.startswith(LIBRARY)]
        return {BASELINE + method: self.recipe(Candidate(method)) for method in methods}

    def recipe(self, candidate: Candidate) -> Recipe:
        """Return how to make a candidate. InvalidInput if a parameter is beyond a limit."""
        options = self.dialect.options(candidate)
        collective = parse_collective(self.campaign.collective)
        wanted = Options(chunks=candidate.chunks, k=candidate.k)
        return Recipe(self.topology, collective, candidate.method, wanted, options, candidate.depth)

    def race(self, name: str, measured: Iterable[CompleteTrial]) -> Race | None:
        """Return the race of the trial called `name` against those measured; None without any or unless asked for."""
        speedups = [[size.speedup for size in trial.sizes] for trial in measured]
        if self.campaign.pruner != "racing" or not speedups:
            return None
        ratios = tuple(1 / max(1.0, *column) for column in zip(*speedups, strict=True))
        return Race(name, self._references, ratios, self.campaign.first_repeats)

    @property
    def _references(self) -> tuple[str, ...]:
        return tuple(name if name.startswith(LIBRARY) else BASELINE + name for name in self.campaign.baselines)

    def request(
        self, candidates: Mapping[str, tuple[Candidate, Program]], number: int, race: Race | None = None
    ) -> RunRequest:
        """Return the measurement of `candidates` beside the baselines; `number` makes the order of programs new."""
        beside = {name: baseline.program for name, baseline in self.baselines.items()}
        return RunRequest(
            topology=self.topology,
            programs={**{name: program for name, (_, program) in candidates.items()}, **beside},
            sizes_bytes=tuple(self.campaign.sizes),
            repeats=self.campaign.repeats,
            timeout_s=self.campaign.runner.timeout_s,
            seed=self.campaign.seed + number,
            race=race,
            products=self.campaign.overlap.products,
            library=tuple(name.removeprefix(LIBRARY) for name in self.campaign.baselines if name.startswith(LIBRARY)),
            settings={
                name: Settings(candidate.k, candidate.instances, candidate.buffer_bytes)
                for name, (candidate, _) in candidates.items()
            },
        )
