"""Rules by which Open MPI's component `tuned` chooses among its algorithms: the classic file, and the JSON of 6.0.

Numbers and names are those that `ompi_info --param coll tuned --level 9` of 5.0 lists, and sizes those of the whole
vector, as Open MPI's page "Tuning Collectives" has them. In the classic file a rule holds from its size, and the rules
of a number of ranks from that number, up to the next; algorithm 0 is whatever Open MPI chooses itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from chorale.job.table.model import Table
from chorale.tuner.reports.library_files.choices import BuiltinChoice, builtin_choices

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
NAMES = {
    collective: {
        **{method: name for method, name in _METHODS.items() if name in known},
        **{name: name for name in known},
        **({"rabenseifner": "recursive_halving"} if collective == "reduce_scatter" else {}),
    }
    for collective, known in ALGORITHM_IDS.items()
}


def open_mpi_rules(table: Table, dtype: str | None = None) -> str:
    """Return the classic file, for communicators of exactly the ranks of `table`; raises as `builtin_choices` does."""
    groups = _by_collective(builtin_choices(table, NAMES, dtype))
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
                "rules": [_json_rule(choice) for choice in choices],
            }
        ]
        for collective, choices in _by_collective(builtin_choices(table, NAMES, dtype))
    }
    document = {"rule_file_version": 3, "module": "tuned", "collectives": collectives}
    return json.dumps(document, indent=1) + "\n"


def _json_rule(choice: BuiltinChoice) -> dict[str, int | str]:
    last = "inf" if choice.max_bytes is None else choice.max_bytes
    return {"msg_size_min": choice.min_bytes, "msg_size_max": last, "alg": choice.algorithm}


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
