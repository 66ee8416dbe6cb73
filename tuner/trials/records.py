"""Defines the records of a launch: candidates, trials (one class per state), and the final comparison.

The final comparison measures the best candidates again, side by side, so that no candidate wins by luck. The
tuning table of a launch says which program or baseline to run at each size; its size classes are powers of two of the
vector's size in bytes.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from chorale.runners.api.base import FailureKind, Measurement
from chorale.runners.api.units import format_size
from chorale.runners.nccl.parameters import PREFIX, SYMMETRIC, is_library_method, tuner_csv, tuner_row
from chorale.synth.identity import content_id
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import Program, Protocol
from chorale.synth.targets.lift import lift_code
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import target_named
from chorale.tuner.statistics.contest import BaselineTimes, Controls, SizeVerdict

Environment = dict[str, str | int | float | None]
MIN_SPEEDUP = 1.02
"""Minimum speed-up over the fastest baseline for which a program is chosen. Otherwise, the baseline is chosen."""
_PLAN_DEFAULTS = {"reads": False, "block_group": 1, "pipeline_bytes": 0, "vector_bytes": 16}
PLAN_PARAMETERS = tuple(_PLAN_DEFAULTS)
"""Parameters that only matter for one-sided targets."""
LIBRARY_PARAMETERS = ("ctas", "chunk_bytes", "threads", "cta_policy")
"""Parameters of a library's own algorithms. Of these, only `threads` also matters for one-sided targets."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point in the search space: a method and its parameters (see `SearchSection`).

    If a parameter is None, the method or the runtime chooses its value.

    depth:        number of parts into which every transfer is split, so that trees are pipelined
    buffer_bytes: size of each connection's buffer
    reads, block_group, pipeline_bytes, vector_bytes: how plans move data, see `chorale.synth.programs.program`
    ctas, chunk_bytes, threads, cta_policy: settings of the library's own algorithms, see `LibrarySettings`
    """

    method: str
    k: int | None = None
    chunks: int | None = None
    channels: int = 1
    instances: int = 1
    protocol: Protocol = "Simple"
    depth: int = 1
    buffer_bytes: int | None = None
    reads: bool = False
    block_group: int = 1
    pipeline_bytes: int = 0
    ctas: int | None = None
    chunk_bytes: int | None = None
    threads: int | None = None
    cta_policy: str | None = None
    vector_bytes: int = 16

    @property
    def settings(self) -> LibrarySettings | None:
        """Return the library settings, or None if the candidate is not one of the library's algorithms."""
        if not is_library_method(self.method):
            return None
        algorithm = self.method.removeprefix(PREFIX)
        protocol = None if algorithm == SYMMETRIC else self.protocol
        return LibrarySettings(
            algorithm, protocol, self.ctas, self.chunk_bytes, self.buffer_bytes, self.threads, self.cta_policy
        )

    @property
    def parameters(self) -> dict[str, str | int | None]:
        return dataclasses.asdict(self)

    @property
    def identity(self) -> dict[str, str | int | None]:
        """Return the parameters that determine the id. Plan and library parameters with default values are left out."""
        defaults = {**_PLAN_DEFAULTS, **dict.fromkeys(LIBRARY_PARAMETERS)}
        return {name: value for name, value in self.parameters.items() if value != defaults.get(name, object)}

    @property
    def id(self) -> str:
        return content_id(self.identity)

    def __str__(self) -> str:
        """Return the method and every parameter that is not the default."""
        plain = Candidate(self.method).parameters
        shown = [f"{name}={value}" for name, value in self.parameters.items() if value != plain[name]]
        return " ".join([self.method, *shown])


def trial_id(launch_id: str, candidate: Candidate) -> str:
    """Return the id of a candidate's trial in a launch: a hash of both, the same in all records of the trial."""
    return content_id({"launch": launch_id, "candidate": candidate.identity})


def run_key(program_id: str, candidate: Candidate) -> str:
    """Return a measurement's key: the program id and the buffer size, which is not part of the program."""
    return program_id if candidate.buffer_bytes is None else f"{program_id}.{candidate.buffer_bytes}"


