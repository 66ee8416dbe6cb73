"""Tuning tables for jobs: made of programs that are checked, for a group of ranks on a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from chorale.job.table.merging import SizeRange, require_disjoint, sort_key
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table, TableProgram
from chorale.job.table.verification import SWITCHES, table_program, text_violations, unlinked
from chorale.runners.engine.library import DataType
from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.bounds.lower_bound import bound_of_ranks, bound_of_schedule
from chorale.synth.bounds.optimum import Bound
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.catalog import METHODS
from chorale.synth.names import unknown_name
from chorale.synth.programs.program import Program
from chorale.synth.targets.judge import reachability
from chorale.synth.targets.lift import lift
from chorale.synth.targets.mscclpp_reading import is_plan_text
from chorale.synth.targets.xml_reading import MAX_TEXT_BYTES
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.pricing import program_time_per_byte
from chorale.tuner.files.program_files import load_unchecked
from chorale.tuner.files.read_write import read_file
from chorale.tuner.files.topology_specs import absolute_spec, load_topology
from chorale.tuner.reports.topology import describe_topology

DTYPES = (ANY_DTYPE, *(item.name.lower() for item in DataType))


@dataclass(frozen=True, slots=True)
class RangeRow:
    """What runs in a range of sizes, whatever the type of elements; see `JobEntry` for the fields."""

    collective: str
    root: int | None
    sizes: SizeRange
    program: TableProgram | None
    measured: Mapping[str, Any] | None = None
    certificate: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobGroup:
    """Which ranks of a job a table is for.

    ranks:   in the order of the program's ranks; None for all in their order
    of_job:  how many ranks the job has; None for as many as the network has
    """

    ranks: tuple[int, ...] | None = None
    of_job: int | None = None

    def job_ranks(self, otherwise: int) -> int:
        """Return how many ranks the job has, where its network or its program has `otherwise`."""
        return otherwise if self.of_job is None else self.of_job

    def check(self, program_ranks: int, job_ranks: int) -> None:
        """Raise InvalidInput unless the group is one of a job of `job_ranks`, and as large as its programs."""
        ranks = range(job_ranks) if self.ranks is None else self.ranks
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(job_ranks)):
            value = f"{','.join(map(str, ranks))} of {job_ranks} ranks"
            way_out = "name each rank once, and the number of ranks of the job with --ranks"
            raise InvalidInput("a group must be of ranks of the job", value, way_out)
        if len(ranks) != program_ranks:
            value = f"{len(ranks)} ranks for programs of {program_ranks}"
            way_out = "name the ranks that run them with --group, and those of the job with --ranks"
            raise InvalidInput("a group must have as many ranks as its programs", value, way_out)


def parse_group(text: str) -> tuple[int, ...]:
    """Return the ranks in a list such as 0,2,4,6."""
    if not text or not all(part.strip().isdecimal() for part in text.split(",")):
        raise InvalidInput("a group must be a list of ranks", text, "write them with commas, such as 0,2,4,6")
    return tuple(int(part) for part in text.split(","))


def parse_dtypes(text: str) -> tuple[str, ...]:
    """Return the element types in a list such as float32,bfloat16; `any` stands for all of them."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in DTYPES:
            raise unknown_name("element type", name, DTYPES)
    return names


def assemble(
    rows: Sequence[RangeRow],
    network: Topology | None,
    group: JobGroup,
    dtypes: Sequence[str],
    provenance: Mapping[str, Any],
    *,
    network_is_of_job: bool | None = None,
) -> Table:
    """Return the table of `rows` (at least one), with an entry per row and type.

    network:           None for one that is not known
    network_is_of_job: whether its ranks are those of the job rather than of the programs; by default it is if the
                       group has all ranks in their order

    InvalidInput for entries of the same sizes and for a group that does not fit.
    """
    sizes = [row.program.ranks for row in rows if row.program is not None]
    program_ranks = sizes[0] if sizes else 0 if network is None else network.compute_count
    job_ranks = group.job_ranks(program_ranks if network is None else network.compute_count)
    for size in set(sizes) or {program_ranks}:
        group.check(size, job_ranks)
    ranks = None if group.ranks == tuple(range(job_ranks)) else group.ranks
    entries = [
        JobEntry(
            row.collective,
            dtype,
            ranks,
            row.root,
            row.sizes.first,
            row.sizes.last,
            None if row.program is None else row.program.digest,
            row.measured,
            row.certificate,
            dict(row.provenance),
        )
        for row in rows
        for dtype in dtypes
    ]
    require_disjoint(entries, "write a table for each, and join them with `chorale table merge --prefer`")
    of_job = ranks is None if network_is_of_job is None else network_is_of_job
    return Table(
        {} if network is None or not of_job else network_document(network),
        job_ranks,
        tuple(sorted(entries, key=sort_key)),
        {row.program.digest: row.program for row in sorted(rows, key=_digest) if row.program is not None},
        {**provenance, "code_version": version("chorale-collectives")},
    )


def network_document(network: Topology) -> dict[str, Any]:
    """Return the facts of a network that a table holds."""
    return {**describe_topology(network), "spec": absolute_spec(network.spec)}


