"""`chorale lower`: schedules to programs of a runtime, checked."""

from __future__ import annotations

from collections.abc import Sequence
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
from chorale.synth.targets.registry import is_in_place_by_default, target_named
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.tuner.cli.choices import TARGETS, file_to_write, target_name
from chorale.tuner.cli.network_options import LinkGbps
from chorale.tuner.cli.options import AsJson, ElementTypeName, Protocol, ScheduleFile
from chorale.tuner.cli.output import emit_json, results, stage_display
from chorale.tuner.cli.verdicts import verdict_rows
from chorale.tuner.files.program_output import parts_of, write_program
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.schedule_files import load_schedule
from chorale.tuner.reports.light_table import LightTable, facts_table
from chorale.tuner.reports.lowering import advice, prediction, sharing_notices
from chorale.tuner.reports.quantities import fact_label, fact_text
from chorale.tuner.reports.show import program_facts

PredictedSize = Annotated[str | None, typer.Option(metavar="BYTES", help="Also predict the time at this buffer size.")]
_SEPARATE = ("violations", "notices", "explanations", "resources", "predicted", "loss", "order_of_additions")
MAX_SHOWN = 20
COLLECTIVE_SUFFIX = ".collective.json"
"""What a program for given sizes must do stands beside it in a file of this ending."""
MAX_CHECKED_RANKS = 512

