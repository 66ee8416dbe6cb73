"""Files by which other libraries choose: among their own algorithms, or programs of a tuning table.

An entry of a table says in two forms which of a library's own algorithms runs. Its program is of a method that the
library has too, or the library itself was the best, by a baseline `library:NAME` whose last word is the library's name
of the algorithm. Other entries say nothing to NCCL, RCCL, Open MPI and MPICH; MSCCL++ gets programs.

NCCL (`NCCL_TUNER_CONFIG_FILE` of tuner plug-ins: Chorale's and NCCL's example). A row is
`collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered`; the first that matches a
call decides, both bounds are inclusive, -1 matches anything, and sizes count as in Chorale: those of the whole vector.
NCCL's example silently makes its defaults (allreduce, ring, simple) of names that it does not know, and has one channel
for calls without a row. Nothing is said beyond the sizes that were measured.

Open MPI's component `tuned`: the classic file, and the JSON of 6.0. Numbers and names are those that
`ompi_info --param coll tuned --level 9` of 5.0 lists, and sizes those of the whole vector, as Open MPI's page "Tuning
Collectives" has them. In the classic file a rule holds from its size, and the rules of a number of ranks from that
number, up to the next; algorithm 0 is whatever Open MPI chooses itself.

MPICH (`MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE`). A file must have all collectives: MPICH 5.0.2 ends with a failed
assertion for a collective that is not in it. So its default tree, which is a JSON text in the library, is taken, and
changed for the ranks and sizes of a table. Keys are conditions, tried in order; sizes are those of the whole vector
where the library's own tree uses the same condition. Algorithms that need more than that (powers of two, built-in
commutative operations) stay behind the conditions that the default tree has for them.

MSCCL++ 0.10: a folder of plans, choices, and a module of Python by which a job loads them. Only allreduce: of other
collectives it is not documented whether a request states the bytes of a rank or of the vector.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.runners.api.base import LIBRARY
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.run import plan_execution_violations
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.lift import lift
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.tuner.trials.records import Candidate, CompleteTrial, TrialRecord

Names = Mapping[str, Mapping[str, str]]
"""For each collective that a library knows: method or name here -> the library's name."""


@dataclass(frozen=True, slots=True)
class BuiltinChoice:
    """A library's own algorithm for sizes of the whole vector from min_bytes to max_bytes (None: no limit), both
    included. channels: -1 where the table does not say."""

    collective: str
    min_bytes: int
    max_bytes: int | None
    algorithm: str
    protocol: str
    channels: int


def builtin_choices(table: Table, names: Names, dtype: str | None = None) -> list[BuiltinChoice]:
    """Return the choices of `table` for all its ranks, by collective and size; those for `dtype`, by default for any
    type, else for the only one that it has.

    InvalidInput where types have to be chosen from, CheckFailed where nothing can be said.
    """
    entries = [entry for entry in table.entries if entry.group is None and entry.collective in names]
    chosen = _dtype_of(entries, dtype)
    found = [choice for entry in entries if entry.dtype == chosen for choice in _choices(table, entry, names)]
    if not found:
        known = ", ".join(sorted({name for each in names.values() for name in each}))
        rule = "the table must say where an algorithm of the library is the best"
        raise CheckFailed(rule, "no entry does", f"tune with baselines or methods such as {known}")
    return sorted(found, key=lambda choice: (choice.collective, choice.min_bytes))


def _dtype_of(entries: list[JobEntry], dtype: str | None) -> str:
    there = sorted({entry.dtype for entry in entries})
    if dtype is not None:
        return dtype
    if ANY_DTYPE in there or not there:
        return ANY_DTYPE
    if len(there) > 1:
        rule = "libraries choose by size and not by element type"
        raise InvalidInput(rule, f"entries for {', '.join(there)}", "choose one of them with --dtype")
    return there[0]


