"""Reads and writes runs, artifacts and registered versions in MLflow, on any server or database."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from chorale.runners.measurement.machine import acquire_lock
from chorale.runners.measurement.private_files import PRIVATE_FILE, PRIVATE_FOLDER
from chorale.synth.errors import Unavailable, cause_in
from chorale.synth.lazy_modules import missing_extra, require
from chorale.synth.redaction import redacted, split_credentials
from chorale.synth.shadowing import shadow_of
from chorale.tuner.config.values import kind_of_tables, sqlite_file, tables_at, tables_in, with_password

if TYPE_CHECKING:
    from mlflow import MlflowClient

PATIENCE_S = 120.0
"""Seconds to wait while another process creates the database. This is enough at ten times the usual load."""
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's error codes for a missing model and for a missing alias, respectively."""
Answer = TypeVar("Answer")
_RECORDS = "MLflow cannot record runs: {}"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql", "oracle")
_CLOUD = ("databricks", "databricks-uc", "uc")


def create_database(uri: str) -> None:
    """Create the SQLite database at `uri` and its folder, accessible only to this user.

    Does nothing if the database exists or if `uri` is not a SQLite database. MLflow must be installed. Raises
    Unavailable if the file cannot be created.
    """
    file = sqlite_file(uri)
    if file is None or _is_there(file):
        return
    try:
        file.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        way_out = "wait until it is done, or end that process"
        refusal = Unavailable("another process is creating the database {}", file, way_out)
        lock = acquire_lock(file.with_name(f"{file.name}.lock"), PATIENCE_S, refusal)
    except OSError as error:
        rule, way_out = "cannot write to the folder of MLflow's database: {}", "choose another CHORALE_HOME"
        raise Unavailable(rule, f"{file.parent}: {error.strerror}", way_out) from error
    try:
        if not _is_there(file):
            new = file.with_name(f"{file.name}.new")
            for suffix in ("", "-wal", "-shm", "-journal"):  # left by a process that was killed
                new.with_name(new.name + suffix).unlink(missing_ok=True)
            os.close(os.open(new, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))  # SQLite's other files get this mode as well
            _make_tables(f"sqlite:///{new.absolute()}")
            os.replace(new, file)
    finally:
        lock.release()


def _is_there(file: Path) -> bool:
    """Return whether the database file has content. An empty file counts as missing, because it still needs tables."""
    return file.exists() and (not file.is_file() or file.stat().st_size > 0)


def _make_tables(uri: str) -> None:
    from mlflow.store.db import utils  # noqa: PLC0415 - takes seconds

    engine = utils.create_sqlalchemy_engine_with_retry(uri)  # type: ignore[no-untyped-call]
    try:
        utils._initialize_tables(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()  # merges the write-ahead log into the database and removes it


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """A value of a metric.

    step:    position on MLflow's x axis, such as the size in bytes
    when_ms: Unix time in milliseconds; 0 means the time that is passed to `log`
    """

    name: str
    value: float
    step: int = 0
    when_ms: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    run_id: str
    finished: bool


@dataclass(frozen=True, slots=True)
class ModelVersion:
    name: str
    version: str
    run_id: str
    tags: Mapping[str, str]


def without_credentials(uri: str) -> str:
    """Move the credentials in `uri` to environment variables, which MLflow reads but never prints; return the rest."""
    if not uri.startswith(("http://", "https://")):
        return uri
    bare, user, password = split_credentials(uri)
    if user is None or password is None:
        return uri
    os.environ |= {"MLFLOW_TRACKING_USERNAME": user, "MLFLOW_TRACKING_PASSWORD": password}
    return bare


URI_VARIABLE = "MLFLOW_TRACKING_URI"
PARENT_TAG = "mlflow.parentRunId"
MAX_TAG_CHARACTERS = 4000

# An unreachable server should cost seconds, not minutes as with MLflow's defaults. MLflow must not repeat requests: if
# the reply to a creation came too late, the run would be created twice. Callers look for the run before they retry.
_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}

MAX_METRICS = 900
"""Maximum number of metrics in one request; MLflow allows 1000."""