@dataclass(frozen=True, slots=True)
class SizeResult:
    """The times of a candidate and of each baseline at one size, in seconds, with a time for each repetition.

    `size_bytes` is the size in the campaign, `measured_bytes` the size rounded up to whole elements; `weight` is the
    size's weight in means over sizes. If `beside` is true, the baselines ran interleaved with the candidate, so
    that the n-th times form a pair; otherwise their times come from earlier runs in the launch.
    """

    size_bytes: int
    measured_bytes: int
    times_s: tuple[float, ...]
    baseline_times_s: Mapping[str, tuple[float, ...]]
    weight: float = 1.0
    beside: bool = True

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def baseline_median_s(self) -> float:
        """Return the median time of the fastest baseline, in seconds."""
        return min(statistics.median(times) for times in self.baseline_times_s.values())

    @property
    def speedup(self) -> float:
        """Return the speed-up over the fastest baseline: 2 means that the candidate takes half the time."""
        return self.baseline_median_s / self.median_s

    @property
    def algbw_gb_per_s(self) -> float:
        """Return measured bytes divided by median time, in 10^9 bytes per second."""
        return self.measured_bytes / self.median_s / 1e9


def mean_speedup(sizes: Sequence[SizeResult]) -> float:
    """Return the geometric mean of the speed-ups at `sizes`, weighted by the sizes' weights."""
    logarithms = [math.log(size.speedup) for size in sizes]
    return math.exp(statistics.fmean(logarithms, [size.weight for size in sizes]))


@dataclass(frozen=True, slots=True)
class _Trial:
    """The fields that all trials share. `number` is the trial's position in the order of the search's suggestions."""

    trial_id: str
    number: int
    candidate: Candidate
    started_unix_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class CompleteTrial(_Trial):
    """The trial of a candidate that was measured.

    schedule_id, program_id: content ids of the candidate's files; `schedule_id` is empty without a schedule
    sizes:            results at each size
    same_program_as:  id of an earlier trial with the same program; this trial reuses its measurement
    channels, blocks: the program's number of channels, and the maximum number of thread blocks of a rank
    """

    schedule_id: str
    program_id: str
    sizes: tuple[SizeResult, ...]
    environment: Environment = field(default_factory=dict)
    same_program_as: str | None = None
    channels: int = 0
    blocks: int = 0
    state: Literal["complete"] = "complete"

    @property
    def run_key(self) -> str:
        """Return the key of the measurement; trials with the same key share one measurement."""
        return run_key(self.program_id, self.candidate)

    @property
    def speedup(self) -> float:
        """Return the objective: the weighted geometric mean of the speed-ups over all sizes."""
        return mean_speedup(self.sizes)


@dataclass(frozen=True, slots=True)
class FailedTrial(_Trial):
    """The trial of a candidate that could not be prepared or measured, and the reason."""

    failure_kind: FailureKind
    message: str
    environment: Environment = field(default_factory=dict)
    state: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True)
class PrunedTrial(_Trial):
    """The trial of a candidate that was rejected because its parameters make no sense, or a trial that a pruner ended.

    sizes:      results at the sizes that were measured before the pruner ended the trial, in the campaign's order
    program_id: id of the measured program; empty if the candidate never ran
    """

    reason: str
    sizes: tuple[SizeResult, ...] = ()
    program_id: str = ""
    state: Literal["pruned"] = "pruned"

    @property
    def run_key(self) -> str:
        return run_key(self.program_id, self.candidate)


TrialRecord = CompleteTrial | FailedTrial | PrunedTrial

trial_codec: TypeAdapter[TrialRecord] = TypeAdapter(Annotated[TrialRecord, Field(discriminator="state")])
"""Reads and writes a record as JSON; reading checks every field."""

candidate_codec: TypeAdapter[Candidate] = TypeAdapter(Candidate)
"""Creates candidates from their parameters, and checks the parameters."""


BEST_OF_EACH = 2
MAX_FINALISTS = 6


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """The outcome of the final comparison.

    results:  id of a finalist's trial -> the finalist's results, in the order of the sizes
    trials:   number of trials that preceded the comparison
    verdicts: conclusion at each size; empty if one program must run at all sizes, and in files of earlier versions
    """

    results: Mapping[str, tuple[SizeResult, ...]]
    trials: int
    verdicts: tuple[SizeVerdict, ...] = ()
    state: Literal["final"] = "final"


@dataclass(frozen=True, slots=True)
class RankedTrial:
    """A trial and the results that decide its rank: those of the final comparison or, without one, those of the trial.

    verdicts: conclusion of the comparison at each size, the same for all trials; empty without a comparison
    """

    trial: CompleteTrial
    sizes: tuple[SizeResult, ...]
    verdicts: tuple[SizeVerdict, ...] = ()


