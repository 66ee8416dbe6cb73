"""What keeps passwords of MLflow's servers out of their addresses."""

from __future__ import annotations

import os

from chorale.synth.redaction import split_credentials

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
