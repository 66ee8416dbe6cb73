"""`chorale judge`: whether measured times of a collective are good."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chorale.tuner.cli.options import SPECS, offer
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.judge import judge as judge_file
from chorale.tuner.reports.tables import Result


def judge(
    results: Annotated[
        str,
        typer.Argument(
            metavar="RESULTS", help="Output of nccl-tests, rccl-tests, OSU or `chorale run --json`, in any form."
        ),
    ],
    topology: Annotated[
        str,
        typer.Option(metavar="SPEC|FILE", autocompletion=offer(SPECS), help="The network on which it was measured."),
    ],
    collective: Annotated[
        str | None, typer.Option(help="Chooses one of several in the file; names it where the file does not.")
    ] = None,
    link_gbps: Annotated[
        str | None, typer.Option(help="Gbit/s of a link, for networks whose links have no rate.")
    ] = None,
) -> Result:
    """Say whether measured times are good, beside the bound and the library's own model.

    A verdict first; then for each size the share of the bound, what NCCL, RCCL or MPI should take by their own models,
    what limits it, and whether it is unusually slow. Exit 1 if results were wrong.

    Example: chorale judge all_reduce.log --topology h100:1
    """
    network = load_topology(f"file:{topology}" if Path(topology).is_file() else topology)
    judgement = judge_file(results, network, collective, link_gbps)
    code = 0 if judgement.is_right else 1
    return Result(judgement.to_json(), judgement.verdict, judgement.table(), *judgement.notes(), exit_code=code)
