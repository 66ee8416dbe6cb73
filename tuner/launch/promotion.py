"""The promotion gate: the best program of a size class gets the alias (champion) if it is correct at a size that was
not tuned, and faster than the version that has the alias.

A baseline that nothing beats also goes through the gate, so that a champion that is now slower loses the alias.
"""

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chorale.runners.api.base import (
    FailureKind,
    Outcome,
    RunFailure,
    SizeMeasurement,
    Workers,
    completions,
    library_result,
)
from chorale.runners.api.config import TimeSource
from chorale.runners.api.registry import is_simulated
from chorale.runners.api.units import format_size
from chorale.runners.measurement.precision import ratio_interval
from chorale.synth.build.build import build_program
from chorale.synth.build.request import BuildFailure, BuildResult
from chorale.synth.errors import CheckFailed, ChoraleError
from chorale.synth.programs.program import AnyProgram
from chorale.synth.targets.lift import lift_code
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.launch.loop import RequestBuilder
from chorale.tuner.search.space import can_execute, is_native, lowered_as
from chorale.tuner.tracking import registry
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.tracking.registry import ROLLED_BACK, BestProgram, PromotionVerdict, StoredProgram
from chorale.tuner.trials.records import Candidate, candidate_codec
from chorale.tuner.trials.store import Store
from chorale.tuner.trials.tuning_table import SizeClass

_log = logging.getLogger("chorale.promotion")

REPEATS = 9
"""Minimum number of repetitions for which the 95 % interval of the median excludes both extremes: 1 - 20 / 2^9."""

CHALLENGER, CHAMPION, BESIDE = "challenger", "champion", "beside"
BROKEN = (FailureKind.CRASH, FailureKind.TIMEOUT, FailureKind.WRONG_RESULT)
"""Failures caused by the program itself. Other failures may have other causes."""

Rival = tuple[Candidate, AnyProgram] | str
"""A program, or the name of one of the library's own algorithms."""

Rivals = Mapping[str, Rival]


def with_built_baselines(
    campaign: Campaign, topology: Topology, store: Store, workers: Workers, best: Sequence[BestProgram]
) -> list[BestProgram]:
    """Return `best` with the programs of the winning baselines filled in. They are built and saved in the store.

    Baselines that cannot be built and library algorithms have no program.
    """
    requests = RequestBuilder(campaign, topology)
    candidates = {item.baseline: Candidate(item.baseline) for item in best if item.baseline and item.library is None}
    results: dict[str, BuildResult | BuildFailure | None]
    results = {name: requests.adopted(each) for name, each in candidates.items()}
    missing = {name: candidates[name] for name, result in results.items() if result is None}
    futures = [workers.build(requests.build(candidate)) for candidate in missing.values()]
    results |= {name: done.value for name, done in zip(missing, completions(workers, futures), strict=True)}
    stored: dict[str | None, StoredProgram] = {}
    for method, candidate in candidates.items():
        built = results[method]
        if isinstance(built, BuildResult):
            store.keep(built.schedule_id, built.schedule, built.program_id, built.program_text)
            stored[method] = StoredProgram(candidate, built.schedule_id, built.program_id)
    return [replace(item, stored=stored.get(item.baseline, item.stored)) for item in best]


def judge(
    campaign: Campaign, topology: Topology, store: Store, workers: Workers, home: Home, best: Sequence[BestProgram]
) -> dict[SizeClass, PromotionVerdict]:
    """Return the verdict on each best program, after measuring on the campaign's runners.

    If MLflow cannot be reached, nothing is compared; a program is promoted only if no registered version has the alias.
    """
    try:
        mlflow = MlflowStore(campaign.tracking.address(home.mlflow_uri), home.artifacts) if best else None
    except ChoraleError as error:
        _log.warning("no comparison with champions: %s", error)
        mlflow = None
    _log.info("validating winners of %d size classes at unseen sizes and against champions", len(best))
    gate = _Gate(campaign, topology, store, workers, mlflow)
    return {winner.size_class: gate.judge(winner) for winner in best}


