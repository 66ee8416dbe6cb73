"""Tuned results as the table that tuner plug-ins of NCCL read (`NCCL_TUNER_CONFIG_FILE`): Chorale's and NCCL's example.

A row is `collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered`; the first that
matches a call decides, both bounds are inclusive, -1 matches anything, and sizes count as in Chorale: those of the
whole vector. NCCL's example silently makes its defaults (allreduce, ring, simple) of names that it does not know, and
has one channel for calls without a row.

NCCL executes its own algorithms only, so the table says nothing about schedules that only programs can execute: it
holds the best of the methods that NCCL has, per size, and nothing beyond the sizes that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from chorale.job.table.model import Table
from chorale.synth.errors import CheckFailed
from chorale.tuner.reports.library_files.choices import builtin_choices
from chorale.tuner.trials.records import Candidate, CompleteTrial, TrialRecord

ALGORITHMS = {"ring": "ring", "double-binary-tree": "tree"}
"""The method here, and the algorithm of NCCL that does the same."""
COLLECTIVES = {
    "allreduce": "allreduce",
    "allgather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
RUNS = {
    "allreduce": ("ring", "tree", "collnet_direct", "collnet_chain", "nvls", "nvls_tree"),
    "allgather": ("ring", "collnet_direct", "nvls", "pat"),
    "reduce_scatter": ("ring", "collnet_direct", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}
"""The algorithms that NCCL has for each collective, by its names: it leaves out rows with others."""
HEADER = "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered"


@dataclass(frozen=True, slots=True)
class NcclTableEntry:
    """What is best at one size; 0 channels are NCCL's own choice."""

    size_bytes: int
    algorithm: str
    protocol: str
    channels: int


def nccl_table_entries(trials: Iterable[TrialRecord], collective: str) -> list[NcclTableEntry]:
    """Return the best choice of what NCCL has for `collective` at each measured size, sizes ascending.

    Trials compare by speed-up over the baselines of their own run; among equals the earlier one wins.
    """
    best: dict[int, tuple[float, int, Candidate]] = {}
    methods = [method for method, name in ALGORITHMS.items() if name in RUNS.get(collective, ())]
    for trial in trials:
        if not isinstance(trial, CompleteTrial) or trial.candidate.method not in methods:
            continue
        for size in trial.sizes:
            rank = (size.speedup, -trial.number, trial.candidate)
            if size.size_bytes not in best or rank[:2] > best[size.size_bytes][:2]:
                best[size.size_bytes] = rank
    return [_choice(size_bytes, best[size_bytes][2]) for size_bytes in sorted(best)]


def _choice(size_bytes: int, candidate: Candidate) -> NcclTableEntry:
    channels = candidate.channels * candidate.instances
    return NcclTableEntry(size_bytes, ALGORITHMS[candidate.method], candidate.protocol.lower(), channels)


def nccl_tuner_csv(entries: Sequence[NcclTableEntry], collective: str, ranks: int) -> str:
    """Return the table. Sizes between two measured ones go to the nearer, by ratio; equal neighbours are one row.

    CheckFailed where there is nothing to say: no such trial, or a collective that the plug-in does not know.
    """
    if collective not in COLLECTIVES:
        raise CheckFailed(
            "the tuner plug-in must know the collective", collective, f"it knows {', '.join(COLLECTIVES)}"
        )
    if not entries:
        known = [method for method, name in ALGORITHMS.items() if name in RUNS[collective]]
        rule = f"a table for NCCL needs a complete trial of a method that it has: {' or '.join(known)}"
        raise CheckFailed(rule, "none", "add one of them to search.methods")
    middles = [math.isqrt(low.size_bytes * high.size_bytes) for low, high in pairwise(entries)]
    first = [entries[0].size_bytes, *(middle + 1 for middle in middles)]
    last = [*middles, entries[-1].size_bytes]
    spans = zip(entries, first, last, strict=True)
    lines = [HEADER]
    for (algorithm, protocol, channels), group in groupby(spans, key=lambda span: _what(span[0])):
        rows = list(group)
        bounds = f"{rows[0][1]},{rows[-1][2]}"
        lines.append(f"{COLLECTIVES[collective]},{bounds},{algorithm},{protocol},{channels},-1,{ranks},-1,-1")
    return "\n".join(lines) + "\n"


def _what(choice: NcclTableEntry) -> tuple[str, str, int]:
    return choice.algorithm, choice.protocol, choice.channels


NO_LIMIT = 2**64 - 1
NAMES = {
    collective: {
        method: name for method, name in {**ALGORITHMS, **{name: name for name in runs}}.items() if name in runs
    }
    for collective, runs in RUNS.items()
}


def nccl_table_csv(table: Table, dtype: str | None = None) -> str:
    """Return the CSV of `table` for NCCL; raises as `builtin_choices` does."""
    return _csv(table, dtype, "0")


def rccl_table_csv(table: Table, dtype: str | None = None) -> str:
    """Return the CSV of `table` for RCCL; raises as `builtin_choices` does."""
    return _csv(table, dtype, "-1")


def _csv(table: Table, dtype: str | None, own_channels: str) -> str:
    lines = [HEADER]
    for choice in builtin_choices(table, NAMES, dtype):
        last = NO_LIMIT if choice.max_bytes is None else choice.max_bytes
        channels = own_channels if choice.channels < 0 else choice.channels
        what = f"{choice.algorithm},{choice.protocol.lower()},{channels}"
        lines.append(f"{COLLECTIVES[choice.collective]},{choice.min_bytes},{last},{what},-1,{table.ranks},-1,-1")
    return "\n".join(lines) + "\n"