def finalists(trials: Sequence[CompleteTrial]) -> list[CompleteTrial]:
    """Return at most `MAX_FINALISTS` trials of different programs that lead at some size.

    A trial leads at a size if it has one of the highest speed-ups or one of the lowest times. These two rankings
    differ if the machine's load changed between trials.
    """
    distinct = [trial for trial in trials if trial.same_program_as is None]
    rankings: list[list[CompleteTrial]] = []  # for each size, largest first: ranked by speed-up, then by time
    for index in reversed(range(len(distinct[0].sizes) if distinct else 0)):
        rankings.append(sorted(distinct, key=lambda one, at=index: -one.sizes[at].speedup))  # type: ignore[misc]
        rankings.append(sorted(distinct, key=lambda one, at=index: one.sizes[at].median_s))  # type: ignore[misc]
    leaders: dict[str, CompleteTrial] = {}
    for rank in range(BEST_OF_EACH):
        for ranking in rankings:
            if rank < len(ranking) and len(leaders) < MAX_FINALISTS:
                leaders[ranking[rank].trial_id] = ranking[rank]
    return list(leaders.values())


def ranked_trials(trials: Sequence[CompleteTrial], final: FinalComparison | None) -> list[RankedTrial]:
    """Return the trials from which the best is chosen: the finalists or, without a final comparison, all trials."""
    if final is None:
        return [RankedTrial(trial, trial.sizes) for trial in trials]
    return [
        RankedTrial(trial, final.results[trial.trial_id], final.verdicts)
        for trial in trials
        if trial.trial_id in final.results
    ]


def size_results(
    measurement: Measurement,
    name: str,
    references: Mapping[str, str],
    weights: Mapping[int, float],
    earlier: BaselineTimes,
) -> tuple[SizeResult, ...]:
    """Return the results of the program `name` at each size, together with the baselines' times.

    references: each baseline's name in the measurement -> its name in records
    weights:    size in bytes -> weight; a size that is missing has weight 1
    earlier:    times of the baselines in earlier measurements, used if `measurement` has none
    """
    beside = baseline_times(measurement, references)
    baselines = beside or earlier
    return tuple(
        SizeResult(
            size_bytes=size.requested_bytes,
            measured_bytes=size.size_bytes,
            times_s=size.times_s,
            baseline_times_s={baseline: times[index] for baseline, times in baselines.items()},
            weight=weights.get(size.requested_bytes, 1.0),
            beside=bool(beside),
        )
        for index, size in enumerate(measurement.results[name])
    )


def baseline_times(measurement: Measurement, references: Mapping[str, str]) -> BaselineTimes:
    """Return the times of each baseline in `measurement`, by its name in records; empty if no baselines were run."""
    return {
        references[name]: tuple(size.times_s for size in sizes)
        for name, sizes in measurement.results.items()
        if name in references
    }


def controls_of(trials: Iterable[TrialRecord]) -> Controls:
    """Return `Controls` with the baselines' measurements in `trials`, which must be in the launch's order."""
    controls = Controls()
    measured = [trial for trial in trials if isinstance(trial, CompleteTrial) and trial.same_program_as is None]
    for count, trial in enumerate(measured):
        if trial.sizes[0].beside:
            names = trial.sizes[0].baseline_times_s
            controls.add({name: tuple(size.baseline_times_s[name] for size in trial.sizes) for name in names}, count)
    return controls


