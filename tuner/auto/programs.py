"""Find schedules that a target can run as programs, and predict how fast they are at each size."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.runners.api.units import format_size
from chorale.synth import (
    ChoraleError,
    LoweringOptions,
    NetworkModel,
    Options,
    ScheduleRequest,
    SerialExecutor,
    Topology,
    VerifiedSchedule,
)
from chorale.synth.build.build import build_program
from chorale.synth.build.schedules import verified_schedule
from chorale.synth.collective import ALLREDUCE
from chorale.synth.lowering.lower import with_default_channels
from chorale.tuner.costs.pricing import simulate_program, usual_buffer_bytes
from chorale.tuner.reports.programs import program_facts

GPU_TARGET = "msccl-xml"
PROGRAM_SIZES = (2**20, 2**24, 2**28)
CANDIDATES: tuple[tuple[str, int | None], ...] = (
    ("forest", 1), ("forest", 2), ("ring", None), ("rabenseifner", None), ("swing", None),
)  # fmt: skip
"""Methods and trees per root to try besides the choice of `auto`: fewer trees need fewer thread blocks and steps."""
MAX_RANKS = 64
"""With more ranks, lowering and simulating a program takes minutes."""


@dataclass(frozen=True, slots=True)
class RunnableProgram:
    """A program for GPUs, or the reason why the target refuses it.

    k:        requested trees per root; None for the optimum
    channels: number of channels; None if the program is refused
    times_s:  size in bytes -> predicted seconds
    """

    method: str
    k: int | None
    planned_algbw: float
    channels: int | None
    resources: dict[str, int]
    times_s: dict[int, float]
    refused: str | None = None

    def command(self, spec: str) -> str:
        """Return the shell command that generates the program for the network `spec`."""
        k = "" if self.k is None else f" --k {self.k}"
        return f"chorale synth {self.method} {spec} --collective allreduce{k} -o auto.parquet"

    def document(self) -> dict[str, Any]:
        """Return the program as JSON for reports; rates are in GB/s."""
        rates = [{"size_bytes": size, "algbw_gb_per_s": size / time_s / 1e9} for size, time_s in self.times_s.items()]
        facts = {"method": self.method, "k": self.k, "planned_algbw": self.planned_algbw, "target": GPU_TARGET}
        return {**facts, "channels": self.channels, **self.resources, "predicted": rates, "refused": self.refused}


def runnable_programs(
    topology: Topology, best: VerifiedSchedule, sizes_bytes: Sequence[int], deadline_s: float
) -> list[RunnableProgram]:
    """Return programs for `best` and for schedules that need fewer resources, fastest first (mean over sizes).

    Each is lowered within the target's limits, checked, and timed with the flow model. Refused programs come last.
    After `deadline_s` (monotonic clock), no further program is started.
    """
    found, seen = [_program(topology, best, None, sizes_bytes)], {best.schedule.id}
    for method, k in CANDIDATES:
        if time.monotonic() > deadline_s:
            break
        try:
            verified = verified_schedule(ScheduleRequest(topology, ALLREDUCE, method, Options(k=k)), SerialExecutor())
        except ChoraleError:  # the method does not suit the network
            continue
        if verified.schedule.id not in seen:
            seen.add(verified.schedule.id)
            found.append(_program(topology, verified, k, sizes_bytes))
    return sorted(found, key=lambda program: math.prod(program.times_s.values()) if program.times_s else math.inf)


def _program(
    topology: Topology, verified: VerifiedSchedule, k: int | None, sizes_bytes: Sequence[int]
) -> RunnableProgram:
    facts = verified.schedule.method, k, float(1 / verified.cost.time_per_byte)
    try:
        options = with_default_channels(verified, LoweringOptions(GPU_TARGET))
        program = build_program(verified, options).program
        model, buffer_bytes = NetworkModel.usual(topology), usual_buffer_bytes(program)
        times_s = {size: simulate_program(program, topology, model, size, buffer_bytes).end_s for size in sizes_bytes}
    except ChoraleError as error:
        return RunnableProgram(*facts, None, {}, {}, error.problem)
    return RunnableProgram(*facts, options.channels, dict(program_facts(program)["resources"]), times_s)


def program_rows(programs: Sequence[dict[str, Any]], bound_algbw: float) -> Iterator[tuple[str, str]]:
    """Yield rows for the smallest and largest size (fastest program, fraction of the bound) and refused programs."""
    running = [program for program in programs if program["refused"] is None]
    sizes = list(enumerate(running[0]["predicted"])) if running else []
    for index, row in [*sizes[:1], *sizes[1:][-1:]]:
        fastest = max(running, key=lambda program: program["predicted"][index]["algbw_gb_per_s"])
        rate, k = fastest["predicted"][index]["algbw_gb_per_s"], fastest["k"]
        name = fastest["method"] + ("" if k is None else f" with k = {k}")
        channels = f"{fastest['channels']} channel{'s' if fastest['channels'] > 1 else ''}"
        used = f"{channels}, {fastest['threadblocks_max']} thread blocks; predicted"
        text = f"{name}: {rate:.4g} GB/s, {rate / bound_algbw:.0%} of the bound ({used})"
        yield f"program at {format_size(row['size_bytes'])}", text
    refused = [program for program in programs if program["refused"] is not None]
    if refused:
        more = f" (and {len(refused) - 1} other schedules)" if len(refused) > 1 else ""
        yield f"no program ({refused[0]['method']})", f"{GPU_TARGET} refuses it: {refused[0]['refused']}{more}"
