"""A job of the service: what was asked, by whom, how far it is, what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class JobState(StrEnum):
    """queued and running jobs go on after a restart of the service; the other states are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Times are seconds since the epoch, None where it has not come to that.

    owner:    name of the token that asked
    kind:     synthesis, bound, find or program
    request:  the body as it was asked
    key:      content id of what is to be computed: jobs with equal keys have equal results
    error:    rule, value and way out, and the kind of failure, of a failed job
    cached:   whether the result was there already: "no", "yes", or "renamed" from an equal network with other names
    """

    id: str
    owner: str
    kind: str
    request: dict[str, Any]
    key: str
    priority: int
    memory_bytes: int
    created_s: float
    state: JobState = JobState.QUEUED
    started_s: float | None = None
    finished_s: float | None = None
    progress: tuple[int, int] | None = None
    error: dict[str, str] | None = None
    cached: str = "no"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document that clients see; results are at /v1/results/KEY."""
        done = self.state == JobState.DONE
        return {
            "id": self.id,
            "owner": self.owner,
            "kind": self.kind,
            "state": self.state.value,
            "request": self.request,
            "priority": self.priority,
            "memory_bytes": self.memory_bytes,
            "created_s": self.created_s,
            "started_s": self.started_s,
            "finished_s": self.finished_s,
            "progress": None if self.progress is None else {"done": self.progress[0], "total": self.progress[1]},
            "error": self.error,
            "cached": self.cached,
            "result": self.key if done else None,
        }