class MlflowStore:
    """Accesses MLflow's tracking store and model registry at `uri`.

    Files are stored in the folder `artifacts` if `uri` is a database; a server has its own file store. Every method
    raises Unavailable if the store does not reply or refuses the request. The attribute `uri` is safe to display. If
    the address was stored without its password, the password is taken from MLFLOW_TRACKING_URI.

    Create only one store per process, because MLflow's address is global. Use it in one thread at a time.
    """

    def __init__(self, uri: str, artifacts: Path) -> None:
        whole = with_password(uri, URI_VARIABLE)
        self.uri = redacted(whole)
        self._artifacts = artifacts
        with self._translated_errors():
            self._client = _connect(without_credentials(whole))
            self._client.search_experiments(max_results=1)

    def experiment(self, name: str) -> str:
        """Return the id of the experiment `name`, which is created or restored if necessary."""
        with self._translated_errors():
            if not self._is_server:
                self._artifacts.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                location = None if self._is_server else (self._artifacts / name).absolute().as_uri()
                return str(self._client.create_experiment(name, artifact_location=location))
            if experiment.lifecycle_stage == "deleted":
                self._client.restore_experiment(experiment.experiment_id)
            return str(experiment.experiment_id)

    def runs(self, experiment_id: str, tag: str, value: str, key: str) -> dict[str, RunState]:
        """Return the runs whose tag `tag` is `value`, indexed by the value of their tag `key`.

        If several runs have the same key, a request was repeated because its response was lost. One of these runs is
        kept (a finished run, if there is one), and the others are deleted.
        """
        runs: dict[str, RunState] = {}
        token: str | None = None
        filter_text = f"tags.`{tag}` = '{value}'"
        with self._translated_errors():
            while True:
                page = self._client.search_runs([experiment_id], filter_text, max_results=1000, page_token=token)
                for run in page:
                    if (name := run.data.tags.get(key)) is None:
                        continue
                    state = RunState(run.info.run_id, run.info.status in ("FINISHED", "FAILED", "KILLED"))
                    rivals = sorted(
                        [state, *([runs[name]] if name in runs else [])], key=lambda one: (not one.finished, one.run_id)
                    )
                    runs[name] = rivals[0]
                    for duplicate in rivals[1:]:
                        self._client.delete_run(duplicate.run_id)
                if not (token := page.token):
                    return runs

    def start_run(
        self, experiment_id: str, name: str, tags: Mapping[str, str], start_ms: int, parent: str | None = None
    ) -> str:
        """Create a run (a child of the run `parent`, if given) and return its id."""
        all_tags = {**tags, **({PARENT_TAG: parent} if parent else {})}
        with self._translated_errors():
            return str(self._client.create_run(experiment_id, start_ms, all_tags, name).info.run_id)

    def log(
        self,
        run_id: str,
        metrics: Sequence[MetricPoint] = (),
        parameters: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        when_ms: int = 0,
    ) -> None:
        """Record a run's metrics, parameters and tags, with one request for every `MAX_METRICS` metrics."""
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415

        with self._translated_errors():
            points = [Metric(point.name, point.value, point.when_ms or when_ms, point.step) for point in metrics]
            for rest in range(MAX_METRICS, len(points), MAX_METRICS):
                self._client.log_batch(run_id, points[rest : rest + MAX_METRICS])
            self._client.log_batch(
                run_id,
                points[:MAX_METRICS],
                [Param(key, value) for key, value in (parameters or {}).items()],
                [RunTag(key, value[:MAX_TAG_CHARACTERS]) for key, value in (tags or {}).items()],
            )

    def upload(self, run_id: str, files: Mapping[str, bytes]) -> None:
        """Store `files` (path inside the run -> content) as the run's artifacts."""
        with self._translated_errors(), _as_folder(files) as folder:
            self._client.log_artifacts(run_id, folder)

    def end_run(self, run_id: str, status: str, end_ms: int | None = None) -> None:
        """Close a run as FINISHED, FAILED or KILLED."""
        with self._translated_errors():
            self._client.set_terminated(run_id, status, end_ms)

    def reopen_run(self, run_id: str) -> None:
        with self._translated_errors():
            self._client.update_run(run_id, status="RUNNING")

    def register(
        self,
        name: str,
        model_tags: Mapping[str, str],
        version_tags: Mapping[str, str],
        run_id: str,
        files: Mapping[str, bytes],
    ) -> ModelVersion:
        """Add a version with `files` to the registered model `name`; create the model if necessary."""
        with self._translated_errors(), _as_folder(files) as folder:
            if self._of_model(name, lambda: self._client.get_registered_model(name)) is None:
                self._client.create_registered_model(name, dict(model_tags))
            experiment_id = self._client.get_run(run_id).info.experiment_id
            logged_name = name.replace(".", "-")  # MLflow allows no dots here
            model = self._client.create_logged_model(
                experiment_id, logged_name, run_id, model_type="collective-schedule"
            )
            self._client.log_model_artifacts(model.model_id, folder)
            self._client.finalize_logged_model(model.model_id, "READY")
            version = self._client.create_model_version(
                name, f"models:/{model.model_id}", run_id, dict(version_tags), model_id=model.model_id
            )
            return ModelVersion(name, str(version.version), run_id, dict(version_tags))

    def set_alias(self, version: ModelVersion, alias: str) -> None:
        with self._translated_errors():
            self._client.set_registered_model_alias(version.name, alias, version.version)

    def tag_version(self, version: ModelVersion, tags: Mapping[str, str]) -> None:
        with self._translated_errors():
            for key, value in tags.items():
                self._client.set_model_version_tag(version.name, version.version, key, value[:MAX_TAG_CHARACTERS])

    def tag_model(self, name: str, key: str, value: str) -> None:
        with self._translated_errors():
            self._client.set_registered_model_tag(name, key, value)

    def model_tags(self, name: str) -> dict[str, str]:
        """Return the tags of the registered model `name`, which must exist."""
        with self._translated_errors():
            return dict(self._client.get_registered_model(name).tags)

    def models(self, tags: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Return the registered models that have all `tags`: name -> all tags of the model."""
        filter_text = " AND ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        with self._translated_errors():
            models = self._client.search_registered_models(filter_text, max_results=1000)
            return {model.name: dict(model.tags) for model in models}

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions of the registered model `name`, newest first."""
        with self._translated_errors():
            entries = self._client.search_model_versions(f"name = '{name}'", max_results=1000)
        return [_version(entry) for entry in sorted(entries, key=lambda entry: -int(entry.version))]

    def aliased(self, name: str, alias: str) -> ModelVersion | None:
        """Return the version to which `alias` of the model `name` points, or None if there is none."""
        with self._translated_errors():
            found = self._of_model(name, lambda: self._client.get_model_version_by_alias(name, alias))
            return None if found is None else _version(found)

    def _of_model(self, name: str, ask: Callable[[], Answer]) -> Answer | None:
        """Return the result of `ask`, a request about the model `name`, or None if the model or alias does not exist.

        A server with authentication refuses requests about models that do not exist. After a refusal, this method
        therefore searches for the model; it does not always search, because a search is slower than a request.
        """
        try:
            return ask()
        except Exception as error:
            code = getattr(error, "error_code", None)
            is_hidden = code == "PERMISSION_DENIED" and not self._client.search_registered_models(f"name = '{name}'")
            if is_hidden or code in _MISSING:
                return None
            raise

    def download(self, version: ModelVersion) -> dict[str, bytes]:
        mlflow = load_mlflow()
        with self._translated_errors(), tempfile.TemporaryDirectory(prefix="chorale-") as folder:
            source = f"models:/{version.name}/{version.version}"
            root = Path(mlflow.artifacts.download_artifacts(source, dst_path=folder))
            return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    @property
    def _is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except Unavailable:
            raise
        except Exception as error:  # HTTP, SQL and file system errors all mean that the store is unavailable
            if isinstance(error, ModuleNotFoundError) and (missing := missing_extra(error)):
                raise missing from None
            way_out = "check `tracking.mlflow_uri` or MLFLOW_TRACKING_URI"
            if self.uri.startswith("sqlite:"):
                way_out += "; move a damaged file away, and --resume uploads the journal to a new one"
            way_out = shadow_of(error) or way_out
            cause: BaseException = error  # the outer messages only repeat the address and the retries
            while cause.__cause__ is not None:
                cause = cause.__cause__
            value = f"{self.uri}: {type(cause).__name__}: {cause}"
            raise Unavailable("MLflow cannot be reached: {}", value, way_out) from None


def load_mlflow() -> ModuleType:
    """Import MLflow with Chorale's settings. Call this only if MLflow is needed, because importing takes a second."""
    for key, value in _ENVIRONMENT.items():
        os.environ.setdefault(key, value)
    import mlflow  # noqa: PLC0415
    import sqlalchemy  # noqa: PLC0415

    if not sqlalchemy.event.contains(sqlalchemy.Engine, "connect", _spare_the_disk):
        sqlalchemy.event.listen(sqlalchemy.Engine, "connect", _spare_the_disk)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # errors reach us as exceptions
    return mlflow


def _spare_the_disk(connection: object, _record: object) -> None:
    """Make SQLite use a write-ahead log and rarely sync it to disk.

    A trial has about eight transactions, and each of them would otherwise be synced to disk. A power failure may lose
    the latest runs but never corrupts the database; --resume uploads these runs again.
    """
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")


def _connect(uri: str) -> MlflowClient:
    mlflow = load_mlflow()
    create_database(uri)
    if (file := sqlite_file(uri)) is not None:
        with suppress(sqlite3.OperationalError):  # the database is locked: MLflow waits for it
            tables_in(file)  # raises for a damaged file, which MLflow would open again and again for 100 s
    if not uri.startswith(("http://", "https://")):
        os.environ.setdefault("PGCONNECT_TIMEOUT", "5")
    # The registry resolves `models:/…` with these two global settings, regardless of the client's arguments. MLflow
    # also writes the first one to the environment, where it would look like a user's setting.
    setting = os.environ.get(URI_VARIABLE)
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    os.environ.pop(URI_VARIABLE, None)
    if setting is not None:
        os.environ[URI_VARIABLE] = setting
    client: MlflowClient = mlflow.MlflowClient(uri, uri)
    return client


def _version(entry: object) -> ModelVersion:
    return ModelVersion(entry.name, str(entry.version), entry.run_id, dict(entry.tags))  # type: ignore[attr-defined]


@contextmanager
def _as_folder(files: Mapping[str, bytes]) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="chorale-") as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        yield folder


