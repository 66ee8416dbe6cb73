"""`chorale lower`: schedules to programs of a runtime, checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from chorale.runners.api.elements import element_bytes
from chorale.runners.api.units import parse_size, parse_sizes
from chorale.synth.build.build import build_program, build_switch_plan, unexecuted_text
from chorale.synth.build.schedules import verify_schedule
from chorale.synth.lowering.lower import with_default_channels
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switch_processes import PROCESS_TARGET
from chorale.synth.lowering.vector_layout import options_for_sizes
from chorale.synth.programs.additions import additions_document
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import as_protocol
from chorale.synth.targets.registry import TARGETS, is_in_place_by_default, target_named
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.cli.options import (
    ElementTypeName,
    LinkGbps,
    PredictedSize,
    Protocol,
    ScheduleFile,
    file_to_write,
    offer,
    target_name,
)
from chorale.tuner.cli.output import stage_display
from chorale.tuner.cli.verify import program_table
from chorale.tuner.files.collective_files import collective_file_text
from chorale.tuner.files.program_output import parts_of, write_program
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.reports.programs import loss_document, prediction, program_facts, sharing_notices
from chorale.tuner.reports.tables import Result

COLLECTIVE_SUFFIX = ".collective.json"
"""A program for given sizes has a file of this ending next to it, which says what it must do."""
MAX_CHECKED_RANKS = 512


def lower(
    file: ScheduleFile,
    output: Annotated[
        str,
        typer.Option("--output", "-o", callback=file_to_write, metavar="FILE", help="Program file; .gz compresses it."),
    ],
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            parser=target_name,
            autocompletion=offer(TARGETS),
            help=f"Dialect of the program: {', '.join(TARGETS)}.",
        ),
    ] = "msccl-xml",
    channels: Annotated[
        int | None,
        typer.Option(
            help="Channels that share the transfers of each step and connection, or the time that deep trees take. "
            "[default: 1, for deep trees with long chunks 2 to 8 if they fit]"
        ),
    ] = None,
    instances: Annotated[int, typer.Option(help="Copies of the schedule, each on a part of the data.")] = 1,
    protocol: Protocol = "Simple",
    in_place: Annotated[
        bool | None, typer.Option("--inplace/--outofplace", help="Default: in place, but for an alltoall of MSCCL.")
    ] = None,
    sm_count: Annotated[
        int | None, typer.Option(help="Multiprocessors of the GPU: thread blocks that run at once. [default: 108]")
    ] = None,
    fuse: Annotated[
        bool,
        typer.Option("--fuse", help="Hand on what arrives in one instruction, as around rings, in fewer blocks."),
    ] = False,
    split: Annotated[
        int,
        typer.Option(
            min=1, help="Parts of each chunk of the schedule: trees stream in parts, channels share them out."
        ),
    ] = 1,
    reads: Annotated[
        bool,
        typer.Option("--reads", help="MSCCL++: receivers read what stays where it is, instead of being written to."),
    ] = False,
    block_group: Annotated[
        int,
        typer.Option(
            help="MSCCL++: thread blocks that share chunks: of the blocks that carry most, as far as all run at once."
        ),
    ] = 1,
    pipeline_bytes: Annotated[
        str,
        typer.Option(metavar="BYTES", help="MSCCL++: parts in which chunks go through the steps of a block; 0: none."),
    ] = "0",
    ranks_per_box: Annotated[
        int | None,
        typer.Option(
            help="MSCCL++: ranks that see each other's memory; ports lead to others. [default: by the topology]"
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Sizes of the vector that the program is for, as in 4KiB:1GiB:x4: as many of the instances, then of "
            "the parts of chunks, are made as cut them all into equal chunks, and chunks are joined where that helps; "
            "other sizes are left to the runtime."
        ),
    ] = None,
    dtype: ElementTypeName = "float32",
    per_rank: Annotated[
        bool,
        typer.Option(
            "--per-rank", help="Write a file for each rank, with its part alone, into the folder of -o. XML only."
        ),
    ] = False,
    size: PredictedSize = None,
    link_gbps: LinkGbps = None,
) -> Result:
    """Turn a schedule into a program, which is read back and checked before it is written.

    It is checked against its collective. A program of more than 512 ranks is read back and compared with what was
    meant, and not executed.

    Example: chorale lower torus.parquet --target msccl-xml --channels 2 -o torus.xml
    """
    verified = verify_schedule(load_schedule(file))
    schedule = verified.schedule
    if in_place is None:
        in_place = is_in_place_by_default(schedule.collective, target)
    options = LoweringOptions(
        target, 1 if channels is None else channels, instances, as_protocol(protocol), in_place, sm_count=sm_count,
        fuse=fuse, reads=reads, block_group=block_group, ranks_per_box=ranks_per_box,
        pipeline_bytes=0 if pipeline_bytes == "0" else parse_size(pipeline_bytes),
    )  # fmt: skip
    if split != 1:
        options = replace(options, chunks=split * schedule.chunks_per_shard)
    destination = _Destination(output, per_rank, None if size is None else parse_size(size), link_gbps)
    if sizes is not None:
        granule_bytes = max(element_bytes(dtype), target_named(target).limits.alignment_bytes)
        options = options_for_sizes(schedule.expand(), options, parse_sizes(sizes), granule_bytes)
    if schedule.is_in_network and target != PROCESS_TARGET:
        document = destination.write_switch_plan(verified, options)
    else:
        if channels is None:
            options = with_default_channels(verified, options)
        is_large = schedule.topology.compute_count > MAX_CHECKED_RANKS
        document = (destination.write_unexecuted if is_large else destination.write_executed)(verified, options)
        document |= {"chunks_per_shard": options.chunks or schedule.chunks_per_shard, "instances": options.instances}
    document |= {"schedule": schedule.id, "output": output}
    return Result(document, program_table(f"{output}: checked", document, schedule.topology.bandwidth_unit))


@dataclass(frozen=True, slots=True)
class _Destination:
    """Where a program goes, and at which size and rate of links its time is predicted."""

    output: str
    per_rank: bool
    size_bytes: int | None
    link_gbps: str | None

    def write_switch_plan(self, verified: VerifiedSchedule, options: LoweringOptions) -> dict[str, Any]:
        """Write the plan of a schedule in which switches act; return what is known of it."""
        built = build_switch_plan(verified, options)
        write_program(self.output, (built.text.encode(),), per_rank=False)
        return self._facts(built.read_back, verified)

    def write_unexecuted(self, verified: VerifiedSchedule, options: LoweringOptions) -> dict[str, Any]:
        """Write a program of very many ranks, which is read back and not executed; return what is known of it."""
        text = unexecuted_text(verified, options).encode()
        write_program(self.output, parts_of(text, options.target) if self.per_rank else (text,), self.per_rank)
        return {"target": options.target, "ranks": verified.schedule.topology.compute_count, "checked": "structure"}

    def write_executed(self, verified: VerifiedSchedule, options: LoweringOptions) -> dict[str, Any]:
        """Write a program that was read back and executed as a whole; return what is known of it and what it loses."""
        with stage_display(f"{options.target}, {verified.schedule.topology.compute_count} ranks") as observe:
            built = build_program(verified, options, observe)
        document = self._facts(built.read_back, verified)
        document["order_of_additions"] = additions_document(built.read_back)
        document["notices"] = sharing_notices(built.read_back, options)
        document |= loss_document(verified, options, built.program, self.size_bytes)
        text = built.text.encode()
        write_program(self.output, parts_of(text, options.target) if self.per_rank else (text,), self.per_rank)
        custom = None if built.program.switches else built.program.collective.custom
        if custom is not None:
            document["collective_file"] = self.output.rstrip("/") + COLLECTIVE_SUFFIX
            write_file(document["collective_file"], collective_file_text(custom).encode())
        return document

    def _facts(self, program: AnyProgram, verified: VerifiedSchedule) -> dict[str, Any]:
        predicted = prediction(program, verified.schedule.topology, self.size_bytes, self.link_gbps)
        return {**program_facts(program), "checked": "execution", "predicted": predicted}
