"""Serves MLflow's web pages and API for a data folder in this process; access needs the folder's password."""

import base64
import binascii
import hmac
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

from chorale.runners.measurement.private_files import read_secret
from chorale.synth.errors import Unavailable
from chorale.synth.lazy_modules import missing_extra
from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_store import create_database

USER = "chorale"
HEALTH = "/health"
"""URL path that needs no password; it only shows that the server runs."""

# MLflow must not start job runners (eight more processes) or its assistant (it runs commands), or report usage.
_ENVIRONMENT = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Application = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


def password_file(home: Home) -> Path:
    """Return the path of the pages' password file. A missing file is created, and only this user can read the file."""
    path = home.root / "ui-password"
    home.secret(path, lambda: secrets.token_urlsafe(24))
    return path


def serve_pages(home: Home, host: str, port: int) -> None:
    """Serve the pages on `host` in this process until SIGINT or SIGTERM. Raises Unavailable if it cannot listen.

    No child process is started, so other processes cannot see secrets in the store's address.
    """
    password = read_secret(password_file(home))
    # MLflow's server is configured by environment variables, which it reads on import
    uri = home.mlflow_uri
    artifacts = home.create(home.artifacts).as_uri()
    os.environ |= {
        **_ENVIRONMENT,
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artifacts,
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "_MLFLOW_IN_JOB_EXECUTOR": "false",
    }
    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        create_database(uri)
        from mlflow.server.fastapi_app import app  # noqa: PLC0415 - takes seconds, and must follow its settings
        from mlflow.server.handlers import initialize_backend_stores  # noqa: PLC0415

        initialize_backend_stores(uri, uri, "mlflow-artifacts:/")
    except Exception as error:  # SQL, drivers and file systems each have their own types
        if isinstance(error, ModuleNotFoundError) and (missing := missing_extra(error)):
            raise missing from None
        rule, way_out = "cannot read MLflow's store: {}", "check MLFLOW_TRACKING_URI and the data folder"
        raise Unavailable(rule, f"{uri}: {error}", way_out) from None
    application = PasswordGate(app, USER, password)
    import uvicorn  # noqa: PLC0415 - only this command needs it

    from chorale.runners.ray.http_connections import BoundedHttp, IdleConnections  # noqa: PLC0415 - as above

    settings = uvicorn.Config(
        application,
        host,
        port,
        http=partial(BoundedHttp, idle=IdleConnections()),  # type: ignore[arg-type]  # it is called as a class
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    try:
        uvicorn.Server(settings).run()
    except SystemExit as error:  # uvicorn exits if it cannot listen
        way_out = "choose another --port or --host, or look at the lines above"
        raise Unavailable("the port {} is in use", f"{host}:{port}", way_out) from error


class PasswordGate:
    """An ASGI application that accepts only requests with the given user and password (HTTP Basic authentication)."""

    def __init__(self, application: _Application, user: str, password: str) -> None:
        self._application = application
        self._expected = f"{user}:{password}".encode()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        is_open = scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == HEALTH)
        value = next((value for name, value in scope.get("headers", ()) if name == b"authorization"), b"")
        scheme, _, credentials = value.partition(b" ")
        try:
            given = base64.b64decode(credentials, validate=True) if scheme.lower() == b"basic" else b""
        except binascii.Error:
            given = b""
        if is_open or hmac.compare_digest(given, self._expected):
            await self._application(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"www-authenticate", b'Basic realm="chorale"'), (b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"the password is in the data folder: ui-password\n"})
