"""The tree by which MPICH chooses its algorithms, for `MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE`.

A file must have all collectives: MPICH 5.0.2 ends with a failed assertion for a collective that is not in it. So its
default tree, which is a JSON text in the library, is taken, and changed for the ranks and sizes of a table. Keys are
conditions, tried in order; sizes are those of the whole vector where the library's own tree uses the same condition.
Algorithms that need more than that (powers of two, built-in commutative operations) stay behind the conditions that
the default tree has for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from chorale.job.table.model import Table
from chorale.synth.errors import CheckFailed, Unavailable
from chorale.tuner.reports.library_files.choices import BuiltinChoice, builtin_choices

Tree = dict[str, Any]
LARGEST = 2**31 - 1
"""Limits are read as C's int."""

_SIZES = {"allreduce": "avg_msg_size", "allgather": "total_msg_size", "reduce_scatter": "total_msg_size"}
_COLLECTIVES = {"allreduce": "allreduce", "allgather": "allgather", "reduce_scatter": "reduce_scatter_block"}
NAMES = {
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
    choices = builtin_choices(table, NAMES, dtype)
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
