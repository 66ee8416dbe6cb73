"""The registry on the MLflow server of the compose file: tables in PostgreSQL, artifacts through the server.

Gate, rollback, loading with lineage and the report are those of SQLite in tests/unit/tuner/test_promotion.py.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from chorale.runners.api.base import FailureKind, RunFailure, RunRequest
from chorale.synth.targets.lift import lift
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.tune import TuneReport
from chorale.tuner.tracking.champions import ROLLED_BACK
from chorale.tuner.tracking.mlflow_store import URI_VARIABLE, MlflowStore, load_mlflow
from chorale.tuner.tracking.registry import RegistryEntry, load_best
from chorale.tuner.tracking.tracker import TRIAL_ID
from chorale.tuner.trials.tuning_table import SizeClass
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.fakes import FakeRunner
from tests.integration.test_local_stack import needs_postgres
from tests.local_stack.stack import Stack
from tests.unit.tuner.launch.test_tuning import run

pytestmark = [pytest.mark.slow, needs_postgres]

SIZES_BYTES = (2**16, 2**20)
SMALL = SizeClass.of(SIZES_BYTES[0])


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as stack:
        stack.start(("postgres", "mlflow"))
        yield stack


def wrong_where_nobody_tuned(request: RunRequest) -> RunFailure | None:
    tried = set(request.sizes_bytes) <= set(SIZES_BYTES)
    return None if tried else RunFailure(FailureKind.WRONG_RESULT, "element 3 differs")


def test_champions_come_go_and_load_back(
    stack: Stack, home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URI_VARIABLE, stack.mlflow_url)
    network = load_topology("ring:4")

    def launch(method: str, fault: Callable[[RunRequest], RunFailure | None] = lambda request: None) -> TuneReport:
        tracked = {"mlflow_uri": stack.mlflow_url}
        changes = {"runner": {"kind": "local"}, "sizes": list(SIZES_BYTES), "tracking": tracked}
        return run(home, small_campaign(search={"methods": [method]}, **changes), runner=FakeRunner(fault))

    def champion() -> RegistryEntry:
        return load_best(MlflowStore(stack.mlflow_url, home.artifacts), network, "allreduce", SIZES_BYTES[0])

    first = launch("ring")
    assert first.verdicts[SMALL].promoted
    assert champion().version.version == "1"
    kept_out = launch("bfb", wrong_where_nobody_tuned)
    assert kept_out.verdicts[SMALL].reason == "fault test: element 3 differs"
    assert champion().version.version == "1"

    faster = launch("bfb")
    ratio = faster.verdicts[SMALL].ratio
    assert ratio is not None
    assert ratio.high < 1
    best = champion()
    assert best.version.version == "2"
    assert_lineage(best, network, kept_out, stack)
    assert_report_is_kept(faster, stack)

    rolled = chorale(
        capsys, "best", "--topology", "ring:4", "--collective", "allreduce", "--size", SIZES_BYTES[0], "--rollback",
        "--json",
    )  # fmt: skip
    assert rolled.code == 0, rolled.stderr
    assert rolled.document["rolled_back"] == "2"
    assert champion().version.version == "1"
    assert launch("bfb").verdicts[SMALL].reason == "somebody went back from it"
    assert champion().version.version == "1"

    assert list((stack.folder / "artifacts").rglob("schedule.parquet"))  # the server put them there
    assert not list(home.artifacts.rglob("*"))
    assert_tables_hold_it(stack)


def assert_lineage(best: RegistryEntry, network: Topology, launch: TuneReport, stack: Stack) -> None:
    """The version names its network, launch, certificate and trials, and the trials are there; it loads back whole."""
    schedule = best.program.verified.schedule
    assert schedule.topology.id == best.manifest["topology"]["id"] == network.id
    assert schedule.id == best.manifest["schedule_id"]
    assert lift(best.program.program).collective.name == "allreduce"
    lineage = best.manifest["lineage"]
    assert lineage["launch_id"] == launch.launch.launch_id  # the one that registered it
    assert lineage["certificate"] == dict(schedule.certificate)
    assert lineage["trial_ids"]
    runs = search(stack, launch)
    assert set(lineage["trial_ids"]) <= {one.data.tags.get(TRIAL_ID) for one in runs}
    assert {one.info.status for one in runs} == {"FINISHED"}


def search(stack: Stack, report: TuneReport) -> list[Any]:
    client = load_mlflow().MlflowClient(stack.mlflow_url)
    return list(client.search_runs([str(report.tracked.experiment_id)]))


def assert_report_is_kept(report: TuneReport, stack: Stack) -> None:
    artifacts = load_mlflow().artifacts
    source = f"runs:/{report.tracked.parent_run_id}/report.html"
    page = Path(artifacts.download_artifacts(source, tracking_uri=stack.mlflow_url)).read_bytes()
    assert page == (report.folder / "report.html").read_bytes()
    assert b"faster than version 1 side by side" in page


def assert_tables_hold_it(stack: Stack) -> None:
    engine = sqlalchemy.create_engine(stack.database_url)
    with engine.connect() as database:
        rows = database.execute(sqlalchemy.text("SELECT key, value FROM model_version_tags")).all()
        aliases = database.execute(sqlalchemy.text("SELECT alias, version FROM registered_model_aliases")).all()
    engine.dispose()
    assert (ROLLED_BACK, "to version 1") in [tuple(row) for row in rows]
    assert sorted(tuple(row) for row in aliases) == [("champion", 1), ("champion", 2)]  # the larger class kept its own
