"""Addresses of MLflow of every kind: what would record runs there, or the cause why nothing does."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.tracking.mlflow_address import what_is_at


class Guarded(BaseHTTPRequestHandler):
    """A server that is healthy for everybody, and answers its own user only, or with a page."""

    def do_GET(self) -> None:
        is_known = self.headers.get("Authorization") == "Basic dTpw"  # u:p
        is_open = self.path == "/health" or self.path.startswith("/page/") or is_known
        self.send_response(200 if is_open else 401)
        self.end_headers()
        self.wfile.write(b"{}" if is_known else b"<html>sign in</html>")

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Guarded) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://127.0.0.1:{port}", "401"),
        ("http://u:no@127.0.0.1:{port}", "401"),
        ("http://127.0.0.1:{port}/page", "JSON"),
        ("http:/127.0.0.1", "http:/127.0.0.1"),
        ("file:{folder}/mlruns", "set `MLFLOW_ALLOW_FILE_STORE=true`"),
        ("{folder}/mlruns", "set `MLFLOW_ALLOW_FILE_STORE=true`"),
        ("sqlite:///{folder}/optuna.db", "a study of Optuna"),
        ("sqlite:///{folder}/text", "file is not a database"),
        ("postgresql://u:secret@127.0.0.1:1/db", "Connection refused"),
        ("nonsense://x", "unsupported URI"),
    ],
)
@pytest.mark.usefixtures("no_proxy")
def test_what_does_not_work_is_said_with_its_cause(tmp_path: Path, port: int, address: str, words: str) -> None:
    with closing(sqlite3.connect(tmp_path / "optuna.db")) as connection:
        for table in ("studies", "trials", "study_directions", "alembic_version"):
            connection.execute(f"CREATE TABLE {table} (id INTEGER)")
    (tmp_path / "text").write_text("no database")
    with pytest.raises(Unavailable) as caught:
        what_is_at(address.format(port=port, folder=tmp_path))
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.usefixtures("no_proxy")
def test_what_works_is_said(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "answers" in what_is_at(f"http://u:p@127.0.0.1:{port}")
    assert "the first campaign makes" in what_is_at(f"sqlite:///{tmp_path}/new/mlflow.db")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert "the folder" in what_is_at(f"file:{tmp_path}/mlruns")


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
