"""`chorale table export`: what other libraries need to run or choose what a tuning table says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from chorale.job.settings import load_table
from chorale.job.table.model import Table
from chorale.synth.errors import InvalidInput
from chorale.synth.names import name_among
from chorale.tuner.cli.choices import file_to_write
from chorale.tuner.cli.options import AsJson
from chorale.tuner.cli.output import emit_json, results
from chorale.tuner.files.read_write import read_file, write_file, write_folder
from chorale.tuner.reports.library_files.mpich import default_tree, mpich_selection
from chorale.tuner.reports.library_files.mscclpp import mscclpp_files
from chorale.tuner.reports.library_files.nccl import nccl_table_csv, rccl_table_csv
from chorale.tuner.reports.library_files.open_mpi import open_mpi_json, open_mpi_rules

LARGEST_LIBRARY_BYTES = 2**30
_FILES: Mapping[str, tuple[Callable[[Table, str | None], str], str]] = {
    "nccl": (nccl_table_csv, "NCCL_TUNER_CONFIG_FILE={0} NCCL_TUNER_PLUGIN=$(python -m chorale.job.nccl.plugin)"),
    "rccl": (rccl_table_csv, "NCCL_TUNER_CONFIG_FILE={0}"),
    "openmpi": (
        open_mpi_rules,
        "OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename={0}",
    ),
    "openmpi6": (
        open_mpi_json,
        "OMPI_MCA_coll_tuned_use_dynamic_rules=1 OMPI_MCA_coll_tuned_dynamic_rules_filename={0}",
    ),
}
_MSCCLPP, _MPICH = "mscclpp", "mpich"
KINDS = (_MSCCLPP, *_FILES, _MPICH)
_USES = {name: use for name, (_, use) in _FILES.items()} | {
    _MSCCLPP: "PYTHONPATH={0}, then as {0}/chorale_plans.py says",
    _MPICH: "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE={0}",
}


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Table file.")],
    kind: Annotated[str, typer.Option("--for", metavar="LIBRARY", help=f"One of {', '.join(KINDS)}.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", callback=file_to_write, metavar="PATH", help="File to write; mscclpp: a folder."
        ),
    ],
    dtype: Annotated[str | None, typer.Option(help="Whose entries, where the table has several types.")] = None,
    library: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The libmpi.so of the MPICH that jobs use.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write what another library needs to follow a table.

    mscclpp: its programs as plans, with a module that loads them in a job. The others choose among algorithms of their
    own, where the table says which is the best: by a baseline library:NAME, or a program of the same method.

    Example: chorale table export job.table --for openmpi -o rules.conf
    """
    kind = name_among("library", kind, KINDS, {"nccl2": "nccl", "ompi": "openmpi", "msccl++": _MSCCLPP})
    table = load_table(file)
    if kind == _MSCCLPP:
        files = mscclpp_files(table)
        write_folder(output, files)
    elif kind == _MPICH:
        content = read_file(str(library or _installed_mpi()), LARGEST_LIBRARY_BYTES)
        write_file(output, mpich_selection(table, default_tree(content), dtype).encode())
    else:
        write_file(output, _FILES[kind][0](table, dtype).encode())
    use = _USES[kind].format(output)
    if as_json:
        emit_json({"for": kind, "output": str(output), "use": use})
        return
    results.print(f"{output}: {use}")


def _installed_mpi() -> Path:
    from chorale.runners.mpi.launch import find_mpiexec  # noqa: PLC0415 - only MPICH's export needs it

    folder = Path(find_mpiexec()).resolve().parent.parent / "lib"
    # A wheel's libmpi.so is a script for the linker that names the library.
    found = max(folder.glob("libmpi.so*"), key=lambda path: path.stat().st_size, default=None)
    if found is None:
        raise InvalidInput("MPICH's library must be there to take its default tree", "none", "name it with --library")
    return found
