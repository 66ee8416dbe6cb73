"""Tables of four ranks, and of the rows and columns of a mesh of two by two."""

from collections.abc import Iterable
from pathlib import Path

from chorale.job.table.layout import ANY_DTYPE, JobEntry, Table, TableProgram, table_bytes
from chorale.job.table.verification import table_program
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.method import Options
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify

SYMMETRIC = ("allreduce", "allgather", "reduce_scatter")
MESH = ((0, 1), (2, 3), (0, 2), (1, 3))
LARGEST = 1 << 20
"""Vectors of more bytes are the library's."""


def program_for(
    collective: str, root: int | None = None, ranks: int = 4, spec: str = "", method: str = "", channels: int = 1
) -> TableProgram:
    topology = parse_topology(spec or (f"ring:{ranks}" if ranks > 2 else "complete:2"))
    wanted = Collective(CollectiveName(collective), root)
    method = method or ("ring" if root is None and ranks > 2 else "forest")
    source = ScheduleRequest(topology, wanted, method, Options(), 1)
    built = build(BuildRequest(source, LoweringOptions("oneccl-xml", channels)))
    assert isinstance(built, BuildResult)
    return table_program(built.program_text.encode(), "oneccl-xml", method, {})


def alltoall_program(ranks: int = 4) -> TableProgram:
    schedule = verify(alltoall_schedule(parse_topology(f"ring:{ranks}"), 2))
    text = target_named("oneccl-xml").emit(lower(schedule, LoweringOptions("oneccl-xml")))
    return table_program(text.encode(), "oneccl-xml", "alltoall", {})


def whole_table() -> Table:
    """Every collective on four ranks, with roots 0 and 2, and the symmetric ones on pairs."""
    programs: list[tuple[tuple[int, ...] | None, TableProgram]] = [(None, program_for(name)) for name in SYMMETRIC] + [
        (None, alltoall_program())
    ]
    programs += [(None, program_for(name, root)) for name in ("broadcast", "reduce") for root in (0, 2)]
    programs += [(group, program_for(name, ranks=2)) for name in SYMMETRIC for group in MESH]
    return table_of("ring:4", 4, ((program, group, 0, LARGEST) for group, program in programs))


Chosen = tuple[TableProgram, tuple[int, ...] | None, int, int | None]
"""A program, its group, and the first and last size in bytes at which it runs."""


def table_of(spec: str, ranks: int, chosen: Iterable[Chosen]) -> Table:
    programs = list(chosen)
    entries = tuple(
        JobEntry(program.collective, ANY_DTYPE, group, program.root, first, last, program.digest)
        for program, group, first, last in programs
    )
    return Table({"spec": spec}, ranks, entries, {program.digest: program for program, *_ in programs})


def library_table(ranks: int = 2) -> Table:
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, None)
    return Table({"spec": f"complete:{ranks}"}, ranks, (entry,), {})


def written(table: Table, path: Path) -> Path:
    path.write_bytes(table_bytes(table))
    return path