@dataclass(frozen=True, slots=True, order=True)
class SizeClass:
    """A class of vector sizes: 2^exponent to 2^(exponent + 1) - 1 bytes."""

    exponent: int

    @staticmethod
    def of(size_bytes: int) -> SizeClass:
        """Return the class to which `size_bytes` (at least 1) belongs."""
        return SizeClass(size_bytes.bit_length() - 1)

    @property
    def min_bytes(self) -> int:
        return 1 << self.exponent

    @property
    def max_bytes(self) -> int:
        return (2 << self.exponent) - 1

    def distance(self, other: SizeClass) -> int:
        return abs(self.exponent - other.exponent)

    def __str__(self) -> str:
        return format_size(self.min_bytes)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Says what to run at a size: the program of `trial` or, if `trial` is None, the baseline named `baseline`.

    result:  measurements of the trial, or of the trial that came closest to the baseline
    verdict: conclusion of the final comparison; None if there was none
    """

    size_bytes: int
    trial: CompleteTrial | None
    baseline: str
    result: SizeResult
    verdict: SizeVerdict | None = None

    @property
    def time_s(self) -> float:
        return self.result.baseline_median_s if self.trial is None else self.result.median_s

    @property
    def speedup(self) -> float:
        """Return the speed-up over the fastest baseline in the same run; 1 if this baseline is to be run."""
        if self.trial is None:
            return 1.0
        return self.result.speedup if self.verdict is None else self.verdict.speedup


@dataclass(frozen=True, slots=True)
class TableRange:
    """A range of sizes, from `first_bytes` to `last_bytes` inclusive (None: unbounded), for which `entry` is used.

    Between two measured sizes with different entries, the entry of the smaller size is used.
    """

    first_bytes: int
    last_bytes: int | None
    entry: TableEntry


def tuning_table(ranked: Sequence[RankedTrial], together: bool, always: bool = False) -> list[TableEntry]:
    """Return the entry for each size, in the order of the sizes; empty if there are no trials.

    together: use a single trial, the one with the best mean speed-up, at every size at which it beats the baselines
    always:   use programs even at sizes at which a baseline is faster
    """
    if not ranked:
        return []
    if ranked[0].verdicts and not together and not always:
        # The final comparison decides: a program runs only if it is proven to be faster than the baselines
        by_name = {item.trial.trial_id: item for item in ranked}
        entries = []
        for index, verdict in enumerate(ranked[0].verdicts):
            shown = by_name.get(verdict.name or verdict.leader) or ranked[0]
            trial = by_name[verdict.name].trial if verdict.name in by_name else None
            entries.append(TableEntry(verdict.size_bytes, trial, verdict.baseline, shown.sizes[index], verdict))
        return entries
    rivals = eligible(ranked, together)
    return [_entry(rivals, index, 0.0 if always else MIN_SPEEDUP) for index in range(len(ranked[0].sizes))]


def eligible(ranked: Sequence[RankedTrial], together: bool) -> list[RankedTrial]:
    """Return the trials that may be chosen: all or, if one program must run at all sizes, the best on average."""
    if not together or not ranked:
        return list(ranked)
    return [max(ranked, key=lambda item: (mean_speedup(item.sizes), -item.trial.number))]


def table_ranges(chosen: Sequence[TableEntry]) -> list[TableRange]:
    """Return the ranges of sizes, starting at 1 byte. Neighbouring sizes with the same choice form one range."""
    starts = [index for index in range(len(chosen)) if index == 0 or not _same(chosen[index - 1], chosen[index])]
    firsts = [1 if index == 0 else chosen[index].size_bytes for index in starts]
    ranges = [TableRange(first, None, chosen[index]) for first, index in zip(firsts, starts, strict=True)]
    return [replace(before, last_bytes=after.first_bytes - 1) for before, after in pairwise(ranges)] + ranges[-1:]


def fastest_baseline(result: SizeResult) -> str:
    return min(result.baseline_times_s, key=lambda name: statistics.median(result.baseline_times_s[name]))


def _entry(rivals: Sequence[RankedTrial], index: int, least_speedup: float) -> TableEntry:
    # If two trials are equally fast, the earlier one wins, as in the registry.
    best = max(rivals, key=lambda item: (item.sizes[index].speedup, -item.trial.number))
    result = best.sizes[index]
    return TableEntry(
        result.size_bytes, best.trial if result.speedup >= least_speedup else None, fastest_baseline(result), result
    )


def _same(one: TableEntry, other: TableEntry) -> bool:
    if one.trial is None or other.trial is None:
        return one.trial is other.trial and one.baseline == other.baseline
    return one.trial.trial_id == other.trial.trial_id


def table_programs(chosen: Sequence[TableEntry], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return file name -> program, for each range of sizes with a program. Sorting the names sorts the files by size.

    chosen: the tuning table, in ascending order of sizes
    read:   returns the content of the program file with a given id

    Each file states its range of sizes. Settings for NCCL are rows in `nccl-tuner.csv`. At sizes for which a baseline
    was chosen, and below the smallest or above the largest measured size, the runtime uses its own algorithm.
    """
    if not chosen:
        return {}
    smallest, largest = chosen[0].size_bytes, max(choice.result.measured_bytes for choice in chosen)
    files: dict[str, bytes] = {}
    rows: list[str | None] = []
    for number, span in enumerate(table_ranges(chosen), 1):
        if span.entry.trial is None:
            continue
        program = lift_code(read(span.entry.trial.program_id))
        first = max(span.first_bytes, smallest)
        last = largest if span.last_bytes is None else span.last_bytes
        if isinstance(program, LibraryCall):
            name = program.collective.name.value
            rows.append(tuner_row(name, program.settings, program.rank_count, first, last))
            continue
        if isinstance(program, Program):
            text = target_named(program.target).emit(replace(program, min_bytes=first, max_bytes=last))
        else:
            assert isinstance(program, ExecutionPlan)
            text = plan_text(replace(program, min_bytes=first, max_bytes=last))
        suffix = "json" if program.one_sided else "xml"
        files[f"{number:02d}-{first}-{last}.{suffix}"] = text.encode()
    if written := [row for row in rows if row is not None]:
        files["nccl-tuner.csv"] = tuner_csv(written).encode()
    return files
