"""Tables of random programs for eight ranks and some groups of them."""

import random
from functools import cache

from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table, TableProgram
from chorale.job.table.verification import table_program
from chorale.synth.collective import STANDARD, CollectiveName
from chorale.synth.methods.catalog import METHODS
from chorale.synth.targets.registry import target_named
from tests.live.engine.programs import ALLTOALL_METHOD, random_program
from tests.live.job.random_calls import LARGEST_BYTES
from tests.live.job.torch.tables import SYMMETRIC, alltoall_program, program_for

GROUPS = (
    *((0, 1, 2, 3, 4, 5, 6, 7), (0, 1, 2, 3), (4, 5, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7)),
    *((0, 4), (1, 5), (2, 3, 6)),
)
"""The table has programs for the first ones, and for the last but one; the last is gloo's."""
NETWORKS = ("ring:8", "hypercube:3", "circulant:8,1,3", "torus:4x2")


def random_table(seed: int) -> bytes:
    """Return a table as a file has it, the same for the same seed."""
    draw = random.Random(seed)
    entries, programs = [], {}
    for group, program, first, last in _choice(draw):
        programs[program.digest] = program
        entries.append(JobEntry(program.collective, ANY_DTYPE, group, program.root, first, last, program.digest))
    return table_bytes(Table({"spec": "random"}, 8, tuple(entries), programs))


def _choice(draw: random.Random) -> list[tuple[tuple[int, ...] | None, TableProgram, int, int]]:
    chosen: list[tuple[tuple[int, ...] | None, TableProgram, int, int]] = []
    for name in STANDARD:
        border = draw.choice((100, 4000, 30_000))
        first = _of_eight(draw, name)
        chosen.append((None, first, 0, border - 1))
        second = _of_eight(draw, name)
        chosen.append((None, second, border if second.root == first.root else 0, LARGEST_BYTES))
    for group in GROUPS[1:5]:
        chosen += [(group, program, 0, LARGEST_BYTES) for program in _of_four()]
    chosen += [(group, program, 0, LARGEST_BYTES) for group in GROUPS[5:7] for program in _of_two()]
    return chosen


def _of_eight(draw: random.Random, name: CollectiveName) -> TableProgram:
    methods = [method for method, made in METHODS.items() if name in made.collectives]
    while True:
        program = random_program(draw, NETWORKS, methods or [ALLTOALL_METHOD])
        if program.collective.name == name:
            return table_program(target_named(program.target).emit(program).encode(), program.target, "random", {})


@cache
def _of_four() -> list[TableProgram]:
    symmetric = [program_for(name) for name in SYMMETRIC]
    return [*symmetric, program_for("broadcast", 1), program_for("reduce", 2), alltoall_program()]


@cache
def _of_two() -> list[TableProgram]:
    return [program_for(name, ranks=2) for name in SYMMETRIC]