@dataclass(frozen=True, slots=True)
class _Gate:
    campaign: Campaign
    topology: Topology
    store: Store
    workers: Workers
    mlflow: MlflowStore | None

    def judge(self, winner: BestProgram) -> PromotionVerdict:
        against = None
        try:
            name, champion, ours = None, None, self.campaign.register_
            if self.mlflow is not None:
                what = self.campaign.collective, self.topology, winner.size_class
                name = registry.model_name(self.mlflow, ours.model, *what)
                champion = self.mlflow.aliased(name, ours.alias)
            against = None if champion is None else champion.version
            identity = registry.identity_tags(self.campaign, winner)
            if champion is not None and registry.is_same(champion.tags, identity):
                return PromotionVerdict(True, "already has the alias", champion.version)
            for version in self.mlflow.versions(name) if self.mlflow and name else []:
                if registry.is_same(version.tags, identity) and ROLLED_BACK in version.tags:
                    return PromotionVerdict(False, "it was rolled back", against)
            return self._measured(winner, champion)
        except (ChoraleError, OSError) as error:
            _log.warning("%s: not promoted: %s", winner.size_class, error)
            return PromotionVerdict(False, f"could not be judged: {error}", against)

    def _measured(self, winner: BestProgram, champion: ModelVersion | None) -> PromotionVerdict:
        against = None if champion is None else champion.version
        if winner.library is not None:
            rival: Rival = winner.library
        elif winner.stored is None:
            raise CheckFailed("the baseline {} cannot be built", winner.baseline, "name other `baselines`")
        else:
            rival = self._program(winner.stored.candidate, winner.stored.program_id)
        challenger = {CHALLENGER: rival}
        fault, passed = self._fault_test(winner, challenger)
        if fault is not None:
            return PromotionVerdict(False, f"fault test: {fault.message}", against)
        if champion is None:
            return PromotionVerdict(True, f"no previous champion; {passed}")
        simulated = is_simulated(self.campaign.runner.kind)
        if simulated != is_simulated(champion.tags.get(registry.RUNNER)):
            reason = "simulated, and the champion was measured" if simulated else "measured, and the champion was not"
            return PromotionVerdict(not simulated, f"{reason}; {passed}", against)
        if (algorithm := champion.tags.get(registry.LIBRARY_ALGORITHM)) is not None:
            return self._compared(winner, {**challenger, CHAMPION: algorithm}, champion, passed)
        assert self.mlflow is not None  # it knows the champion
        files = self.mlflow.download(champion)
        manifest = json.loads(files[registry.MANIFEST_FILE])
        verified = registry.check_registered(files, manifest)
        candidate = candidate_codec.validate_python(manifest["parameters"])
        program, runner = lift_code(files[registry.PROGRAM_FILE]), self.campaign.runner
        if verified is None and not can_execute(runner, program):
            rule, way_out = "the champion from a file does not run on this runner: {}", "choose another `runner`"
            raise CheckFailed(rule, f"{candidate} for {program.target}", way_out)
        if verified is not None and not is_native(runner, program):  # lowered again for this campaign's target
            program = build_program(verified, lowered_as(runner.config.lowering(), candidate)).program
        return self._compared(winner, {**challenger, CHAMPION: (candidate, program)}, champion, passed)

    def _fault_test(self, winner: BestProgram, challenger: Rivals) -> tuple[RunFailure | None, str]:
        """Run the new program once at a size that was not measured yet; return (failure or None, a note)."""
        if winner.library is not None:
            return None, "the library's own, which nothing beat"
        if self.campaign.runner.capabilities.times is TimeSource.RECORD:  # `register` replays the program anyway
            return None, "its replay is correct"
        size_bytes = unseen_size(winner.size_class, self.campaign.sizes)
        most = [rival[1].max_bytes for rival in challenger.values() if not isinstance(rival, str)]
        if any(0 < largest < size_bytes for largest in most):
            size_bytes = max(size.size_bytes for size in winner.sizes)  # the program does not support larger sizes
        outcome = self._run(winner, challenger, (size_bytes,), 1)
        fault = outcome if isinstance(outcome, RunFailure) else None
        seen = "" if size_bytes in self.campaign.sizes else " at an unseen size"
        return fault, f"correct{seen}, {size_bytes} bytes"

    def _compared(self, winner: BestProgram, rivals: Rivals, champion: ModelVersion, passed: str) -> PromotionVerdict:
        sizes = tuple(size.size_bytes for size in winner.sizes)
        outcome = self._run(winner, rivals, sizes, REPEATS)
        if isinstance(outcome, RunFailure):  # if the champion also fails when run alone, it loses the alias
            alone = self._run(winner, {CHAMPION: rivals[CHAMPION]}, sizes, 1)
            is_broken = isinstance(alone, RunFailure) and alone.kind in BROKEN
            reason = f"could not be compared: {outcome.message}"
            if isinstance(alone, RunFailure) and is_broken:
                reason = f"version {champion.version} fails here: {alone.message}"
            return PromotionVerdict(is_broken, reason, champion.version)
        times = _mean_times(outcome.results[CHALLENGER]), _mean_times(outcome.results[CHAMPION])
        ratio = ratio_interval(*times)
        faster = ratio.high < 1
        word = "faster than" if faster else "not clearly faster than"
        at = ", ".join(format_size(size) for size in sizes)
        reason = f"{word} version {champion.version} side by side at {at}, {REPEATS} repetitions; {passed}"
        return PromotionVerdict(faster, reason, champion.version, ratio)

    def _run(self, winner: BestProgram, rivals: Rivals, sizes_bytes: tuple[int, ...], repeats: int) -> Outcome:
        """Measure `rivals`. Runs with only library algorithms are impossible: if necessary, add a program."""
        programs = {name: rival for name, rival in rivals.items() if not isinstance(rival, str)}
        library = {name: rival for name, rival in rivals.items() if isinstance(rival, str)}
        if not programs:
            programs = {BESIDE: self._program(winner.trial.candidate, winner.trial.program_id)}
        request = RequestBuilder(self.campaign, self.topology).run(programs, len(self.store.trials))
        algorithms = tuple(dict.fromkeys(library.values()))
        request = replace(request, sizes_bytes=sizes_bytes, repeats=repeats, library=algorithms)
        [completion] = completions(self.workers, [self.workers.measure(request)])
        outcome = completion.value
        if isinstance(outcome, RunFailure):
            return outcome
        of_library = {name: outcome.results[library_result(algorithm)] for name, algorithm in library.items()}
        return replace(outcome, results={**outcome.results, **of_library})

    def _program(self, candidate: Candidate, program_id: str) -> tuple[Candidate, AnyProgram]:
        return candidate, lift_code(self.store.program_path(program_id).read_bytes())


def unseen_size(size_class: SizeClass, sizes_bytes: Sequence[int]) -> int:
    """Return a size in the class that is not in `sizes_bytes` and that is divisible by few chunk counts.

    If the class has no such size left, the returned size is outside the class.
    """
    size_bytes = size_class.min_bytes + size_class.min_bytes // 3 | 3
    while size_bytes in sizes_bytes:
        size_bytes += 4
    return size_bytes


def _mean_times(sizes: Sequence[SizeMeasurement]) -> list[float]:
    """Return each repetition's geometric mean time over the sizes."""
    rows = zip(*(size.times_s for size in sizes), strict=True)
    return [math.prod(row) ** (1 / len(sizes)) for row in rows]
