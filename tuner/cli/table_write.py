"""`chorale table write`: which of its three sources is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from chorale.job.table.merging import parse_range
from chorale.job.table.model import ANY_DTYPE, Table
from chorale.synth.errors import InvalidInput
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.reports.table_sources import MEASURED_DTYPE, table_of_campaign, table_of_registry
from chorale.tuner.reports.table_writing import JobGroup, parse_dtypes, parse_group, table_of_files
from chorale.tuner.tracking.mlflow_store import MlflowStore

_WAYS = "give --campaign NAME, or --topology SPEC, or PROGRAM files with --sizes RANGE"


@dataclass(frozen=True, slots=True)
class TableRequest:
    """The options of the command."""

    programs: tuple[str, ...]
    campaign: str | None
    topology: str | None
    sizes: str | None
    dtypes: str | None
    group: str | None
    ranks: int | None
    beyond: bool
    alias: str


def written_table(request: TableRequest) -> Table:
    """Return the table that is asked for. InvalidInput for options that do not go together."""
    group = JobGroup(None if request.group is None else parse_group(request.group), request.ranks)
    dtypes = parse_dtypes(request.dtypes or (ANY_DTYPE if request.programs else MEASURED_DTYPE))
    _require_source(request)
    if request.programs:
        sizes = parse_range(request.sizes or "")
        return table_of_files(request.programs, sizes, request.topology, group, dtypes)
    home = Home.from_environment()
    if request.campaign is not None:
        return table_of_campaign(home, request.campaign, group, dtypes, request.beyond)
    mlflow = MlflowStore(home.mlflow_uri, home.artifacts)
    return table_of_registry(mlflow, load_topology(str(request.topology)), group, dtypes, request.alias)


def _require_source(request: TableRequest) -> None:
    rule = "a table must be written of one thing"
    if request.campaign is not None and (request.programs or request.topology is not None):
        raise InvalidInput(rule, "--campaign with programs or --topology", _WAYS)
    if request.programs and request.sizes is None:
        raise InvalidInput("programs need the sizes that they are for", "no --sizes", "add --sizes 64KiB- or such")
    if not request.programs and request.sizes is not None:
        raise InvalidInput("--sizes is for program files", "none", "a campaign says itself what it measured")
    if request.beyond and request.campaign is None:
        raise InvalidInput("--beyond is for campaigns", "none", "add --campaign NAME")
    if not request.programs and request.campaign is None and request.topology is None:
        raise InvalidInput(rule, "nothing", _WAYS)
