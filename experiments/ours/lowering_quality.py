"""What lowering costs: times of programs under the flow model beside the exact costs of their schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from chorale.experiments.framework.experiment import Column, Experiment, Row
from chorale.synth.collective import parse_collective
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.method import Options
from chorale.synth.programs.program import Program
from chorale.synth.targets.resources import resources_of
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.costs.program_costs import lowering_loss, program_time_per_byte
from chorale.tuner.files.topology_specs import load_topology

TARGET = "msccl-xml"
SIZES = (2**24, 2**30)
LARGE_BUFFER, SMALL_BUFFER = 2**22, 2**18
SLOW = ("mi250:2",)
_SAME = 1e-9  # rounding of simulated times
_SMALL = 0.02


class LoweringCase(NamedTuple):
    """A schedule, over how many channels it is lowered, and how many parts its chunks are split into; k None: the
    fewest trees that are optimal."""

    spec: str
    method: str
    collective: str
    k: int | None = None
    channels: int = 1
    split: int = 1

    def options(self, verified: VerifiedSchedule) -> LoweringOptions:
        """Return how `verified` is lowered."""
        return LoweringOptions(TARGET, self.channels, chunks=self.split * verified.schedule.chunks_per_shard)


CASES = (
    *(LoweringCase("hypercube:3", "bfb", name) for name in ("allgather", "reduce_scatter", "allreduce")),
    *(LoweringCase("torus:4x4", "bfb", name) for name in ("allgather", "reduce_scatter", "allreduce")),
    LoweringCase("torus:4x4", "bfb", "reduce_scatter", channels=2),
    *(LoweringCase("torus:4x4", "forest", name) for name in ("allgather", "allreduce")),
    *(LoweringCase("a100:2", "forest", name, k) for k in (None, 1) for name in ("allgather", "allreduce")),
    LoweringCase("a100:2", "forest", "allgather", 1, channels=2),
    LoweringCase("a100:2", "forest", "allreduce", 1, channels=4),
    LoweringCase("a100:2", "forest", "allreduce", 1, channels=2, split=4),
    *(LoweringCase("mi250:2", "forest", name, k) for k in (None, 1) for name in ("allgather", "allreduce")),
    *(LoweringCase("mi250:2", "forest", name, 1, channels=4) for name in ("allgather", "allreduce")),
    *(LoweringCase("mi250:2", "forest", name, 1, channels=16) for name in ("allgather", "allreduce")),
    *(LoweringCase("mi250:2", "forest", name, 1, split=4) for name in ("allgather", "allreduce")),
)  # fmt: skip


def _cases(quick: bool) -> Sequence[LoweringCase]:
    return [case for case in CASES if not (quick and case.spec in SLOW)]


def _rows(case: LoweringCase) -> list[Row]:
    topology, collective = load_topology(case.spec), parse_collective(case.collective)
    verified = synthesize(case.method, topology, collective, Options(k=case.k), SerialExecutor())
    return [row_of(case, verified, lower(verified, case.options(verified)))]


def row_of(case: LoweringCase, verified: VerifiedSchedule, program: Program) -> Row:
    """Return the row: parts of time lost against the cost of the schedule, by size and buffer, and why.

    It holds if no link carries more than in the schedule, nothing is faster than the model allows, and steps that
    follow one another lose nothing at all with one channel.
    """
    losses = [lowering_loss(verified, program, size, LARGE_BUFFER) for size in SIZES]
    streamed = lowering_loss(verified, program, SIZES[-1], SMALL_BUFFER)
    topology = verified.schedule.topology
    on_links = program_time_per_byte(program, topology) / verified.cost.time_per_byte - 1
    pipelined = verified.schedule.kind == "pipelined"
    # Steps follow one another, each with a busiest link of its own: all of them together may carry less.
    as_planned = on_links == 0 if pipelined else on_links <= 0
    exact = pipelined or case.channels > 1 or max(map(abs, (*losses, streamed))) <= _SAME
    return {
        **{name: value for name, value in case._asdict().items() if name != "channels"},
        "channels_asked": case.channels,
        "nodes": topology.compute_count,
        "time_per_byte": str(verified.cost.time_per_byte),
        "loss_on_links": str(on_links),
        "loss": dict(zip(map(str, SIZES), losses, strict=True)),
        "loss_small_buffers": streamed,
        **asdict(resources_of(program)),
        "chunks": program.chunks,
        "reason": _why(losses[-1], streamed, pipelined),
        "holds": as_planned and exact and min(*losses, streamed) >= -_SAME,
    }


def _why(loss: float, streamed: float, pipelined: bool) -> str | None:
    if max(loss, streamed) <= _SAME:
        return None
    if not pipelined:
        return "channels of a connection are apart by a step, and share its links"
    if streamed <= _SMALL:
        return "trees fill step by step; small buffers make the steps short"
    return "trees take turns on a connection: one that waits holds up the next"


def _percent(part: float) -> str:
    return "0" if abs(part) <= _SAME else f"{part:.1%}"


EXPERIMENT = Experiment(
    name="lowering-quality",
    question="What does a program lose against the exact cost of its schedule?",
    source=f"ours; {TARGET}, flow model without latencies, buffers of 4 MiB (small: 256 KiB)",
    columns=(
        Column("spec", lambda row: str(row["spec"])),
        Column(
            "schedule",
            lambda row: f"{row['method']} {row['collective']}" + ("" if row["k"] is None else f", k {row['k']}"),
        ),
        Column("split", lambda row: str(row["split"])),
        Column("channels", lambda row: str(row["channels"])),
        Column("blocks", lambda row: str(row["threadblocks_max"])),
        Column("steps", lambda row: str(row["steps_max"])),
        Column("scratch", lambda row: str(row["scratch_chunks_max"])),
        Column("chunks", lambda row: str(row["chunks"])),
        Column("busiest link", lambda row: row["loss_on_links"]),
        Column("16 MiB", lambda row: _percent(row["loss"][str(SIZES[0])])),
        Column("1 GiB", lambda row: _percent(row["loss"][str(SIZES[1])])),
        Column("small buffers", lambda row: _percent(row["loss_small_buffers"])),
        Column("why", lambda row: row["reason"] or "nothing lost"),
    ),
    cases=_cases,
    evaluate=_rows,
)
