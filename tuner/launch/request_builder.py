"""Requests to workers: builds of candidates, and measurements of them beside the baselines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from chorale.runners.api.base import LIBRARY, ProgramSettings, Race, RunRequest
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.methods.method import Options
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.adopted import is_adopted
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.launch.adopted_programs import adopted_programs
from chorale.tuner.search.space import LoweringTarget, lowering_target
from chorale.tuner.statistics.controls import Controls, race_ratio
from chorale.tuner.trials.records import Candidate, CompleteTrial


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Makes the requests of one launch.

    baselines: programs by their names in measurements, beside which candidates are measured
    """

    campaign: Campaign
    topology: Topology
    baselines: Mapping[str, AnyProgram] = field(default_factory=dict)

    @property
    def target(self) -> LoweringTarget:
        """What all programs of the launch are lowered to."""
        return lowering_target(self.campaign.runner)

    @property
    def references(self) -> Mapping[str, str]:
        """Name of every baseline in measurements -> its name in the campaign and in records."""
        names = self.campaign.baseline_names
        return {name if name.startswith(LIBRARY) else f"baseline:{name}": name for name in names}

    def build(self, candidate: Candidate) -> BuildRequest:
        """Return the build of a candidate. InvalidInput if a parameter is beyond a limit."""
        collective = parse_collective(self.campaign.collective)
        options = Options(chunks=candidate.chunks, k=candidate.k)
        source = ScheduleRequest(self.topology, collective, candidate.method, options, candidate.depth)
        return BuildRequest(source, self.target.options(candidate))

    def adopted(self, candidate: Candidate) -> BuildResult | None:
        """Return the program of a candidate that is a file, which needs no build; None for all others."""
        if not is_adopted(candidate.method):
            return None
        return adopted_programs(self.campaign, self.topology)[candidate.method]

    def adopted_baselines(self) -> dict[str, AnyProgram]:
        """Return the baselines that are files, by their names in measurements."""
        adopted = {name: self.adopted(Candidate(method)) for name, method in self.references.items()}
        return {name: result.program for name, result in adopted.items() if result is not None}

    def baseline_builds(self) -> dict[str, BuildRequest]:
        """Return the builds of all baselines but files and the library's own, by their names in measurements."""
        return {
            name: self.build(Candidate(method))
            for name, method in self.references.items()
            if not method.startswith(LIBRARY) and not is_adopted(method)
        }

    def race(self, name: str, measured: Iterable[CompleteTrial], controls: Controls) -> Race | None:
        """Return the race of trial `name` against the measured ones; None without any, or without racing."""
        speedups = [[size.speedup for size in trial.sizes] for trial in measured]
        if self.campaign.pruner != "racing" or not speedups:
            return None
        ratios = tuple(1 / max(1.0, *column) for column in zip(*speedups, strict=True))
        fastest = zip(*([np.median(times) for times in sizes] for sizes in controls.times_s.values()), strict=True)
        reference_s = tuple(float(min(column)) for column in fastest)
        margin = race_ratio(controls.deviation) - 1
        return Race(name, tuple(self.references), ratios, self.campaign.first_repeats, margin, reference_s)

    def run(
        self,
        candidates: Mapping[str, tuple[Candidate, AnyProgram]],
        number: int,
        race: Race | None = None,
        *,
        beside: bool = True,
    ) -> RunRequest:
        """Return the measurement of `candidates`; `number` shifts the seed of the order.

        beside: whether the baselines run too
        """
        baselines = self.baselines if beside else {}
        library = [name.removeprefix(LIBRARY) for name in self.campaign.baselines if name.startswith(LIBRARY)]
        return RunRequest(
            topology=self.topology,
            programs={**{name: program for name, (_, program) in candidates.items()}, **baselines},
            sizes_bytes=tuple(self.campaign.sizes),
            repeats=self.campaign.repeats,
            timeout_s=self.campaign.runner.timeout_s,
            seed=self.campaign.seed + number,
            race=race,
            matrix_products=self.campaign.overlap.products,
            library=tuple(library) if beside else (),
            settings={
                name: ProgramSettings(candidate.k, candidate.instances, candidate.buffer_bytes)
                for name, (candidate, _) in candidates.items()
            },
        )
