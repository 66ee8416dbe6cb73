"""`chorale best`: the registered program, or algorithm of the library, for a network, collective and size."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer
from rich.text import Text

from chorale.runners.api.registry import is_simulated, runner_text
from chorale.runners.api.units import format_size, format_us, parse_size
from chorale.synth import InvalidInput, parse_collective
from chorale.synth.extras import require
from chorale.tuner.cli.options import CollectiveName
from chorale.tuner.cli.output import people
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.tables import Result, facts_table, long_line
from chorale.tuner.tracking.champions import roll_back
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import RegistryEntry, find_champion, load_best, nothing_registered
from chorale.tuner.trials.tuning_table import SizeClass


def best(
    topology: Annotated[str, typer.Option("--topology", metavar="SPEC")],
    size: Annotated[str, typer.Option("--size", metavar="BYTES")],
    collective: CollectiveName = "allreduce",
    output: Annotated[str | None, typer.Option("--output", "-o", metavar="DIR")] = None,
    alias: str = "champion",
    rollback: bool = False,
) -> Result:
    """Fetch the best schedule that campaigns have registered, verified again.

    Sizes fall into classes, one per power of two; if the class of SIZE has no entry, the nearest class answers.
    A program that was written by hand and won has no schedule, only a program.
    If no program beat the library, the answer is the library's own algorithm, and there are no files.

    --rollback gives the alias back to the version that had it before; no campaign promotes the current one again.

    Args:
        topology: Network, such as hypercube:3.
        size: Buffer size, such as 1MiB.
        output: Existing folder for the files.
        alias: Which version; `register.alias` of the campaign.
        rollback: First let the alias go back to the version that had it before.

    Example: chorale best --topology hypercube:3 --collective allreduce --size 1MiB -o .
    """
    name = parse_collective(collective).name.value
    size_bytes = parse_size(size)
    network = load_topology(topology)
    require("mlflow")
    home = Home.from_environment()
    if output is not None and not Path(output).is_dir():
        raise InvalidInput("the folder of {} does not exist", output, "create it first")
    if home.mlflow_uri.endswith(str(home.database)) and not home.database.exists():
        raise nothing_registered(network, name)
    mlflow = MlflowStore(home.mlflow_uri, home.artifacts)
    former = None
    if rollback:  # the alias goes back to the version before
        champion, size_class = find_champion(mlflow, network, name, size_bytes, alias)
        if size_class != SizeClass.of(size_bytes):
            value = f"{format_size(size_bytes)}, and the nearest entry is for {size_class}"
            raise InvalidInput("there is no entry at exactly this size: {}", value, "name a size of the entry")
        former, _ = roll_back(mlflow, champion.name, alias)
        people.print(f"version {former.version} no longer is {alias}", highlight=False)
    entry = load_best(mlflow, network, name, size_bytes, alias)
    folder = Path(output) if output is not None else home.best / entry.version.name / entry.version.version
    document = _save(entry, home.create(folder))
    exact = entry.size_class == SizeClass.of(size_bytes)
    if not exact:
        people.print(
            f"nothing registered for {format_size(size_bytes)}: this is for the nearest class, {entry.size_class}"
        )
    if entry.library is not None:
        time = format_us(document["measured"]["time_us"] / 1e6)
        answer: list[Text | str] = [f"use the library's own {entry.library}: {time}, nothing beat it"]
    else:
        answer = [long_line(path) for path in (document["schedule"], document["program"]) if path]
    rolled_back = {"rolled_back": former.version} if former else {}
    title = f"{document['model']} version {document['version']}, {runner_text(entry.manifest['runner'])}"
    table = facts_table(title, _rows(document["measured"]))
    step = f"chorale export {quote(document['schedule'])} -o job" if document["schedule"] else None
    return Result({**document, "exact": exact, **rolled_back}, table, *answer, next_step=step)


def _rows(measured: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was measured, in units that people know."""
    ends = " to ".join(format_us(value / 1e6) for value in measured.get("time_us_interval", ()))
    interval = f" ({ends}, {measured['confidence']:.0%})" if ends else ""
    yield "size", measured["size"]
    yield "time", f"{format_us(measured['time_us'] / 1e6)}{interval}"
    yield "algbw", f"{measured['algbw_gb_per_s']:.3g} GB/s"
    if measured["baseline"]:
        beside = f"{measured['baseline']}, {format_us(measured['baseline_time_us'] / 1e6)}"
        yield "beside", f"{beside}: {measured['speedup_vs_baseline']:.3g}× as fast"


def _save(best: RegistryEntry, folder: Path) -> dict[str, Any]:
    """Write the files and return the JSON document of the contract."""
    schedule, program = folder / "schedule.parquet", folder / "program.xml"
    content = None if best.library is not None else best.program.schedule
    if best.library is None:
        write_file(program, best.program.program)
    if content is not None:
        write_file(schedule, content)
    write_file(folder / "manifest.json", json.dumps(best.manifest, indent=2, sort_keys=True).encode())
    return {
        "run": "program" if best.library is None else "library",
        "library": best.library,
        "schedule": str(schedule) if content is not None else None,
        "program": str(program) if best.library is None else None,
        "parameters": best.manifest["parameters"] if best.library is None else None,
        "measured": dict(best.measured),
        "simulated": is_simulated(best.manifest["runner"]),
        "run_id": best.version.run_id,
        "version": best.version.version,
        "model": best.version.name,
        "size_range_bytes": [best.size_class.min_bytes, best.size_class.max_bytes],
    }
