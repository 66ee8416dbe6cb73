"""What is answered before routing: by which statements, to whom, and with what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from chorale.tuner.service.access import NotFound
from chorale.tuner.service.http.direct_reads import MAX_ENTRY_BYTES, ResultReader
from chorale.tuner.service.jobs.job_store import JobStore
from tests.unit.tuner.service.conftest import Service

KEYS = tuple(digit * 64 for digit in "abc")


@contextmanager
def statements() -> Iterator[list[str]]:
    """The SQL statements of all engines in the meantime."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    sql.event.listen(sql.Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sql.event.remove(sql.Engine, "before_cursor_execute", note)


def finished_key(service: Service) -> str:
    job = service.finished(service.post("/v1/syntheses", topology="ring:4", method="bfb").json())
    return str(job["result"])


def test_a_result_takes_one_statement_then_none_and_no_task(service: Service):
    path = f"/v1/results/{finished_key(service)}"
    started = len(service.backend.started)
    with statements() as first:
        answer = service.client.get(path)
    with statements() as later:
        again = [service.client.get(path) for _ in range(5)]
    assert len([text for text in first if "FROM results" in text]) == 1
    assert not [text for text in later if "FROM results" in text]
    assert {reply.content for reply in again} == {answer.content}
    assert len(service.backend.started) == started
    assert answer.json()["document"]["verified"] is True
    assert "schedule.parquet" in answer.json()["files"]


def test_health_takes_no_statement_and_waits_for_no_lock(service: Service):
    scheduler = service.client.app.state.scheduler  # type: ignore[attr-defined]
    with scheduler._lock:
        answer = service.client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json()["queued"] == 0


def test_a_result_in_memory_still_wants_a_token(service: Service):
    path = f"/v1/results/{finished_key(service)}"
    assert service.client.get(path).status_code == 200
    for header in ("", "Bearer", "Bearer ", "Bearer wrong", "Basic abc"):
        refused = service.client.get(path, headers={"Authorization": header})
        assert refused.status_code == 401
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert refused.json()["error"]["way_out"]
    assert service.client.get(path, headers={"Host": "evil.example"}).status_code == 421


def test_what_is_answered_directly_is_counted_by_its_route(service: Service):
    service.client.get("/healthz")
    assert service.client.get(f"/v1/results/{KEYS[0]}").status_code == 404
    text = service.client.get("/metrics").text
    assert 'route="/healthz",status="200"} 1.0' in text
    assert 'route="/v1/results/{key}",status="404"} 1.0' in text


def test_memory_is_bounded_and_the_oldest_goes_first(tmp_path: Path):
    reader = ResultReader(JobStore(tmp_path), cache_bytes=20)
    for key in KEYS[:2]:
        reader.remember(key, b"x" * 10)
    assert reader.cached(KEYS[0]) is not None  # now the newest
    reader.remember(KEYS[2], b"x" * 10)
    assert [reader.cached(key) is not None for key in KEYS] == [True, False, True]
    reader.remember(KEYS[1], b"x" * (MAX_ENTRY_BYTES + 1))
    assert reader.cached(KEYS[1]) is None


def test_a_missing_result_is_not_remembered(tmp_path: Path):
    store = JobStore(tmp_path)
    reader = ResultReader(store)
    with pytest.raises(NotFound):
        reader.body(KEYS[0])
    store.save_result(KEYS[0], "bound", None, {"value": 1}, {})
    assert reader.body(KEYS[0]) == b'{"key":"' + KEYS[0].encode() + b'","document":{"value":1},"files":[]}'
