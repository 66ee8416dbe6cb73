"""What keeps MLflow's store to its user: the mode of its database, and passwords of servers out of their addresses."""

from __future__ import annotations

import os
from pathlib import Path

from chorale.runners.measurement.private_folder import PRIVATE_FILE, PRIVATE_FOLDER
from chorale.synth.redaction import split_credentials

_SQLITE = "sqlite:///"
_USER_VARIABLE, _PASSWORD_VARIABLE = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"


def without_credentials(uri: str) -> str:
    """Return `uri`; the user and password of a server go to where MLflow looks for them and never prints them."""
    if not uri.startswith(("http://", "https://")):
        return uri
    bare, user, password = split_credentials(uri)
    if user is None or password is None:
        return uri
    os.environ |= {_USER_VARIABLE: user, _PASSWORD_VARIABLE: password}
    return bare


def create_database(uri: str) -> None:
    """Make the file of an SQLite database, and its folder, for this user alone; for other addresses do nothing."""
    if uri.startswith(_SQLITE):
        database = Path(uri.removeprefix(_SQLITE).partition("?")[0])
        database.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        os.close(os.open(database, os.O_RDWR | os.O_CREAT, PRIVATE_FILE))  # SQLite's other files get this mode, too
