"""Plan tuning tables for the remaining part of a network, with verified programs and their gaps to the bound."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chorale.job.settings import table_key
from chorale.job.table.layout import ANY_DTYPE, GroupEntries, JobEntry, Table, TableProgram, table_bytes
from chorale.job.table.merging import SizeRange
from chorale.job.table.verification import table_program
from chorale.synth.build.build import build_program, verified_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.program import Program
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.targets.lift import lift
from chorale.synth.topology.topology import Topology
from chorale.tuner.costs.pricing import simulate_program
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.reports import job_tables

TARGET = "oneccl-xml"


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Describes the tables to plan: for each collective and size, the program that is predicted to be the fastest.

    sizes_bytes: sizes in ascending order
    methods:     synthesis methods that compete
    model:       network model with which the times are predicted
    """

    collectives: tuple[str, ...]
    sizes_bytes: tuple[int, ...]
    methods: tuple[str, ...]
    model: NetworkModel


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A tuning table that was planned for one state of a fabric.

    spec:    spec of the network for which the table was planned
    data:    the encoded table; `digest` is the checksum in its second line
    costs:   for each collective, the shortest time per byte that a program achieves and the certified bound, both in
             1 / bandwidth_unit, and the gap between them
    seconds: time that it took to synthesize, verify and encode the table
    """

    spec: str
    table: Table
    data: bytes
    digest: str
    costs: Mapping[str, Mapping[str, str]]
    seconds: float


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A checked program. Its certificate has the time per byte, the bound and the gap on the network of the plan."""

    entry: TableProgram
    program: Program
    certificate: Mapping[str, Any]


Choice = Mapping[tuple[str, int], _Candidate]
"""(collective, size in bytes) -> program to run at this size and at all sizes closer to it than to other entries."""


class Planner:
    """Plans tuning tables for the states of one fabric, and caches the plans. Thread-safe."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        self._plans: dict[str, TablePlan] = {}

    def plan(self, spec: str) -> TablePlan:
        """Return the plan for network `spec`. Raises InvalidInput if the network is disconnected or suits no method."""
        if spec not in self._plans:
            began_s = time.perf_counter()
            topology = load_topology(spec)
            candidates = {name: list(self._candidates(topology, name)) for name in self._request.collectives}
            choice = {key: self._fastest(topology, candidates[key[0]], key[1]) for key in self._keys()}
            self._plans[spec] = self._plan_of(spec, topology, choice, began_s)
        return self._plans[spec]

    def has(self, spec: str) -> bool:
        return spec in self._plans

    def with_present(self, plan: TablePlan, present: Table, sizes: Iterable[tuple[str, int]]) -> TablePlan:
        """Return `plan` with the programs of the table `present` at `sizes`, which are pairs of collective and size.

        Raises InvalidInput if `present` has no program for one of `sizes`.
        """
        topology = load_topology(plan.spec)
        choice = {key: _of_table(plan.table, topology, *key) for key in self._keys()}
        choice |= {key: _of_table(present, topology, *key) for key in sizes}
        return self._plan_of(plan.spec, topology, choice, time.perf_counter())

    def adopt(self, plan: TablePlan) -> None:
        self._plans[plan.spec] = plan

    def _plan_of(self, spec: str, topology: Topology, choice: Choice, began_s: float) -> TablePlan:
        rows = [row for name in self._request.collectives for row in self._rows(name, choice)]
        table = job_tables.assemble(rows, topology, job_tables.JobGroup(), (ANY_DTYPE,), {"source": "watch"})
        data = table_bytes(table, table_key())
        digest = data.split(b"\n", 2)[1].split()[3].decode()
        costs = {}
        for name in self._request.collectives:  # costs of the program with the shortest time per byte
            certificates = [each.certificate for (collective, _), each in choice.items() if collective == name]
            best = min(certificates, key=lambda each: Fraction(each["achieved"]))
            costs[name] = {key: best[key] for key in ("achieved", "lower_bound", "gap")}
        return TablePlan(spec, table, data, digest, costs, time.perf_counter() - began_s)

    def _keys(self) -> list[tuple[str, int]]:
        return [(name, size) for name in self._request.collectives for size in self._request.sizes_bytes]

    def _candidates(self, topology: Topology, collective: str) -> Iterator[_Candidate]:
        """Yield a checked program of each method that supports the network. If none does, raise the last error."""
        failure: ChoraleError | None = None
        count = 0
        for method in self._request.methods:
            try:
                candidate = _candidate(topology, collective, method)
            except ChoraleError as error:  # other methods may support the network
                failure = error
                continue
            count += 1
            yield candidate
        if not count and failure is not None:
            raise failure

    def _fastest(self, topology: Topology, candidates: Sequence[_Candidate], size_bytes: int) -> _Candidate:
        model = self._request.model
        return min(candidates, key=lambda each: simulate_program(each.program, topology, model, size_bytes, None).end_s)

    def _rows(self, collective: str, choice: Choice) -> Iterator[job_tables.Row]:
        sizes = self._request.sizes_bytes
        first = 0
        for size, following in zip(sizes, (*sizes[1:], None), strict=True):
            candidate = choice[collective, size]
            if following is not None and choice[collective, following].entry.digest == candidate.entry.digest:
                continue
            last = None if following is None else (size + following) // 2
            what = parse_collective(collective), SizeRange(first, last)
            yield job_tables.table_row(*what, candidate.entry, None, candidate.certificate)
            first = 0 if last is None else last + 1


def table_entry(table: Table, collective: str, size_bytes: int) -> TableProgram | None:
    """Return the program in `table` that all ranks run at a size, or None if the library's own algorithm runs."""
    entry = GroupEntries.of(table, range(table.ranks)).find(collective, None, ANY_DTYPE, size_bytes)
    return table.programs[str(entry.program)] if isinstance(entry, JobEntry) else None


def _of_table(table: Table, topology: Topology, collective: str, size_bytes: int) -> _Candidate:
    entry = table_entry(table, collective, size_bytes)
    if entry is None:
        rule = "a table that is kept at a size must have a program there"
        raise InvalidInput(rule, f"{collective} at {size_bytes} bytes", "leave the size out")
    program = lift(entry.text)
    return _Candidate(entry, program, job_tables.program_certificate(program, topology))


def _candidate(topology: Topology, collective: str, method: str) -> _Candidate:
    """Synthesize a schedule with `method` and lower it. An allreduce uses two phases of trees, not pairs of trees.

    Pairs of trees take long to plan, and they reach the bound only if data flow through them without pauses.
    """
    if (method, collective) == ("forest", "allreduce"):
        method = "forest-phases"
    verified = verified_schedule(ScheduleRequest(topology, parse_collective(collective), method))
    program = build_program(verified, LoweringOptions(TARGET))
    schedule = verified.schedule
    entry = table_program(program.text.encode(), TARGET, schedule.method, {"chunks": schedule.chunks_per_shard})
    return _Candidate(entry, program.program, job_tables.schedule_certificate(verified))
