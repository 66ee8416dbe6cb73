"""The tuning table of a launch: which program or baseline to run at each size. It can be exported as program files.

Size classes are powers of two of the vector's size in bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chorale.runners.api.units import format_size
from chorale.runners.nccl.parameters import tuner_csv, tuner_row
from chorale.synth.programs.library_call import LibraryCall
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.program import Program
from chorale.synth.targets.lift import lift_code
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.synth.targets.registry import target_named
from chorale.tuner.statistics.contest import SizeVerdict
from chorale.tuner.trials.records import CompleteTrial, RankedTrial, SizeResult, mean_speedup


@dataclass(frozen=True, slots=True, order=True)
class SizeClass:
    """Vectors of 2^exponent to 2^(exponent + 1) - 1 bytes."""

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


MIN_SPEEDUP = 1.02
"""Smallest speed-up over the fastest baseline for which a program is chosen. Below it, the baseline is chosen."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What to run at a size: the program of `trial`, or the baseline `baseline` if `trial` is None.

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
        """Return the speed-up over the fastest baseline in the same run; 1 if that baseline is the one to run."""
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

    together: use a single trial, the best by geometric mean, at every size where it beats the baselines
    always:   use programs even where a baseline is faster
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
    """Return the ranges of sizes, from 1 byte on. Neighbouring sizes with the same entry form one range."""
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
    """Return the program file for each range of sizes that has a program: file name -> content. Names sort by size.

    chosen: the tuning table, in ascending order of sizes
    read:   returns the content of the program file with a given id

    Each file states its range of sizes. Settings for NCCL are rows in `nccl-tuner.csv`. At sizes for which a baseline
    was chosen, and below or above all measured sizes, the runtime uses its own algorithm.
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