def _choices(table: Table, entry: JobEntry, names: Names) -> Iterator[BuiltinChoice]:
    if entry.program is None:
        baseline = str(entry.provenance.get("baseline", ""))
        name = baseline.rpartition(":")[2] if baseline.startswith(LIBRARY) else baseline
        parameters: Mapping[str, object] = {}
    else:
        program = table.programs[entry.program]
        name, parameters = program.method, program.parameters
    algorithm = names[entry.collective].get(name)
    if algorithm is not None:
        protocol = str(parameters.get("protocol", "Simple"))
        channels = _count(parameters.get("channels")) * _count(parameters.get("instances")) if parameters else -1
        yield BuiltinChoice(entry.collective, entry.min_bytes, entry.max_bytes, algorithm, protocol, channels)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 1


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
    chosen = [(size_bytes, best[size_bytes][2]) for size_bytes in sorted(best)]
    return [
        NcclTableEntry(size, ALGORITHMS[one.method], one.protocol.lower(), one.channels * one.instances)
        for size, one in chosen
    ]


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
    for (algorithm, protocol, channels), group in groupby(
        spans, key=lambda span: (span[0].algorithm, span[0].protocol, span[0].channels)
    ):
        rows = list(group)
        bounds = f"{rows[0][1]},{rows[-1][2]}"
        lines.append(f"{COLLECTIVES[collective]},{bounds},{algorithm},{protocol},{channels},-1,{ranks},-1,-1")
    return "\n".join(lines) + "\n"


NO_LIMIT = 2**64 - 1
NCCL_NAMES = {
    collective: {
        method: name for method, name in {**ALGORITHMS, **{name: name for name in runs}}.items() if name in runs
    }
    for collective, runs in RUNS.items()
}


def nccl_table_csv(table: Table, dtype: str | None = None, own_channels: int = 0) -> str:
    """Return the CSV of `table` for NCCL; raises as `builtin_choices` does.

    own_channels: what leaves the number of channels to the library: 0 for NCCL, -1 for RCCL
    """
    lines = [HEADER]
    for choice in builtin_choices(table, NCCL_NAMES, dtype):
        last = NO_LIMIT if choice.max_bytes is None else choice.max_bytes
        channels = own_channels if choice.channels < 0 else choice.channels
        what = f"{choice.algorithm},{choice.protocol.lower()},{channels}"
        lines.append(f"{COLLECTIVES[choice.collective]},{choice.min_bytes},{last},{what},-1,{table.ranks},-1,-1")
    return "\n".join(lines) + "\n"


COLLECTIVE_IDS = {"allgather": 0, "allreduce": 2, "broadcast": 7, "reduce": 11, "reduce_scatter": 13}
"""Reduce-scatter with equal shards is MPI's Reduce_scatter_block."""
_JSON_NAMES = {"broadcast": "bcast", "reduce_scatter": "reduce_scatter_block"}
ALGORITHM_IDS = {
    "allgather": {"linear": 1, "bruck": 2, "recursive_doubling": 3, "ring": 4, "neighbor": 5, "sparbit": 7},
    "allreduce": {
        "basic_linear": 1, "nonoverlapping": 2, "recursive_doubling": 3, "ring": 4, "segmented_ring": 5,
        "rabenseifner": 6,
    },
    "broadcast": {
        "basic_linear": 1, "chain": 2, "pipeline": 3, "split_binary_tree": 4, "binary_tree": 5, "binomial": 6,
        "knomial": 7, "scatter_allgather": 8, "scatter_allgather_ring": 9,
    },
    "reduce": {
        "linear": 1, "chain": 2, "pipeline": 3, "binary": 4, "binomial": 5, "in-order_binary": 6, "rabenseifner": 7,
    },
    "reduce_scatter": {"basic_linear": 1, "recursive_doubling": 2, "recursive_halving": 3, "butterfly": 4},
}  # fmt: skip
_METHODS = {"ring": "ring", "recursive-doubling": "recursive_doubling", "rabenseifner": "rabenseifner"}
OPEN_MPI_NAMES = {
    collective: {
        **{method: name for method, name in _METHODS.items() if name in known},
        **{name: name for name in known},
        **({"rabenseifner": "recursive_halving"} if collective == "reduce_scatter" else {}),
    }
    for collective, known in ALGORITHM_IDS.items()
}


def open_mpi_rules(table: Table, dtype: str | None = None) -> str:
    """Return the classic file, for communicators of exactly the ranks of `table`; raises as `builtin_choices` does."""
    groups = _by_collective(builtin_choices(table, OPEN_MPI_NAMES, dtype))
    lines = [f"{len(groups)} # collectives"]
    for collective, choices in groups:
        rules = list(_rules(choices))
        lines += [f"{COLLECTIVE_IDS[collective]} # {collective}", "2 # numbers of ranks"]
        lines += [f"{table.ranks} # ranks", f"{len(rules)} # rules: from bytes, algorithm, 0, segment"]
        lines += [f"{first} {ALGORITHM_IDS[collective].get(name, 0)} 0 0" for first, name in rules]
        lines += [f"{table.ranks + 1} # ranks and more", "1 # rule: its own choice", "0 0 0 0"]
    return "\n".join(lines) + "\n"


