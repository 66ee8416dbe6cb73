"""RecordedRunner: replays measurements from another machine, so that tuning can be developed without that machine."""

import re
from collections.abc import Iterator

from chorale.runners.api.base import (
    FailureKind,
    Measurement,
    Outcome,
    ProgramSettings,
    RunFailure,
    RunRequest,
    SizeMeasurement,
    library_result,
)
from chorale.runners.api.units import format_size
from chorale.runners.api.validation import RequestFault, validate_request
from chorale.runners.execution.rounds import RunStopped
from chorale.runners.measurement.machine import environment_id
from chorale.runners.recorded.table import MI250_SOURCE, RecordedConfiguration, RecordedTable, mi250_table
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

TOPOLOGIES = {"mi250_8+8": "mi250half:2", "mi250_16+16": "mi250:2"}
"""Name of a fabric in the shipped table -> spec of its topology."""

RECORDED_DTYPE = "float32"  # element type of all recorded runs
DEFAULT_BUFFER_BYTES = 2**22  # the runtime's default
_NAMED = re.compile(r"\(k([1-9][0-9]*),inst([1-9][0-9]*)\)")  # parameters in recorded programs' names


class RecordedRunner:
    """Implements `Runner` without running anything. It looks up recorded times by a program's settings and does not
    look at its instructions, which may differ from the recorded ones.

    A program gets the times of one of `generator`'s recorded schedules for the same collective, placement (in place or
    not) and buffer size: `schedule` if that is given, otherwise the one with the program's k and instances. k and
    instances come from `RunRequest.settings`, or else from the program's name. Repetitions are drawn with the request's
    seed (see `chorale.runners.recorded.table`), so identical requests have identical outcomes. Programs that were not
    recorded, or for which the runtime fell back to the library, are rejected. The times of the algorithm `rccl` are
    those of the library's fastest recorded launch at each size, whatever its settings.
    """

    name = "recorded"

    def __init__(
        self,
        table: RecordedTable | None = None,
        generator: str = "ForestColl",
        buffer_bytes: int | None = None,
        schedule: str | None = None,
    ) -> None:
        """Choose the recorded measurements to replay.

        table:        recorded measurements; None for the shipped table
        generator:    generator of the schedules to look up
        schedule:     recorded schedule whose times every program gets; None to choose it by k and instances
        buffer_bytes: buffer size for programs that do not set one; None for the runtime's default
        """
        self._table = mi250_table() if table is None else table
        self._generator = generator
        self._schedule = schedule
        self._buffer_bytes = DEFAULT_BUFFER_BYTES if buffer_bytes is None else buffer_bytes

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the names of vendor libraries for which `collective` was recorded on any fabric."""
        table = self._table
        made = (one for fabric in table.fabrics for one in table.libraries(fabric, collective))
        return tuple(dict.fromkeys(one.origin.generator.lower() for one in made))

    def submit(self, request: RunRequest) -> Outcome:
        """Return the recorded times of every program and library algorithm at every size."""
        facts: dict[str, str | int | float | None] = {
            "runner": self.name,
            "source": MI250_SOURCE if self._table is mi250_table() else "a table that was given",
            "generator": self._generator,
            "schedule": self._schedule,
            "buffer_bytes": self._buffer_bytes,
            "repetitions": "drawn from recorded launches",
        }
        environment = {**facts, "environment_id": environment_id(facts)}
        if (fault := validate_request(request, self.library, _faults)) is not None:
            return RunFailure(*fault, environment=environment)
        try:
            return Measurement(self.name, dict(self._results(request)), environment)
        except RunStopped as refused:
            return RunFailure(refused.kind, refused.message, environment=environment)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _results(self, request: RunRequest) -> Iterator[tuple[str, tuple[SizeMeasurement, ...]]]:
        fabric = self._fabric(request.topology)
        for name, program in request.without_plans.items():
            named = _NAMED.search(program.name)
            in_name = ProgramSettings() if named is None else ProgramSettings(k=int(named[1]), instances=int(named[2]))
            settings = request.settings.get(name) or in_name
            configuration = self._configuration(fabric, name, program, settings)
            yield name, tuple(self._at(request, name, configuration, size) for size in request.sizes_bytes)
        program = next(iter(request.without_plans.values()))
        for algorithm in request.library:
            configuration = self._library(fabric, program, algorithm)
            name = library_result(algorithm)
            yield name, tuple(self._at(request, name, configuration, size) for size in request.sizes_bytes)

    def _fabric(self, topology: Topology) -> str:
        for fabric in self._table.fabrics:
            if fabric in TOPOLOGIES and parse_topology(TOPOLOGIES[fabric]).id == topology.id:
                return fabric
        known = ", ".join(TOPOLOGIES[fabric] for fabric in self._table.fabrics if fabric in TOPOLOGIES)
        raise RunStopped(FailureKind.REJECTED, f"nothing was recorded on {topology.spec}, only on {known}")

    def _configuration(
        self, fabric: str, name: str, program: Program, settings: ProgramSettings
    ) -> RecordedConfiguration:
        collective = program.collective.name.value
        made = [
            one for one in self._table.configurations(fabric, collective) if one.origin.generator == self._generator
        ]
        buffer_bytes = settings.buffer_bytes or self._buffer_bytes
        for one in made:
            is_wanted = (one.origin.k, one.origin.instances) == (settings.k, settings.instances)
            if self._schedule is not None:
                is_wanted = one.origin.schedule == self._schedule
            if is_wanted and one.in_place == program.in_place and one.buffer_bytes == buffer_bytes:
                return one
        wanted = f"k {settings.k}, {settings.instances} instances" if self._schedule is None else self._schedule
        there = sorted(
            {
                one.origin.schedule
                if self._schedule is not None or one.origin.k is None
                else f"k {one.origin.k} with {one.origin.instances} instances"
                for one in made
            }
        )
        buffers = sorted({one.buffer_bytes for one in made if one.buffer_bytes is not None})
        raise RunStopped(
            FailureKind.REJECTED,
            f"program {name}: no {collective} of {self._generator} was recorded on {fabric} with {wanted} and buffers "
            f"of {format_size(buffer_bytes)}, only {', '.join(there) or 'none'}, and buffers of "
            f"{', '.join(map(format_size, buffers)) or 'none'}",
        )

    def _library(self, fabric: str, program: Program, algorithm: str) -> RecordedConfiguration:
        collective = program.collective.name.value
        for one in self._table.libraries(fabric, collective):
            if one.origin.generator.lower() == algorithm and one.in_place == program.in_place:
                return one
        known = ", ".join(self.library(collective)) or "none"
        raise RunStopped(
            FailureKind.REJECTED,
            f"the library algorithm {algorithm} was not recorded for {collective} on {fabric}, only {known}",
        )

    def _at(
        self, request: RunRequest, name: str, configuration: RecordedConfiguration, size_bytes: int
    ) -> SizeMeasurement:
        table = self._table
        try:
            if (correct := table.is_correct(configuration, size_bytes)) is False:
                raise RunStopped(FailureKind.WRONG_RESULT, f"{name}: results of {configuration} were wrong")
            times_s = table.draw_s(configuration, size_bytes, request.repeats, request.seed)
        except InvalidInput as error:
            raise RunStopped(FailureKind.REJECTED, f"{name}: {error}") from error
        if table.fell_back(configuration, size_bytes):
            way = "cannot be cut into its chunks" if configuration.in_place else "are not what its schedule is for"
            raise RunStopped(
                FailureKind.REJECTED,
                f"{name}: the runtime fell back to its own algorithm for {configuration} at {format_size(size_bytes)}: "
                f"calls of that {'size' if configuration.in_place else 'placement'} {way}",
            )
        return SizeMeasurement(size_bytes, size_bytes, times_s, correct)


def _faults(request: RunRequest) -> Iterator[RequestFault]:
    if request.dtype != RECORDED_DTYPE:
        yield FailureKind.REJECTED, f"everything was recorded with {RECORDED_DTYPE}, nothing with {request.dtype}"