def what_is_at(uri: str) -> str:
    """Describe the server, database or folder at `uri`. Raises Unavailable, with the cause, if it cannot store runs."""
    require("mlflow")
    scheme, file, shown = uri.partition(":")[0].partition("+")[0], sqlite_file(uri), redacted(uri)
    is_folder = scheme == "file" or ("://" not in uri and scheme not in (*_CLOUD, "http", "https"))
    folder = Path(uri.removeprefix("file://").removeprefix("file:") or ".") if is_folder else None
    if folder is not None or (file is not None and not file.exists()):
        place = (folder or file or Path()).absolute()
        nearest = next(path for path in (place, *place.parents) if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise Unavailable(_RECORDS, f"{uri}: {nearest} is not a folder that can be written", "name another folder")
        if file is not None:
            return f"a database that the first campaign creates: {file}"
    try:
        tables = None
        if scheme in _DATABASES:
            tables = tables_in(file) if file is not None else tables_at(uri)
        if tables and kind_of_tables(tables) != "MLflow":
            whose = "a study of Optuna" if kind_of_tables(tables) else "tables of another program"
            raise Unavailable(_RECORDS, f"{shown} contains {whose}", "give MLflow its own database")
        if tables is not None and not tables:  # a request to MLflow would create tables
            return f"a database: {shown}, in which the first campaign creates the tables"
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
        mlflow = load_mlflow()
        with tempfile.TemporaryDirectory(prefix="chorale-") as empty:  # asking about the folder itself would create it
            address = without_credentials(uri) if folder is None else Path(empty).as_uri()
            mlflow.MlflowClient(address, address).search_experiments(max_results=1)
    except Unavailable:
        raise
    except Exception as error:  # drivers and MLflow each have their own types
        way_out = "check that address; if MLFLOW_TRACKING_URI is unset, runs are kept in the data folder"
        if " 401" in str(error) or " 403" in str(error):
            way_out = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        raise Unavailable(_RECORDS, f"{shown}: {cause_in(str(error))}", way_out) from None
    return f"the folder {folder}" if folder is not None else f"{shown} answers"