def open_mpi_json(table: Table, dtype: str | None = None) -> str:
    """Return the JSON file of Open MPI 6, for the same; raises as `builtin_choices` does."""
    collectives = {
        _JSON_NAMES.get(collective, collective): [
            {
                "comm_size_min": table.ranks,
                "comm_size_max": table.ranks,
                "rules": [
                    {
                        "msg_size_min": choice.min_bytes,
                        "msg_size_max": "inf" if choice.max_bytes is None else choice.max_bytes,
                        "alg": choice.algorithm,
                    }
                    for choice in choices
                ],
            }
        ]
        for collective, choices in _by_collective(builtin_choices(table, OPEN_MPI_NAMES, dtype))
    }
    document = {"rule_file_version": 3, "module": "tuned", "collectives": collectives}
    return json.dumps(document, indent=1) + "\n"


def _by_collective(choices: Sequence[BuiltinChoice]) -> list[tuple[str, list[BuiltinChoice]]]:
    return [(name, list(group)) for name, group in groupby(choices, key=lambda choice: choice.collective)]


def _rules(choices: Sequence[BuiltinChoice]) -> Iterator[tuple[int, str]]:
    """Yield from which size on which algorithm runs, "" for Open MPI's own choice; the first from 0 on."""
    free: int | None = 0
    for choice in choices:
        if free is not None and free < choice.min_bytes:
            yield free, ""
        yield choice.min_bytes, choice.algorithm
        free = None if choice.max_bytes is None else choice.max_bytes + 1
    if free is not None:
        yield free, ""


Tree = dict[str, Any]
LARGEST = 2**31 - 1
"""Limits are read as C's int."""

_SIZES = {"allreduce": "avg_msg_size", "allgather": "total_msg_size", "reduce_scatter": "total_msg_size"}
_COLLECTIVES = {"allreduce": "allreduce", "allgather": "allgather", "reduce_scatter": "reduce_scatter_block"}
MPICH_NAMES = {
    "allreduce": {
        "ring": "MPIR_Allreduce_intra_ring",
        "recursive-doubling": "MPIR_Allreduce_intra_recursive_doubling",
        "recursive_doubling": "MPIR_Allreduce_intra_recursive_doubling",
        "rabenseifner": "MPIR_Allreduce_intra_reduce_scatter_allgather",
        "reduce_scatter_allgather": "MPIR_Allreduce_intra_reduce_scatter_allgather",
    },
    "allgather": {
        "ring": "MPIR_Allgather_intra_ring",
        "bruck": "MPIR_Allgather_intra_brucks",
        "brucks": "MPIR_Allgather_intra_brucks",
        "recursive-doubling": "MPIR_Allgather_intra_recursive_doubling",
        "recursive_doubling": "MPIR_Allgather_intra_recursive_doubling",
    },
    "reduce_scatter": {
        "pairwise": "MPIR_Reduce_scatter_block_intra_pairwise",
        "rabenseifner": "MPIR_Reduce_scatter_block_intra_recursive_halving",
        "recursive_halving": "MPIR_Reduce_scatter_block_intra_recursive_halving",
    },
}
_POWER_OF_TWO = ("MPIR_Allgather_intra_recursive_doubling",)
_BUILT_IN = ("MPIR_Allreduce_intra_reduce_scatter_allgather",)
_TREE = re.compile(rb'\{"collective=[\x20-\x7e]+')


def default_tree(library: bytes) -> Tree:
    """Return the default tree in `library`, the content of a libmpi.so. Unavailable where it has none."""
    trees = [tree for tree in map(_parsed, _TREE.findall(library)) if "collective=allreduce" in tree]
    if not trees:
        way_out = "name the libmpi.so of the MPICH that jobs use"
        raise Unavailable("MPICH's library must hold its default tree", "a library without", way_out)
    return max(trees, key=len)  # devices have small trees for a few collectives


def _parsed(text: bytes) -> Tree:
    """Return a tree of algorithms; empty for other texts, also trees of compositions, which another variable reads."""
    try:
        tree = {} if b"composition=" in text else json.loads(text)
    except ValueError:
        return {}
    return tree if isinstance(tree, dict) else {}


