"""The file, signed messages, and versions in MLflow."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from chorale.job.table.layout import FORMAT
from chorale.synth.errors import InvalidInput, Unavailable
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.watch.publishing import (
    ALIAS,
    SIGNATURE_HEADER,
    MlflowTables,
    Publication,
    PublicationFiles,
    Publisher,
    signature,
    webhook,
)

_SECRET = b"key"
_FIRST = Publication("a" * 64, b"first", 1000.0, {"why": "link 0>1 is dead", "seconds": 1.5})
_SECOND = Publication("b" * 64, b"second", 2000.0, {"why": "all links are healthy", "seconds": 0.5})


class _Server(HTTPServer):
    """Keeps what was posted; answers with `status`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posts: list[tuple[str, bytes]] = []
        self.status = 200


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status == 200:
            self.server.posts.append((self.headers[SIGNATURE_HEADER], body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _url(server: _Server) -> str:
    return f"http://127.0.0.1:{server.server_port}/hook"


def test_a_message_is_signed(server: _Server) -> None:
    webhook(_url(server), _SECRET)(_FIRST)
    ((header, body),) = server.posts
    assert header == signature(body, _SECRET) != signature(body, b"another key")
    assert json.loads(body) == {
        "id": _FIRST.id,
        "table": "a" * 64,
        "time_s": 1000.0,
        "why": "link 0>1 is dead",
        "seconds": 1.5,
    }


def test_what_could_not_be_delivered_is_delivered_later_in_order(server: _Server, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path / "table", {"webhook": webhook(_url(server), _SECRET)}, PublicationFiles(tmp_path))
    server.status = 503
    for publication in (_FIRST, _SECOND):
        publisher.publish(publication)
        failures = publisher.deliver()  # told once
        assert [receiver for receiver, _ in failures] == (["webhook"] if publication is _FIRST else [])
    assert publisher.waiting() == {"webhook": 2}
    assert (tmp_path / "table").read_bytes() == b"second"
    server.status = 200
    assert publisher.deliver() == [("webhook", None)]
    assert [json.loads(body)["table"] for _, body in server.posts] == ["a" * 64, "b" * 64]
    assert publisher.deliver() == []
    assert len(server.posts) == 2


def test_a_publisher_goes_on_where_one_was_killed(server: _Server, tmp_path: Path) -> None:
    """Killed before the file was replaced, and after it: the file decides what is published."""

    def publisher() -> Publisher:
        files = PublicationFiles(tmp_path / "record")
        return Publisher(tmp_path / "table", {"webhook": webhook(_url(server), _SECRET)}, files)

    (tmp_path / "record").mkdir()
    first, second = (replace(each, data=_table_data(each.digest)) for each in (_FIRST, _SECOND))
    publisher().publish(first)
    for is_replaced in (False, True):
        dying = publisher()
        dying.resume()
        assert dying.present == first
        dying._waiting["webhook"].append(second)
        dying._write(second)
        if is_replaced:
            (tmp_path / "table").write_bytes(second.data)
        again = publisher()
        again.resume()
        assert (again.present, again.former) == ((second, first) if is_replaced else (first, None))
        assert again.waiting() == {"webhook": 2 if is_replaced else 1}
    assert again.deliver() == []
    assert [json.loads(body)["id"] for _, body in server.posts] == [first.id, second.id]
    last = publisher()
    last.resume()
    assert last.waiting() == {"webhook": 0}


def _table_data(digest: str) -> bytes:
    """Return the first lines of a table's file."""
    return f"{FORMAT}\nx y z {digest}\n".encode()


def test_nobody_there_is_no_failure_of_the_file(tmp_path: Path) -> None:
    publisher = Publisher(
        tmp_path / "table", {"webhook": webhook("http://127.0.0.1:9/", _SECRET)}, PublicationFiles(tmp_path)
    )
    publisher.publish(_FIRST)
    assert len(publisher.deliver()) == 1
    assert (tmp_path / "table").read_bytes() == b"first"


def test_without_its_folder_nothing_is_published(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        Publisher(tmp_path / "none" / "table", {}, PublicationFiles(tmp_path)).publish(_FIRST)


def test_versions_in_the_registry_have_an_alias_and_the_bytes(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for publication in (_FIRST, _SECOND, _SECOND):  # as a watch that starts again does
        MlflowTables(uri, tmp_path / "artifacts", "cube").register(publication)
    store = MlflowStore(uri, tmp_path / "artifacts")
    versions = store.versions("cube-table")
    assert sorted(version.tags["chorale.table"][0] for version in versions) == ["a", "b"]
    assert len({version.run_id for version in versions}) == 1
    published = store.aliased("cube-table", ALIAS)
    assert published is not None
    assert store.download(published)["table"] == b"second"


def test_a_registry_that_is_away_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        MlflowTables("http://127.0.0.1:9", tmp_path, "cube").register(_FIRST)
