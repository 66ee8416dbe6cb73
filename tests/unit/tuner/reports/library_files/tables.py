"""Tables for exports."""

from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.job.table.verification import table_program
from chorale.synth.build.build import build
from chorale.synth.build.request import BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology


def own(baseline: str, first: int, last: int | None, collective: str = "allreduce", dtype: str = ANY_DTYPE) -> JobEntry:
    """Return an entry where the library was the best."""
    return JobEntry(collective, dtype, None, None, first, last, None, provenance={"baseline": baseline})


def table_of(*entries: JobEntry, ranks: int = 8) -> Table:
    """Return a table without programs."""
    return Table({"spec": "any"}, ranks, entries, {})


def ring_table(first: int = 1024, last: int | None = 2**20, target: str = "msccl-xml") -> Table:
    """Return the table of a ring of four with two channels, for one range of sizes."""
    source = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "ring", Options(), 1)
    built = build(BuildRequest(source, LoweringOptions(target, channels=2)))
    assert isinstance(built, BuildResult)
    parameters = {"method": "ring", "channels": 2, "instances": 1, "protocol": "LL"}
    program = table_program(built.program_text.encode(), target, "ring", parameters)
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, first, last, program.digest)
    return Table({"spec": "ring:4"}, 4, (entry,), {program.digest: program})
