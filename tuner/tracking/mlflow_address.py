"""Find out what is at an MLflow address and whether runs could be recorded there. Creates nothing, never waits long."""

import os
import tempfile
from pathlib import Path

from chorale.synth.errors import Unavailable, cause_in
from chorale.synth.extras import require
from chorale.synth.redaction import redacted
from chorale.tuner.files.databases import kind_of_tables, sqlite_file, tables_at, tables_in
from chorale.tuner.tracking.mlflow_store import load_mlflow, without_credentials

_RULE = "MLflow must be able to record runs"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql", "oracle")
_CLOUD = ("databricks", "databricks-uc", "uc")


def what_is_at(uri: str) -> str:
    """Describe what records runs at `uri`. Raises Unavailable, with the cause, if runs cannot be recorded."""
    require("mlflow")
    scheme, file, shown = uri.partition(":")[0].partition("+")[0], sqlite_file(uri), redacted(uri)
    is_folder = scheme == "file" or ("://" not in uri and scheme not in (*_CLOUD, "http", "https"))
    folder = Path(uri.removeprefix("file://").removeprefix("file:") or ".") if is_folder else None
    if folder is not None or (file is not None and not file.exists()):
        place = (folder or file or Path()).absolute()
        nearest = next(path for path in (place, *place.parents) if path.exists())
        if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
            raise Unavailable(_RULE, f"{uri}: {nearest} is not a folder that can be written", "name another")
        if file is not None:
            return f"a database that the first campaign creates: {file}"
    try:
        tables = None
        if scheme in _DATABASES:
            tables = tables_in(file) if file is not None else tables_at(uri)
        if tables and kind_of_tables(tables) != "MLflow":
            whose = "a study of Optuna" if kind_of_tables(tables) else "tables of another program"
            raise Unavailable(_RULE, f"{shown} holds {whose}", "give MLflow its own database")
        if tables is not None and not tables:  # asking MLflow would create them
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
        raise Unavailable(_RULE, f"{shown}: {cause_in(str(error))}", way_out) from None
    return f"the folder {folder}" if folder is not None else f"{shown} answers"
