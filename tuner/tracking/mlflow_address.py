"""What an address of MLflow is, and whether runs could be recorded there; nothing is made, no wait is long."""

import base64
import json
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from chorale.synth.errors import Unavailable, cause_in
from chorale.synth.extras import require
from chorale.synth.redaction import redacted, split_credentials
from chorale.tuner.files.databases import engine_of, kind_of_tables, sqlite_file, tables_at, tables_in
from chorale.tuner.tracking.mlflow_store import load_mlflow

PATIENCE_S = 1.5
_RULE = "MLflow must be able to record runs"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql", "oracle")
_CLOUD = ("databricks", "databricks-uc", "uc")
_SEARCH = "api/2.0/mlflow/experiments/search?max_results=1"
_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"


def what_is_at(uri: str) -> str:
    """Return in words what records runs at `uri`. Unavailable, with the cause, where nothing does."""
    if uri.startswith(("http://", "https://")):
        return _server(uri)
    if uri.startswith(("http:", "https:")):
        raise Unavailable(_RULE, uri, "write the address of a server as http://HOST:PORT")
    require("mlflow")
    if uri.partition(":")[0].partition("+")[0] in _DATABASES:
        return _database(uri)
    is_folder = "://" not in uri and uri.partition(":")[0] not in _CLOUD
    return _folder(uri) if is_folder or uri.startswith("file:") else _other(uri)


def _server(uri: str) -> str:
    bare, user, password = split_credentials(uri)
    user, password = (
        user or os.environ.get("MLFLOW_TRACKING_USERNAME"),
        password or os.environ.get("MLFLOW_TRACKING_PASSWORD"),
    )
    request = urllib.request.Request(f"{bare.rstrip('/')}/{_SEARCH}")  # noqa: S310 - http above
    if user and password:
        request.add_header("Authorization", f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}")
    elif token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    unfit = "check the address, and what stands before that server"
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310 - as above
            status, body = answer.status, answer.read(1 << 20)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            given = "refuses this user" if user or os.environ.get("MLFLOW_TRACKING_TOKEN") else "needs a login"
            raise Unavailable(_RULE, f"{bare} {given}: {error.code} {error.reason}", _LOGIN) from None
        raise Unavailable(_RULE, f"{bare} answers {error.code} {error.reason}", unfit) from None
    except (OSError, ValueError) as error:
        way_out = "start that server, or unset MLFLOW_TRACKING_URI"
        raise Unavailable(_RULE, f"{bare}: {getattr(error, 'reason', error)}", way_out) from None
    try:
        is_mlflow = isinstance(json.loads(body), dict)
    except ValueError:
        is_mlflow = False
    if not is_mlflow:
        raise Unavailable(_RULE, f"{bare} answers {status}, but not as MLflow does: a page, perhaps of a login", unfit)
    return f"the server {bare} answers {status}"


def _database(uri: str) -> str:
    file = sqlite_file(uri)
    if file is not None and not file.exists():
        folder = next(path for path in file.absolute().parents if path.exists())
        if not os.access(folder, os.W_OK | os.X_OK):
            way_out = "name a database in a folder that can be written"
            raise Unavailable(_RULE, f"{file}: {folder} cannot be written", way_out)
        return f"a database that the first campaign makes: {file}"
    try:
        tables = tables_in(file) if file is not None else tables_at(uri)
        whose = kind_of_tables(tables)
        if whose == "MLflow":
            _require_its_version(uri)
    except Unavailable:
        raise
    except Exception as error:  # drivers and MLflow each have their own types
        value = f"{redacted(uri)}: {cause_in(str(error))}"
        raise Unavailable(_RULE, value, "check that database and its address") from None
    if whose == "MLflow" or not tables:
        return f"a database: {redacted(uri)}" + ("" if tables else ", in which the first campaign makes the tables")
    value = f"{redacted(uri)} holds {'a study of Optuna' if whose else 'tables of something else'}"
    raise Unavailable(_RULE, value, "give MLflow a database of its own")


def _require_its_version(uri: str) -> None:
    load_mlflow()
    from mlflow.store.db import utils  # noqa: PLC0415 (seconds)

    engine = engine_of(uri)
    try:
        utils._verify_schema(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()


def _folder(uri: str) -> str:
    """Ask MLflow in an empty folder whether it keeps runs in folders; this one would be made by the question."""
    path = Path(uri.removeprefix("file://").removeprefix("file:") or ".")
    nearest = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise Unavailable(_RULE, f"{uri}: {nearest} is no folder that can be written", "name another")
    with tempfile.TemporaryDirectory(prefix="chorale-") as empty:
        _ask_mlflow(uri, Path(empty).as_uri())
    return f"the folder {path}"


def _other(uri: str) -> str:
    _ask_mlflow(uri, uri)
    return f"{redacted(uri)} answers"


def _ask_mlflow(uri: str, address: str) -> None:
    try:
        mlflow = load_mlflow()
        mlflow.MlflowClient(address, address).search_experiments(max_results=1)
    except Exception as error:  # as above
        way_out = "or unset MLFLOW_TRACKING_URI, and runs are kept in the data folder"
        raise Unavailable(_RULE, f"{redacted(uri)}: {cause_in(str(error))}", way_out) from None
