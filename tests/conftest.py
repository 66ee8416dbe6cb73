"""What all tests share: Hypothesis settings, compiled kernels, one Ray cluster, a ready MLflow database."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from chorale.synth.kernels.warm_up import warm, warm_lowering
from chorale.tuner.files.home import Home

# Ray and MLflow read these when they are imported: no tokens in the home folder, no reports, no long retries.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["CHORALE_INSECURE_CLUSTER"] = "1"  # the clusters of tests have none, then
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112 - as Ray spells it
os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
os.environ.pop("RAY_ADDRESS", None)
os.environ.pop("MLFLOW_TRACKING_URI", None)

# Wall-clock deadlines would make tests fail on a busy machine; in CI the same examples are drawn every time.
settings.register_profile("chorale", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "chorale")

# Warnings of other people's code about other people's code, by their beginning.
FOREIGN_WARNINGS = (
    "The ``noload`` loader strategy is deprecated",  # MLflow 3.17 with SQLAlchemy 2.1
)


ALONE = "live"
"""The folder of tests that pace links, look at clocks or count fabrics, without the folders below it."""


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C work, and through the warnings that are not ours to repair; all others stay errors."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts its background jobs; tests press Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for beginning in FOREIGN_WARNINGS:
        config.addinivalue_line("filterwarnings", f"ignore:{beginning}:DeprecationWarning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where those that run alone are asked for, leave out files without one: to import all takes half a minute."""
    if config.option.markexpr != "not slow and alone" or not collection_path.name.startswith("test_"):
        return None
    return None if _is_of_alone(collection_path) or "mark.alone" in collection_path.read_text("utf-8") else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need the machine for themselves."""
    for item in items:
        if _is_of_alone(item.path):
            item.add_marker(pytest.mark.alone)


@cache
def _is_of_alone(path: Path) -> bool:
    return path.parent.relative_to(Path(__file__).parent).as_posix() == ALONE


@pytest.fixture(scope="session", autouse=True)
def _compiled_kernels() -> None:
    """Compile before the first test, so that no test's timeout pays for it."""
    warm()
    warm_lowering()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One small Ray cluster in this process for all tests that need one; executors and workshops join it."""
    from chorale.runners.ray.cluster import NAMESPACE, ray  # noqa: PLC0415 - most sessions need no Ray

    ray.init(
        address="local",
        num_cpus=4,
        num_gpus=4,  # in name only, for those who ask how they are lent
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        namespace=NAMESPACE,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def mlflow_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an MLflow database with all tables, made once: creating them takes seconds."""
    from chorale.tuner.tracking.mlflow_store import MlflowStore  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("mlflow")
    MlflowStore(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts")
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the one file holds everything
    return folder / "mlflow.db"


@pytest.fixture
def home(tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return an empty data folder with a ready MLflow database; CHORALE_HOME points to it."""
    root = tmp_path / "home"
    root.mkdir()
    shutil.copy(mlflow_template, root / "mlflow.db")
    monkeypatch.setenv("CHORALE_HOME", str(root))
    return Home(root)