def mpich_selection(table: Table, defaults: Tree, dtype: str | None = None) -> str:
    """Return the file; raises as `builtin_choices` does, and CheckFailed for ranks that an algorithm cannot serve."""
    choices = builtin_choices(table, MPICH_NAMES, dtype)
    tree = dict(defaults)
    for collective, group in groupby(choices, key=lambda choice: choice.collective):
        key = f"collective={_COLLECTIVES[collective]}"
        own = tree[key]["comm_type=intra"]
        ranges = _ranges(collective, list(group), table.ranks, own)
        if collective != "allgather":  # the algorithms change the order of operands
            ranges = {"is_commutative=yes": ranges, "is_commutative=no": own}
        sizes = {f"comm_size<{table.ranks}": own, f"comm_size<={table.ranks}": ranges, "comm_size=any": own}
        tree[key] = {**tree[key], "comm_type=intra": sizes}
    return json.dumps(tree, indent=1) + "\n"


def _ranges(collective: str, choices: Sequence[BuiltinChoice], ranks: int, own: Tree) -> Tree:
    size, free, ranges = _SIZES[collective], 0, {}
    for choice in choices:
        if choice.min_bytes > LARGEST:
            break
        if choice.min_bytes > free:
            ranges[f"{size}<={choice.min_bytes - 1}"] = own
        leaf = _leaf(choice.algorithm, ranks, own)
        if choice.max_bytes is None or choice.max_bytes > LARGEST:
            return {**ranges, f"{size}=any": leaf}
        ranges[f"{size}<={choice.max_bytes}"] = leaf
        free = choice.max_bytes + 1
    return {**ranges, f"{size}=any": own}


def _leaf(algorithm: str, ranks: int, own: Tree) -> Tree:
    leaf: Tree = {f"algorithm={algorithm}": {}}
    if algorithm in _POWER_OF_TWO and ranks & (ranks - 1):
        raise CheckFailed(f"{algorithm} needs a power of two of ranks", ranks, "tune with other baselines or methods")
    if algorithm in _BUILT_IN:
        return {"is_op_built_in=yes": {"count<pow2": own, "count=any": leaf}, "is_op_built_in=no": own}
    return leaf


MODULE = "chorale_plans.py"
_COLLECTIVE = "allreduce"


def mscclpp_files(table: Table) -> dict[str, bytes]:
    """Return the files of the folder, by name: one plan for each range of sizes, of all ranks of `table`.

    CheckFailed where it has no program of an allreduce, or one that is not right as a plan.
    """
    entries = [entry for entry in table.entries if entry.group is None and entry.collective == _COLLECTIVE]
    choices, files = [], {}
    for number, entry in enumerate(entry for entry in entries if entry.program is not None):
        plan = _plan(table, entry)
        name = f"chorale-{number:02d}-{str(entry.program)[:12]}"
        files[f"{name}.json"] = plan_text(plan).encode()
        choices.append(
            {
                "name": name,
                "file": f"{name}.json",
                "collective": _COLLECTIVE,
                "min_bytes": plan.min_bytes,
                "max_bytes": plan.max_bytes,
                "in_place": plan.in_place,
                "program": entry.program,
            }
        )
    if not choices:
        rule = "a table for MSCCL++ must have a program for an allreduce of all ranks"
        raise CheckFailed(rule, "none", "write the table of such a campaign")
    files["choices.json"] = (json.dumps({"ranks": table.ranks, "choices": choices}, indent=1) + "\n").encode()
    files[MODULE] = Path(__file__).with_name("mscclpp_module.py").read_bytes()
    return files


def _plan(table: Table, entry: JobEntry) -> ExecutionPlan:
    """Return the program of `entry` as a plan for its sizes, checked."""
    program = lift(table.programs[str(entry.program)].text)
    plan = plan_of(replace(program, min_bytes=0, max_bytes=0))
    last = plan.max_bytes if entry.max_bytes is None else min(entry.max_bytes, plan.max_bytes)
    if last < entry.min_bytes:
        rule = f"a plan of {program.name} can do {plan.max_bytes} bytes at most"
        raise CheckFailed(rule, f"an entry from {entry.min_bytes} on", "use more chunks or another program")
    plan = replace(plan, min_bytes=entry.min_bytes, max_bytes=last)
    for violation in plan_structure_violations(plan) or plan_execution_violations(plan):
        rule = f"the plan of {program.name} must do what its collective says"
        raise CheckFailed(rule, violation.message, "export another program")
    return plan