def checked_program(
    text: bytes, name: str, method: str | None = None, parameters: Mapping[str, Any] | None = None
) -> tuple[Program, TableProgram]:
    """Return the program in `text` after checking it, and the same as a table has it.

    method, parameters: how it was made; by default what the program says itself

    InvalidInput for what the engine does not execute, CheckFailed for a program that does not do what its collective
    says; both name it by `name`.
    """
    if is_plan_text(text):
        value, way_out = f"{name}: a plan for MSCCL++", "lower the schedule with --target oneccl-xml or msccl-xml"
        raise InvalidInput("jobs execute XML programs", value, way_out)
    for rule, message in text_violations(text):
        if rule == SWITCHES:
            way_out = "choose programs of ranks alone; campaigns for jobs have them without the method in-network"
            raise InvalidInput("jobs have processes for ranks only", f"{name}: {message}", way_out)
        raise CheckFailed(
            f"a program must do what its collective says ({rule})", f"{name}: {message}", "lower it again"
        )
    program = lift(text)
    making = method or _method_of(program), parameters or _shape(program)
    return program, table_program(text, program.target, *making)


def _method_of(program: Program) -> str:
    """Return the method in a name such as `allgather bfb torus:4x4`, or else nothing."""
    words = program.name.split()
    return words[1] if len(words) == 3 and words[1] in METHODS else ""


def _shape(program: Program) -> dict[str, Any]:
    return {name: getattr(program, name) for name in ("chunks", "channels", "protocol", "in_place")}


def schedule_certificate(verified: VerifiedSchedule) -> dict[str, Any]:
    """Return how far a schedule is from a bound on all schedules, with the bound's certificate, checked."""
    schedule = verified.schedule
    bound = bound_of_schedule(schedule, verified.cost.time_per_byte)
    return _gap_document(schedule.topology, schedule.collective, verified.cost.time_per_byte, bound) | {
        "schedule_id": schedule.id
    }


def program_certificate(program: Program, network: Topology) -> dict[str, Any]:
    """Return how far a program is from a bound on all schedules, with the bound's certificate, checked."""
    return bound_certificate(network, program.collective, program_time_per_byte(program, network))


def bound_certificate(network: Topology, collective: Any, achieved: Any) -> dict[str, Any]:
    """Return how far `achieved`, a time per byte of ranks alone, is from the bound, with the checked certificate."""
    return _gap_document(network, collective, achieved, bound_of_ranks(network, collective, achieved))


def _gap_document(network: Topology, collective: Any, achieved: Any, bound: Bound) -> dict[str, Any]:
    certificate = bound.to_json(network)
    check_certificate(network, collective, certificate)
    return {
        "lower_bound": str(bound.value),
        "achieved": str(achieved),
        "gap": str(achieved / bound.value - 1),
        "certificate": dict(certificate),
    }


def table_of_files(
    files: Sequence[str], sizes: SizeRange, spec: str | None, group: JobGroup, dtypes: Sequence[str]
) -> Table:
    """Return the table of program files, each for all of `sizes`.

    spec: the network, of the job or of the group; by default the one in the names that `chorale lower` gives
    """
    given = None if spec is None else load_topology(spec)
    rows, network = [], given
    for file in files:
        row, network = _row_of_file(file, sizes, given, group)
        rows.append(row)
    of_job = network is not None and network.compute_count == group.job_ranks(network.compute_count)
    whole = of_job and (group.ranks is None or given is not None)
    return assemble(rows, network, group, dtypes, {"source": "programs"}, network_is_of_job=whole)


def _row_of_file(
    file: str, sizes: SizeRange, given: Topology | None, group: JobGroup
) -> tuple[RangeRow, Topology | None]:
    text = read_file(file, MAX_TEXT_BYTES)
    lifted, program = checked_program(text, file)
    network = given or _named_network(file, program)
    _require_within(file, lifted, sizes)
    certificate = None
    if network is not None:
        job_ranks = group.job_ranks(network.compute_count)
        group.check(program.ranks, job_ranks)
        of_job = given is not None and network.compute_count == job_ranks
        ranks = group.ranks if of_job and group.ranks is not None else tuple(range(program.ranks))
        require_links(file, text, ranks, network)
        if ranks == tuple(range(network.compute_count)):
            certificate = program_certificate(lifted, network)
            certificate |= {"schedule_id": lifted.origin} if lifted.origin else {}
    origin = {"name": lifted.name} | ({} if network is None else {"topology": {"spec": network.spec, "id": network.id}})
    row = RangeRow(program.collective, program.root, sizes, program, None, certificate, origin)
    return row, network


def _named_network(file: str, program: TableProgram) -> Topology | None:
    """Return the network that the name of a program says, None where it says none."""
    try:
        network, _ = load_unchecked(file, None)
    except InvalidInput:
        return None
    return network if network.compute_count == program.ranks else None


def require_links(name: str, text: bytes, ranks: tuple[int, ...], network: Topology) -> None:
    """Raise CheckFailed if a program sends between `ranks` that no path of links joins, InvalidInput if the network
    lacks one of them."""
    if any(rank >= network.compute_count for rank in ranks):
        value = f"{network.spec} of {network.compute_count} ranks, rank {max(ranks)}"
        raise InvalidInput("the network must have the ranks that run a program", value, "name another with --topology")
    for src, dst in unlinked(text, ranks, reachability(network)):
        value = f"{name}: rank {ranks[src]} sends to rank {ranks[dst]}"
        raise CheckFailed(f"a program must send where {network.spec} has a path", value, "make one for this network")


def _require_within(file: str, program: Program, sizes: SizeRange) -> None:
    """Raise InvalidInput if the program says itself that some of the sizes are not for it."""
    own = SizeRange(program.min_bytes, program.max_bytes or None)
    if sizes.without([own]):
        raise InvalidInput("the sizes must be those that the program is for", f"{file}: {own}", "give --sizes within")


def _digest(row: RangeRow) -> str:
    return "" if row.program is None else row.program.digest
