"""Defines the commands `chorale table …`: write, show, check, merge, compare and export the tuning tables of jobs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from chorale.job.files import read_file
from chorale.job.settings import load_table, read_table, table_key
from chorale.job.table.layout import ANY_DTYPE, Table, parse_table, table_bytes
from chorale.job.table.merging import comparison, merge as merged, parse_range
from chorale.job.table.verification import TableViolation, checked_table, link_violations
from chorale.runners.process_launch.slurm import gpus_per_machine
from chorale.synth.errors import ChoraleError, InvalidInput, name_among
from chorale.synth.targets.judge import reachability
from chorale.tuner import Home, MlflowStore, load_topology
from chorale.tuner.cli.application import CommandLine
from chorale.tuner.cli.options import SPECS, FileOutput, LinkGbps, Prices, campaigns, notice, offer
from chorale.tuner.files.home import write_file
from chorale.tuner.reports import job_tables, library_files
from chorale.tuner.reports.tables import Result

_VARIABLE = "NCCL_TUNER_CONFIG_FILE={0}"
_USES = {
    "nccl": f"{_VARIABLE} NCCL_TUNER_PLUGIN=$(python -P -m chorale.job.nccl.plugin)",
    "rccl": _VARIABLE,
    "aws": "compare it with show-tuner-decisions; aws-ofi-nccl reads no file: use Chorale's plug-in, --for nccl",
}
"""Library -> how to use the file that `chorale table export` writes for it."""
_SOURCES = "give --campaign NAME, or --topology SPEC, or PROGRAM files with --sizes RANGE"

table_app = CommandLine(
    help="Write, show, verify, merge and compare tuning tables: the files that CHORALE_TABLE names.",
    no_args_is_help=True,
)

Sign = Annotated[
    bool, typer.Option("--sign", help="Sign the table with the key in the file that CHORALE_TABLE_KEY names.")
]
TableFile = Annotated[Path, typer.Argument(metavar="FILE", help="Table file.")]


@table_app.command("write")
def write(
    output: FileOutput,
    programs: Annotated[list[str] | None, typer.Argument(metavar="PROGRAM")] = None,
    campaign: Annotated[str | None, typer.Option(metavar="NAME", autocompletion=campaigns)] = None,
    topology: Annotated[str | None, typer.Option(metavar="SPEC", autocompletion=offer(SPECS))] = None,
    sizes: Annotated[str | None, typer.Option(metavar="RANGE")] = None,
    dtypes: Annotated[str | None, typer.Option(metavar="LIST")] = None,
    group: Annotated[str | None, typer.Option(metavar="RANKS")] = None,
    ranks: Annotated[int | None, typer.Option(min=1)] = None,
    beyond: bool = False,
    alias: str = "champion",
    link_gbps: LinkGbps = None,
    sign: Sign = False,
) -> Result:
    """Write a table from a campaign, from the champions registered for a network, or from programs for a size range.

    If nothing was measured on the network, the table has the programs that are predicted to be the fastest.

    Every program is executed symbolically before it is written. Sizes without an entry are left to the library.

    Args:
        programs: Program files (.xml) or schedules (.parquet, .json).
        campaign: Finished campaign whose result becomes the table.
        topology: Network on which the programs run; given alone: write the network's champions, or else predictions.
        sizes: Buffer sizes for the programs, such as 1KiB-64MiB or 64KiB-.
        dtypes: Element types of the entries; default: any for programs, float32 for campaigns.
        group: Ranks of the job that run the programs, in the programs' order, such as 0,2,4,6.
        ranks: Number of ranks of the job, if --group is only a part of it.
        beyond: For a campaign: also use its programs for sizes below and above the measured ones.
        alias: Alias of the registered versions, as in `register.alias` of campaigns.

    Example: chorale table write --campaign quickstart -o job.table

    Example: chorale table write allreduce.xml --sizes 64KiB- -o job.table
    """
    key = _signing_key(sign)
    job_group = job_tables.JobGroup(None if group is None else job_tables.parse_group(group), ranks)
    types = job_tables.parse_dtypes(dtypes or (ANY_DTYPE if programs else job_tables.MEASURED_DTYPE))
    files, home = tuple(programs or ()), Home.from_environment()
    rule, way_out = "a table is written from one source, not from {}", _SOURCES
    if campaign is not None and (files or topology is not None):
        raise InvalidInput(rule, "--campaign with programs or --topology", way_out)
    if files and sizes is None:
        raise InvalidInput("program files do not state their sizes", "", "add --sizes, such as 64KiB-")
    if not files and sizes is not None:
        raise InvalidInput(
            "--sizes is only for program files", "", "leave it out: a campaign states the sizes that it measured"
        )
    if beyond and campaign is None:
        raise InvalidInput("--beyond works only with --campaign", "", "add --campaign NAME")
    if files:
        table = job_tables.table_of_files(files, parse_range(sizes or ""), topology, job_group, types)
    elif campaign is not None:
        table = job_tables.table_of_campaign(home, campaign, job_group, types, beyond)
    elif topology is None:
        raise InvalidInput(rule, "nothing", way_out)
    else:
        network, mlflow = load_topology(topology), MlflowStore(home.mlflow_uri, home.artifacts)
        registered = job_tables.table_of_registry(mlflow, network, job_group, types, alias)
        if registered is None:
            notice(f"nothing was measured on {network.spec}: the table has predictions; `chorale tune` measures")
            types, pricing = types if dtypes else (ANY_DTYPE,), Prices(link_gbps=link_gbps).pricing(network)
            registered = job_tables.predicted_table(network, pricing, job_group, types)
        table = registered
    return _written(table, output, key)


@table_app.command("show")
def show(file: TableFile) -> Result:
    """Show the entries of a table: what runs for which collective, type, ranks and sizes, and how it was measured.

    Example: chorale table show job.table --json
    """
    table, digest = read_table(file)
    step = f"CHORALE_TABLE={file} in the environment of a job, or chorale table export {file} --for LIBRARY -o FILE"
    document, lines = job_tables.table_document(table, digest), job_tables.table_lines(table, digest, str(file))
    return Result(document, lines, next_step=step)


@table_app.command("verify")
def verify(file: TableFile) -> Result:
    """Check the checksums and every program: its text, encoding, collective and links; exit 1 if one is wrong.

    Example: chorale table verify job.table
    """
    data = read_file(str(file))
    table, violations = checked_table(data)
    links = "not checked"
    if table is not None and not violations:
        try:
            spec = table.topology.get("spec")
            network = load_topology(spec) if isinstance(spec, str) else None
            links = "checked" if network else "not checked: the table names no network of the job"
            if network and (network.id, network.compute_count) != (table.topology.get("id"), table.ranks):
                violations.append(TableViolation("topology", f"{spec} now describes another network"))
            elif network:
                violations += link_violations(table, reachability(network))
        except ChoraleError as error:
            links = f"not checked: {error}"
    programs = [] if table is None else sorted(table.programs)
    document: dict[str, Any] = {
        "ok": not violations,
        "digest": data.split(b"\n", 2)[1].split()[-1].decode(errors="replace") if table is not None else None,
        "violations": [
            {
                "rule": item.rule,
                "message": ("" if item.program is None else f"program {item.program[:12]}: ") + item.message,
                "program": item.program,
            }
            for item in violations
        ],
        "programs": [{"digest": one, "ok": all(item.program != one for item in violations)} for one in programs],
        "links": links,
    }
    lines = [f"{item['rule']}: {item['message']}" for item in document["violations"]]
    good = sum(item["ok"] for item in document["programs"])
    verdict = "right" if document["ok"] else "NOT right"
    text = f"{file}: {verdict}; programs {good} of {len(document['programs'])}; links: {document['links']}"
    return Result(document, *lines, text, exit_code=int(not document["ok"]))


@table_app.command("merge")
def merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    output: FileOutput,
    prefer: Annotated[str | None, typer.Option(metavar="WHICH")] = None,
    sign: Sign = False,
) -> Result:
    """Merge tables of one job, for example of several collectives or groups of ranks. Conflicts are listed and refused.

    Args:
        files: Table files of one job.
        prefer: Table that wins a conflict: first or last.

    Example: chorale table merge all.table groups.table -o job.table
    """
    return _written(merged([load_table(file) for file in files], prefer), output, _signing_key(sign))


@table_app.command("diff")
def diff(
    before: Annotated[Path, typer.Argument(metavar="BEFORE")], after: Annotated[Path, typer.Argument(metavar="AFTER")]
) -> Result:
    """Show the differences between two tables; exit 0 if there are none, 1 if there are some.

    Args:
        before: Older table file.
        after: Newer table file.

    Example: chorale table diff old.table new.table
    """
    document = comparison(load_table(before), load_table(after))
    lines = [] if document["equal"] else [job_tables.diff_lines(document, str(before), str(after))]
    return Result(document, *lines, exit_code=int(not document["equal"]))


@table_app.command("export")
def export(
    file: TableFile,
    kind: Annotated[str, typer.Option("--for", metavar="LIBRARY", help=f"One of {', '.join(_USES)}.")],
    output: FileOutput,
    dtype: str | None = None,
) -> Result:
    """Write a file that makes NCCL or RCCL choose their algorithms as a table says.

    The file covers the sizes for which the table names one of the library's own algorithms: by settings, as a baseline
    library:NAME, or by a program made with the same method.

    Args:
        dtype: Element type of the entries, if the table has several.

    Example: chorale table export job.table --for nccl -o tuner.csv
    """
    kind = name_among("library", kind, _USES, {"nccl2": "nccl"})
    table, use, document = load_table(file), _USES[kind].format(output), {"for": kind, "output": str(output)}
    choices = library_files.settings_by_size(table, dtype)
    if guesses := sum(not each.is_measured for each in choices):
        number = f"{guesses} of {len(choices)} entries were" if len(choices) > 1 else "the entry was"
        notice(f"{number} not measured but simulated, predicted or given: compare the job with and without the file")
    if kind == "aws":
        spec = table.topology.get("spec")
        per_node = gpus_per_machine(load_topology(spec)) if isinstance(spec, str) else None
        nodes = 1 if per_node is None else max(1, table.ranks // per_node)
        write_file(output, library_files.aws_csv(table, dtype, nodes).encode())
        return Result({**document, "use": use}, f"{output}: {use}")
    own_channels = -1 if kind == "rccl" else 0
    write_file(output, library_files.nccl_table_csv(table, dtype, own_channels).encode())
    variables = library_files.nccl_variables(table, dtype)
    use = " ".join([*(f"{name}={value}" for name, value in sorted(variables.items())), use])
    settings = {"environment": variables, "coll_config": library_files.nccl_call_configs(table, dtype)}
    return Result({**document, **settings, "use": use}, f"{output}: {use}")


def _signing_key(sign: bool) -> bytes | None:
    key = table_key() if sign else None
    if sign and key is None:
        way_out = "make one: (umask 077; openssl rand -hex 32 > table.key); export CHORALE_TABLE_KEY=table.key"
        raise InvalidInput("--sign needs the key of the jobs, but CHORALE_TABLE_KEY is not set", "", way_out)
    return key


def _written(table: Table, output: Path, key: bytes | None) -> Result:
    data = table_bytes(table, key)
    write_file(output, data)
    _, digest = parse_table(data)
    notice(f"CHORALE_TABLE={output} in the environment of a job makes it use the table")
    document = job_tables.table_document(table, digest) | {"output": str(output)}
    return Result(document, job_tables.table_lines(table, digest, str(output)))