TargetName = Annotated[
    str, typer.Option(metavar="NAME", parser=target_name, help=f"Dialect of the program: {', '.join(TARGETS)}.")
]
Channels = Annotated[
    int | None,
    typer.Option(
        help="Channels that share the transfers of each step and connection, or the time that deep trees take. "
        "[default: 1, for deep trees with long chunks 2 to 8 if they fit]"
    ),
]
SmCount = Annotated[
    int | None, typer.Option(help="Multiprocessors of the GPU: thread blocks that run at once. [default: 108]")
]
Fuse = Annotated[
    bool, typer.Option("--fuse", help="Hand on what arrives in one instruction, as around rings, in fewer blocks.")
]
Split = Annotated[
    int,
    typer.Option(min=1, help="Parts of each chunk of the schedule: trees stream in parts, channels share them out."),
]
Reads = Annotated[
    bool,
    typer.Option("--reads", help="MSCCL++: receivers read what stays where it is, instead of being written to."),
]
BlockGroup = Annotated[
    int,
    typer.Option(
        help="MSCCL++: thread blocks that share chunks: of the blocks that carry most, as far as all run at once."
    ),
]
PipelineBytes = Annotated[
    str, typer.Option(metavar="BYTES", help="MSCCL++: parts in which chunks go through the steps of a block; 0: none.")
]
RanksPerBox = Annotated[
    int | None,
    typer.Option(help="MSCCL++: ranks that see each other's memory; ports lead to others. [default: by the topology]"),
]
PerRank = Annotated[
    bool,
    typer.Option(
        "--per-rank", help="Write a file for each rank, with its part alone, into the folder of -o. XML only."
    ),
]
SizesOfProgram = Annotated[
    str | None,
    typer.Option(
        help="Sizes of the vector that the program is for, as in 4KiB:1GiB:x4: as many of the instances, then of the "
        "parts of chunks, are made as cut them all into equal chunks, and chunks are joined where that helps; other "
        "sizes are left to the runtime."
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("lower")(lower)


def lower(
    file: ScheduleFile,
    output: Annotated[
        str,
        typer.Option("--output", "-o", callback=file_to_write, metavar="FILE", help="Program file; .gz compresses it."),
    ],
    target: TargetName = "msccl-xml",
    channels: Channels = None,
    instances: Annotated[int, typer.Option(help="Copies of the schedule, each on a part of the data.")] = 1,
    protocol: Protocol = "Simple",
    in_place: Annotated[
        bool | None, typer.Option("--inplace/--outofplace", help="Default: in place, but for an alltoall of MSCCL.")
    ] = None,
    sm_count: SmCount = None,
    fuse: Fuse = False,
    split: Split = 1,
    reads: Reads = False,
    block_group: BlockGroup = 1,
    pipeline_bytes: PipelineBytes = "0",
    ranks_per_box: RanksPerBox = None,
    sizes: SizesOfProgram = None,
    dtype: ElementTypeName = "float32",
    per_rank: PerRank = False,
    size: PredictedSize = None,
    link_gbps: LinkGbps = None,
    as_json: AsJson = False,
) -> None:
    """Turn a schedule into a program, read it back and check it against the collective before it is written.

    A program of more than 512 ranks is read back and compared with what was meant, and not executed.

    Example: chorale lower torus.parquet --target msccl-xml --channels 2 -o torus.xml
    """
    verified = verify_schedule(load_schedule(file))
    if in_place is None:
        in_place = is_in_place_by_default(verified.schedule.collective, target)
    options = LoweringOptions(
        target, 1 if channels is None else channels, instances, as_protocol(protocol), in_place, sm_count=sm_count,
        fuse=fuse, reads=reads, block_group=block_group, ranks_per_box=ranks_per_box,
        pipeline_bytes=0 if pipeline_bytes == "0" else parse_size(pipeline_bytes),
    )  # fmt: skip
    result = _Result(output, per_rank, None if size is None else parse_size(size), link_gbps)
    options = _cut(verified, options, split, None if sizes is None else parse_sizes(sizes), element_bytes(dtype))
    is_plan = verified.schedule.is_in_network and target != PROCESS_TARGET
    if channels is None and not is_plan:
        options = with_default_channels(verified, options)
    document = _written(verified, options, result)
    if as_json:
        emit_json(document)
    else:
        unit = verified.schedule.topology.bandwidth_unit
        results.print(program_table(f"{output}: checked", document, unit))


@dataclass(frozen=True, slots=True)
class _Result:
    """Where a program goes, and at which size and rate of links its time is predicted."""

    output: str
    per_rank: bool
    size_bytes: int | None
    link_gbps: str | None


def _cut(
    verified: VerifiedSchedule,
    options: LoweringOptions,
    split: int,
    sizes_bytes: Sequence[int] | None,
    itemsize: int,
) -> LoweringOptions:
    """Return `options` with chunks in `split` parts, or what else cuts all of `sizes_bytes` into equal chunks."""
    if split != 1:
        options = replace(options, chunks=split * verified.schedule.chunks_per_shard)
    if sizes_bytes is None:
        return options
    granule_bytes = max(itemsize, target_named(options.target).limits.alignment_bytes)
    return options_for_sizes(verified.schedule.expand(), options, sizes_bytes, granule_bytes)


def _written(verified: VerifiedSchedule, options: LoweringOptions, result: _Result) -> dict[str, Any]:
    """Write the program of a schedule; return what is known of it."""
    schedule = verified.schedule
    source = {"schedule": schedule.id, "output": result.output}
    if schedule.is_in_network and options.target != PROCESS_TARGET:
        return _switch_plan(verified, options, result) | source
    is_large = schedule.topology.compute_count > MAX_CHECKED_RANKS
    document = (_unexecuted if is_large else _executed)(verified, options, result)
    cuts = {"chunks_per_shard": options.chunks or schedule.chunks_per_shard, "instances": options.instances}
    return document | cuts | source


def _switch_plan(verified: VerifiedSchedule, options: LoweringOptions, result: _Result) -> dict[str, Any]:
    """Write the plan of a schedule in which switches act."""
    built = build_switch_plan(verified, options)
    write_program(result.output, (built.text.encode(),), per_rank=False)
    return _facts(built.read_back, verified, result)


def _unexecuted(verified: VerifiedSchedule, options: LoweringOptions, result: _Result) -> dict[str, Any]:
    """Write a program of very many ranks, which is read back and not executed."""
    ranks = verified.schedule.topology.compute_count
    text = unexecuted_text(verified, options).encode()
    write_program(result.output, parts_of(text, options.target) if result.per_rank else (text,), result.per_rank)
    return {"target": options.target, "ranks": ranks, "checked": "structure"}


def _executed(verified: VerifiedSchedule, options: LoweringOptions, result: _Result) -> dict[str, Any]:
    """Write a program that was read back and executed as a whole, and say what lowering loses."""
    with stage_display(f"{options.target}, {verified.schedule.topology.compute_count} ranks") as observe:
        built = build_program(verified, options, observe)
    document = _facts(built.read_back, verified, result)
    document["order_of_additions"] = additions_document(built.read_back)
    document["notices"] = sharing_notices(built.read_back, options)
    advised = advice(verified, options, built.program, result.size_bytes)
    if advised is not None:
        document["loss"] = {"size_bytes": advised.current.size_bytes, "part": advised.current.fraction}
        document["advice"] = advised.text(verified.schedule.chunks_per_shard) if advised.is_large else None
    text = built.text.encode()
    parts = parts_of(text, options.target) if result.per_rank else (text,)
    write_program(result.output, parts, result.per_rank)
    custom = None if built.program.switches else built.program.collective.custom
    if custom is not None:
        from chorale.tuner.files.collective_files import collective_file_text  # noqa: PLC0415 - it imports YAML

        document["collective_file"] = result.output.rstrip("/") + COLLECTIVE_SUFFIX
        write_file(document["collective_file"], collective_file_text(custom).encode())
    return document


def _facts(program: AnyProgram, verified: VerifiedSchedule, result: _Result) -> dict[str, Any]:
    predicted = prediction(program, verified.schedule.topology, result.size_bytes, result.link_gbps)
    return {**program_facts(program), "checked": "execution", "predicted": predicted}


def program_table(title: str, document: dict[str, Any], unit: str) -> LightTable:
    """Return what is known of a program on a network with bandwidths in `unit`, its faults first."""
    table = facts_table(title)
    for rule, message in verdict_rows(document, MAX_SHOWN):
        table.add_row(rule, message)
    facts = {**document, **document.get("resources", {}), **(document.get("predicted") or {})}
    for name, value in {**facts, **(document.get("order_of_additions") or {})}.items():
        if name not in _SEPARATE and value is not None:
            table.add_row(fact_label(name), fact_text(name, value, unit))
    return table
