"""Files that tell other libraries what to choose: among their own algorithms, or programs of a tuning table.

An entry of a table implies one of a library's own algorithms in two cases: its program is of a method that the library
has too, or the library itself was the best, as a baseline `library:NAME` whose last word is the library's name of the
algorithm. Other entries mean nothing to NCCL, RCCL, Open MPI and MPICH; MSCCL++ gets programs.

NCCL (`NCCL_TUNER_CONFIG_FILE` of tuner plug-ins: Chorale's and NCCL's example). A row is
`collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks,pipe_ops,registered`. The first row that matches
a call decides; both bounds are inclusive, -1 matches anything, and sizes are those of the whole vector, as in Chorale.
Chorale's plug-in has the chunk size in an eleventh field. Settings that no row can hold are environment variables
(`nccl_variables`) or the configuration of a call (`nccl_call_configs`). NCCL's example plug-in silently replaces
unknown names by defaults (allreduce, ring, simple), and uses one channel for calls without a row. There are no rows
beyond the measured sizes.

Open MPI's component `tuned`: the classic file, and the JSON of 6.0. Numbers and names are those that
`ompi_info --param coll tuned --level 9` of 5.0 lists, and sizes are those of the whole vector, as in Open MPI's page
"Tuning Collectives". In the classic file a rule applies from its size up to the next rule, and the rules of a number of
ranks from that number up to the next; with algorithm 0 Open MPI chooses by itself.

MPICH (`MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE`). A file must contain all collectives: MPICH 5.0.2 fails an assertion
for a collective that is missing. So we take its default tree, which is a JSON text in the library, and change it for
the ranks and sizes of a table. Keys are conditions, tried in order; sizes are those of the whole vector if the
library's own tree uses the same condition. Algorithms with further requirements (powers of two, built-in commutative
operations) stay behind the conditions that the default tree has for them.

MSCCL++ 0.10: a folder of plans, choices, and a Python module by which a job loads them. Only for allreduce: for other
collectives it is not documented whether a request states the bytes of a rank or of the vector.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, get_args

from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.runners.api.base import LIBRARY
from chorale.runners.nccl.parameters import (
    ALGORITHMS,
    COLLECTIVES,
    CTA_POLICIES,
    NO_LIMIT,
    PREFIX,
    process_variables,
    settings_fault,
    settings_named,
    tuner_csv,
    tuner_row,
)
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.synth.programs.library_call import LibrarySettings
from chorale.synth.programs.plans.check_structure import plan_structure_violations
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.run import plan_execution_violations
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.programs.program import Protocol
from chorale.synth.targets.lift import lift
from chorale.synth.targets.mscclpp_text import plan_text
from chorale.tuner.trials.records import Candidate, CompleteTrial, TrialRecord

Names = Mapping[str, Mapping[str, str]]
"""Collective -> (method or name here -> the library's name)."""


@dataclass(frozen=True, slots=True)
class BuiltinChoice:
    """A library's own algorithm for sizes of the whole vector from min_bytes to max_bytes, both included (None: no
    limit).
    channels: -1 if the table does not contain them; settings: of NCCL or RCCL, if the entry has any
    """

    collective: str
    min_bytes: int
    max_bytes: int | None
    algorithm: str
    protocol: str
    channels: int
    settings: LibrarySettings | None = None


def builtin_choices(
    table: Table, names: Names, dtype: str | None = None, with_settings: bool = False
) -> list[BuiltinChoice]:
    """Return the choices of `table` for all its ranks, by collective and size: those for `dtype`; by default those for
    any type, else for the only type. with_settings: whether entries with settings of the library count

    Raises InvalidInput if a type must be chosen, and CheckFailed if the table implies no choice.
    """
    entries = [entry for entry in table.entries if entry.group is None and entry.collective in names]
    chosen = _dtype_of(entries, dtype)
    fitting = [entry for entry in entries if entry.dtype == chosen and (entry.settings is None or with_settings)]
    found = [choice for entry in fitting for choice in _choices(table, entry, names)]
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
    settings = None if entry.settings is None else LibrarySettings.from_json(entry.settings)
    baseline = str(entry.provenance.get("baseline", ""))
    if settings is None and entry.program is None and baseline.startswith(LIBRARY + PREFIX):
        with suppress(InvalidInput):
            settings = settings_named(baseline.removeprefix(LIBRARY))
    if settings is not None:
        yield BuiltinChoice(entry.collective, entry.min_bytes, entry.max_bytes, settings.algorithm, "", -1, settings)
        return
    if entry.program is None:
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


METHODS = {"ring": "ring", "double-binary-tree": "tree"}
"""The method here, and the algorithm of NCCL that does the same."""


@dataclass(frozen=True, slots=True)
class NcclTableEntry:
    """The best choice at one size."""

    size_bytes: int
    settings: LibrarySettings


def _settings_of(candidate: Candidate, collective: str) -> LibrarySettings | None:
    """Return NCCL's settings for a candidate, None if the plug-in cannot choose it."""
    if (settings := candidate.settings) is not None:
        return settings if settings.algorithm in ALGORITHMS else None
    name = METHODS.get(candidate.method)
    if name is None or collective not in ALGORITHMS[name].collectives:
        return None
    return LibrarySettings(name, candidate.protocol, candidate.channels * candidate.instances)


def nccl_table_entries(trials: Iterable[TrialRecord], collective: str) -> list[NcclTableEntry]:
    """Return the best choice of NCCL's algorithms for `collective` at each measured size, in rising order.

    Trials are compared by speed-up over the baselines of their own run; among equals the earlier one wins.
    """
    best: dict[int, tuple[float, int, LibrarySettings]] = {}
    for trial in trials:
        settings = _settings_of(trial.candidate, collective)
        if not isinstance(trial, CompleteTrial) or settings is None:
            continue
        for size in trial.sizes:
            rank = (size.speedup, -trial.number, settings)
            if size.size_bytes not in best or rank[:2] > best[size.size_bytes][:2]:
                best[size.size_bytes] = rank
    return [NcclTableEntry(size_bytes, best[size_bytes][2]) for size_bytes in sorted(best)]


def nccl_tuner_csv(entries: Sequence[NcclTableEntry], collective: str, ranks: int) -> str:
    """Return the CSV. Sizes between two measured ones go to the nearer, by ratio; equal neighbours share a row.

    Raises CheckFailed if there is no such trial, or if the plug-in does not know the collective.
    """
    if collective not in COLLECTIVES:
        raise CheckFailed(
            "the tuner plug-in must know the collective", collective, f"it knows {', '.join(COLLECTIVES)}"
        )
    if not entries:
        known = [method for method, name in METHODS.items() if collective in ALGORITHMS[name].collectives]
        rule = f"a table for NCCL needs a complete trial of a method that it has: nccl:ring, or {' or '.join(known)}"
        raise CheckFailed(rule, "none", "add one of them to search.methods")
    middles = [math.isqrt(low.size_bytes * high.size_bytes) for low, high in pairwise(entries)]
    first = [entries[0].size_bytes, *(middle + 1 for middle in middles)]
    last = [*middles, entries[-1].size_bytes]
    spans = zip(entries, first, last, strict=True)
    rows = []
    for settings, group in groupby(spans, key=lambda span: span[0].settings):
        found = list(group)
        rows.append(tuner_row(collective, settings, ranks, found[0][1], found[-1][2]))
    return tuner_csv([row for row in rows if row is not None])


@dataclass(frozen=True, slots=True)
class NcclChoice:
    """Settings for sizes of the whole vector from min_bytes to max_bytes (None: no limit), both included."""

    collective: str
    min_bytes: int
    max_bytes: int | None
    settings: LibrarySettings


def settings_by_size(table: Table, dtype: str | None = None) -> list[NcclChoice]:
    """Return what `table` says for NCCL or RCCL; raises as `builtin_choices` does."""
    names = {collective: {name: name for name in (*METHODS, *ALGORITHMS)} for collective in COLLECTIVES}
    plain = builtin_choices(table, names, dtype, with_settings=True)
    choices = [NcclChoice(each.collective, each.min_bytes, each.max_bytes, _nccl_settings(each)) for each in plain]
    kept = [each for each in choices if settings_fault(CollectiveName(each.collective), each.settings) is None]
    if not kept:
        rule = "the table must say where an algorithm of NCCL is the best"
        raise CheckFailed(rule, "no entry does", "tune with methods such as nccl:ring and nccl:tree")
    return kept


def _nccl_settings(choice: BuiltinChoice) -> LibrarySettings:
    if choice.settings is not None:
        return choice.settings
    name = METHODS.get(choice.algorithm, choice.algorithm)
    protocol = choice.protocol if choice.protocol in get_args(Protocol) else "Simple"
    return LibrarySettings(name, protocol, choice.channels if choice.channels > 0 else None)


def nccl_table_csv(table: Table, dtype: str | None = None, own_channels: int = 0) -> str:
    """Return the CSV of `table` for NCCL; raises the errors of `builtin_choices`, and CheckFailed if no row can express
    it.

    own_channels: value that leaves the number of channels to the library: 0 for NCCL, -1 for RCCL, which has no chunks
    """
    rows = []
    for each in settings_by_size(table, dtype):
        settings = replace(each.settings, chunk_bytes=None) if own_channels < 0 else each.settings
        rows.append(tuner_row(each.collective, settings, table.ranks, each.min_bytes, each.max_bytes, own_channels))
    written = [row for row in rows if row is not None]
    if not written:
        rule = "a tuner must be able to choose what the table says"
        raise CheckFailed(
            rule, "symmetric kernels, which run by themselves on registered windows", "tune other methods"
        )
    return tuner_csv(written)


def nccl_variables(table: Table, dtype: str | None = None) -> dict[str, str]:
    """Return the environment variables that every process of a job needs in addition to the rows of a table.

    Raises InvalidInput if entries need different values, since a process has each variable once.
    """
    found: dict[str, str] = {}
    for each in settings_by_size(table, dtype):
        wanted = process_variables(each.settings)
        if each.settings.cta_policy is not None:
            wanted["NCCL_CTA_POLICY"] = str(CTA_POLICIES[each.settings.cta_policy])
        for name, value in wanted.items():
            if found.setdefault(name, value) != value:
                rule = f"all entries of a table must have the same {name}, which a process reads once"
                raise InvalidInput(rule, f"{found[name]} and {value}", "tune with one value of it")
    return found


def nccl_call_configs(table: Table, dtype: str | None = None) -> list[dict[str, Any]]:
    """Return for each range of sizes the fields of ncclCollConfig_t that say the same, for calls from NCCL 2.31 on."""
    configs = []
    for each in settings_by_size(table, dtype):
        settings = each.settings
        algorithm = ALGORITHMS.get(settings.algorithm)
        names = None if algorithm is None else f"{algorithm.variable}_{settings.protocol}".upper()
        fields = {
            "algSelection": names,
            "maxCTAs": settings.ctas,
            "CTAPolicy": CTA_POLICIES.get(settings.cta_policy or ""),
        }
        document = {"collective": each.collective, "min_bytes": each.min_bytes, "max_bytes": each.max_bytes}
        configs.append(document | {"config": {name: value for name, value in fields.items() if value is not None}})
    return configs


AWS_HEADER = "nodes,ranks,size,channels,algorithm,protocol"


def aws_csv(table: Table, dtype: str | None = None, nodes: int = 1) -> str:
    """Return the allreduces of `table` in the format of aws-ofi-nccl's show-tuner-decisions, a row for each power of
    two in MiB; `none` if the table leaves the choice to NCCL. nodes: number of nodes of the ranks

    The tuner of aws-ofi-nccl has built-in regions and reads no file: compare this with its output.
    """
    choices = [each for each in settings_by_size(table, dtype) if each.collective == "allreduce"]
    lines = [AWS_HEADER]
    for power in range(16):
        size_bytes = 2**20 << power
        fitting = [each for each in choices if each.min_bytes <= size_bytes <= (each.max_bytes or NO_LIMIT)]
        what = "0,none,none"
        if fitting:
            settings = fitting[0].settings
            name = settings.algorithm.replace("_", "")
            what = f"{settings.ctas or 0},{name},{(settings.protocol or 'none').lower()}"
        lines.append(f"{nodes},{table.ranks},{1 << power}MiB,{what}")
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
    """Return the default tree in `library`, the content of a libmpi.so. Raises Unavailable if it has none."""
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

    Raises CheckFailed if it has no program of an allreduce, or one that is not valid as a plan.
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
