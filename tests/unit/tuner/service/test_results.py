"""Stored results and the health: by which statements, to whom, and with what."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sql

from tests.unit.tuner.service.conftest import Service


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


def test_a_result_takes_one_statement_and_no_task(service: Service):
    path = f"/v1/results/{finished_key(service)}"
    started = len(service.backend.started)
    with statements() as seen:
        answer = service.client.get(path)
    assert len(seen) == 1
    assert len(service.backend.started) == started
    assert answer.json()["document"]["verified"] is True
    assert "schedule.parquet" in answer.json()["files"]


def test_health_takes_no_statement_and_waits_for_no_lock(service: Service):
    scheduler = service.client.app.state.scheduler  # type: ignore[attr-defined]
    with scheduler._lock:
        answer = service.client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json()["queued"] == 0
