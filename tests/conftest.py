"""What all tests share: Hypothesis settings, one Ray cluster, a ready MLflow database."""

import gc
import os
import re
import shutil
import signal
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

from chorale.tuner.files.home import Home
from tests import choice, real_parts
from tests.properties import DEFAULT

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
settings.register_profile("chorale", deadline=None, max_examples=DEFAULT)
settings.register_profile("ci", deadline=None, max_examples=DEFAULT, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "chorale")

RARE_GARBAGE = (50_000, 20, 50)
"""Thresholds of the garbage collector: at Python's own it takes a sixth of the time of tests that make many objects."""

# Warnings of other people's code about other people's code, by their beginning.
FOREIGN_WARNINGS = (
    "The ``noload`` loader strategy is deprecated",  # MLflow 3.17 with SQLAlchemy 2.1
)


IN_PAIRS = (
    "browser", "docs", "integration", "live", "native", "packaging", "unit/deploy", "unit/runners/fabric",
    "unit/runners/local", "unit/runners/mpi", "unit/runners/msccl", "unit/runners/process_launch", "unit/tuner/watch",
)  # fmt: skip
"""Folders of tests that start servers or processes and wait for them much of the time.

Tests with a Ray cluster run in pairs too. Those of both kinds that pace links, compare durations or count fabrics are
marked `alone`, and run alone. What runs in pairs takes about as long as all that runs beside it. Browsers leave a loop
of events in their process, so that tests which start one of their own do not run with them.
"""


BESIDE = "not alone and not in_pairs"
"""Asks for the tests that run side by side."""

FAST, MORE = "not slow and not more", "not slow and (more or hypothesis)"
"""Ask for the tests of `make test`, and for those of `make test-all`: all others, and properties on more cases."""

ALL_SLOW = re.compile(r"^pytestmark = .*\bmark\.slow\b", re.MULTILINE)
"""A line of a file of which all tests are slow."""


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C work, and through the warnings that are not ours to repair; all others stay errors."""
    real_parts.pytest_configure(config)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts its background jobs; tests press Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for beginning in FOREIGN_WARNINGS:
        config.addinivalue_line("filterwarnings", f"ignore:{beginning}:DeprecationWarning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the files without a test of the kind that is asked for: to import all takes half a minute."""
    kind = next((kind for kind in (FAST, MORE, "not slow") if config.option.markexpr.startswith(kind)), "")
    where = config.option.markexpr.removeprefix(kind).removeprefix(" and ")
    folder, is_test = _folder_within(collection_path), collection_path.name.startswith("test_")
    if where == BESIDE and collection_path.is_dir():  # what is shared by tests of browsers alone takes seconds
        return _is_in_pairs(_from_here(collection_path)) or None
    if not is_test:
        return None
    text = collection_path.read_text(encoding="utf-8")
    marks = frozenset(re.findall(r"\bmark\.(\w+)", text))
    is_in_pairs = _is_in_pairs(folder)
    has_some = {"alone": "alone" in marks, "in_pairs": is_in_pairs or "ray" in marks, BESIDE: not is_in_pairs}
    name = _from_here(collection_path)
    is_of_kind = {
        FAST: not ALL_SLOW.search(text) and not (choice.is_more(name) and choice.is_whole(name)),
        MORE: choice.is_more(name) or not choice.is_whole(name) or "hypothesis" in text,
    }
    return None if has_some.get(where, True) and is_of_kind.get(kind, True) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: what ten thousand tests are made of stays, and nothing else is made yet."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()  # nor is it looked through while the tests run, or at the end
        gc.enable()
        gc.set_threshold(*RARE_GARBAGE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that `make test` leaves out, and those that run in pairs: they can be beside others."""
    if not any("::" in argument for argument in config.args):
        choice.require_cases([item.nodeid.removeprefix("tests/") for item in items])
    for item in items:
        if choice.is_more(item.nodeid.removeprefix("tests/")):
            item.add_marker(pytest.mark.more)
        is_in_pairs = item.get_closest_marker("ray") or _is_in_pairs(_folder_within(item.path))
        if is_in_pairs and not item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.in_pairs)


def _folder_within(path: Path) -> str:
    return _from_here(path.parent)


@cache
def _from_here(folder: Path) -> str:
    here = Path(__file__).parent
    return folder.relative_to(here).as_posix() if folder.is_relative_to(here) else ""


def _is_in_pairs(folder: str) -> bool:
    return any(folder == name or folder.startswith(f"{name}/") for name in IN_PAIRS)


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
    """Return an MLflow database with all tables, made once for all workers: creating them takes seconds."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "mlflow"
    with FileLock(f"{folder}.lock", timeout=120):
        if not folder.exists():
            _make_database(tmp_path_factory.mktemp("new") / "mlflow").rename(folder)
    return folder / "mlflow.db"


def _make_database(folder: Path) -> Path:
    """Make the database in `folder`, which is returned, as the one file there that matters."""
    from chorale.tuner.tracking.mlflow_store import MlflowStore  # noqa: PLC0415

    MlflowStore(f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts")
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # so that the one file holds everything
    return folder


@pytest.fixture
def home(tmp_path: Path, mlflow_template: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return an empty data folder with a ready MLflow database; CHORALE_HOME points to it."""
    root = tmp_path / "home"
    root.mkdir()
    shutil.copy(mlflow_template, root / "mlflow.db")
    monkeypatch.setenv("CHORALE_HOME", str(root))
    return Home(root)
