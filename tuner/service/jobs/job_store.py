"""Stores jobs, results and campaign owners on disk, so that they survive a restart of the service."""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sql
from pydantic import BaseModel, ConfigDict, Field, computed_field

from chorale.tuner.files.home import write_file
from chorale.tuner.service.access import NotFound
from chorale.tuner.service.jobs.job_specs import AnyJobSpec


class JobState(StrEnum):
    """The states of a job. Queued and running jobs continue after a restart of the service; other states are final."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_STATES = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})


class Progress(BaseModel):
    """The progress of a computation: number of finished parts, and number of all parts."""

    done: int
    total: int


class ErrorFacts(BaseModel):
    """An error in Chorale's common form. `kind` is set only if a computation failed."""

    rule: str
    value: str
    way_out: str
    kind: str | None = None


class Job(BaseModel):
    """A job of the service.

    owner:    name of the token that submitted the job
    key:      content key of the result, known before it is computed; jobs with the same key have the same result
    result:   null until the job is done, then equal to `key`: the result can be fetched from /v1/results/KEY
    error:    why the job failed; null if it did not fail
    cached:   "yes" if the result was already stored, so that nothing was computed
    progress: progress of a running job; not stored
    memory_bytes: estimated peak memory of the computation
    created_s, started_s, finished_s: Unix times in seconds; null if the job has not started or finished yet

    In JSON, a job also has the fields `kind` and `priority` of its request.
    """

    model_config = ConfigDict(
        frozen=True,
        serialize_by_alias=True,
        validate_by_name=True,
        validate_by_alias=True,
        json_schema_serialization_defaults_required=True,
    )

    id: str
    owner: str
    spec: AnyJobSpec = Field(alias="request")
    key: str
    memory_bytes: int
    created_s: float
    state: JobState = JobState.QUEUED
    started_s: float | None = None
    finished_s: float | None = None
    error: ErrorFacts | None = None
    cached: Literal["no", "yes"] = "no"
    progress: Progress | None = None

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def kind(self) -> str:
        return self.spec.kind

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def priority(self) -> int:
        return self.spec.priority

    @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def result(self) -> str | None:
        return self.key if self.state == JobState.DONE else None


_metadata = sql.MetaData()
_jobs = sql.Table(
    "requested_jobs",  # not "jobs": that table is from versions whose requests had no `kind`
    _metadata,
    sql.Column("id", sql.String, primary_key=True),
    sql.Column("number", sql.Integer, index=True),
    sql.Column("owner", sql.String, index=True),
    sql.Column("state", sql.String, index=True),
    sql.Column("document", sql.Text),
)
_results = sql.Table(
    "results",
    _metadata,
    sql.Column("key", sql.String, primary_key=True),
    sql.Column("kind", sql.String),
    sql.Column("document", sql.Text),
    sql.Column("files", sql.Text),
)
_campaigns = sql.Table(
    "campaigns",
    _metadata,
    sql.Column("name", sql.String, primary_key=True),
    sql.Column("owner", sql.String, index=True),
)
_profiles = sql.Table(
    "profiles", _metadata, sql.Column("campaign", sql.String, primary_key=True), sql.Column("profile", sql.String)
)


SCHEDULE_FILE, PROGRAM_FILE, PLAN_FILE = "schedule.parquet", "program.xml", "program.json"
POOL_SIZE = 64
"""Number of open database connections: one per request thread, because connecting takes longer than a query."""


class JobStore:
    """Stores jobs and results in a SQLite database, and the files of results next to it. Thread-safe.

    All files of a result are written before its row is inserted, so a result that can be read is complete.
    """

    def __init__(self, folder: Path) -> None:
        self._files = folder / "results"
        self._files.mkdir(parents=True, exist_ok=True)
        self._engine = sql.create_engine(f"sqlite:///{folder / 'service.db'}", pool_size=POOL_SIZE)
        sql.event.listen(self._engine, "connect", _write_ahead)
        _metadata.create_all(self._engine)

    def save_job(self, job: Job) -> None:
        """Insert the job, or replace its state and document."""
        document = job.model_copy(update={"progress": None}).model_dump_json()
        with self._engine.begin() as connection:  # in plain SQL, which is faster than composing a statement
            connection.exec_driver_sql(
                "INSERT INTO requested_jobs (id, number, owner, state, document) "
                "VALUES (?, (SELECT coalesce(max(number), 0) + 1 FROM requested_jobs), ?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET state = excluded.state, document = excluded.document",
                (job.id, job.owner, job.state.value, document),
            )

    def job(self, job_id: str) -> Job | None:
        texts = self._column(_jobs.c.document, _jobs.c.id == job_id)
        return Job.model_validate_json(texts[0]) if texts else None

    def jobs(self, owner: str | None = None, states: Sequence[JobState] = (), limit: int | None = None) -> list[Job]:
        """Return jobs, newest first. If `owner` or `states` are given, only jobs that match are returned."""
        return [Job.model_validate_json(text) for _state, text in self.job_texts(owner, states, limit)]

    def job_texts(self, owner: str | None, states: Sequence[JobState], limit: int | None) -> Sequence[tuple[str, str]]:
        """Return the state and the stored JSON text of each job that `jobs` would return for the same arguments."""
        query = sql.select(_jobs.c.state, _jobs.c.document).order_by(_jobs.c.number.desc()).limit(limit)
        if owner is not None:
            query = query.where(_jobs.c.owner == owner)
        if states:
            query = query.where(_jobs.c.state.in_([state.value for state in states]))
        with self._engine.connect() as connection:
            return connection.execute(query).all()

    def save_result(self, key: str, kind: str, document: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Store a result unless one is stored for `key`. Results with the same key are equal."""
        for name, content in files.items():
            write_file(self._path(key, name), content)
        row = {"key": key, "kind": kind}
        row |= {
            "document": json.dumps(document, allow_nan=False, separators=(",", ":")),
            "files": json.dumps(sorted(files)),
        }
        with self._engine.begin() as connection:
            if connection.execute(sql.select(_results.c.key).where(_results.c.key == key)).first() is None:
                connection.execute(sql.insert(_results).values(row))

    def result_texts(self, key: str) -> tuple[str, str] | None:
        """Return a result's document and the list of its file names, both as JSON text; None if there is no result."""
        query = "SELECT document, files FROM results WHERE key = ?"  # plain SQL is faster, as in `save_job`
        with self._engine.connect() as connection:
            row = connection.exec_driver_sql(query, (key,)).first()
        return None if row is None else (row.document, row.files)

    def file(self, key: str, name: str) -> Path | None:
        """Return the path of a result's file, or None if the result has no file with this name."""
        stored = self.result_texts(key)
        return self._path(key, name) if stored is not None and name in json.loads(stored[1]) else None

    def schedule(self, key: str) -> bytes:
        path = self.file(key, SCHEDULE_FILE)
        if path is None:
            raise NotFound("the result {} has no schedule", key, "take the result of a synthesis")
        return path.read_bytes()

    def claim_campaign(self, name: str, owner: str) -> bool:
        """Record `owner` as the owner of the campaign `name`, unless it has an owner. Return whether this was done."""
        try:
            with self._engine.begin() as connection:
                connection.execute(sql.insert(_campaigns).values(name=name, owner=owner))
        except sql.exc.IntegrityError:
            return False
        return True

    def release_campaign(self, name: str) -> None:
        """Remove the owner of the campaign `name`. Call this if the campaign's first launch did not begin."""
        with self._engine.begin() as connection:
            connection.execute(sql.delete(_campaigns).where(_campaigns.c.name == name))

    def campaign_owner(self, name: str) -> str | None:
        """Return a campaign's owner, or None if the service did not launch it."""
        return next(iter(self._column(_campaigns.c.owner, _campaigns.c.name == name)), None)

    def save_profile(self, campaign: str, profile: str | None) -> None:
        """Record the runner profile of a campaign's newest launch; None if the launch has no profile."""
        with self._engine.begin() as connection:
            connection.execute(sql.delete(_profiles).where(_profiles.c.campaign == campaign))
            if profile is not None:
                connection.execute(sql.insert(_profiles).values(campaign=campaign, profile=profile))

    def profile_of(self, campaign: str) -> str | None:
        """Return the runner profile of a campaign's newest launch, or None if the launch has no profile."""
        return next(iter(self._column(_profiles.c.profile, _profiles.c.campaign == campaign)), None)

    def campaigns_of(self, owner: str) -> list[str]:
        return self._column(_campaigns.c.name, _campaigns.c.owner == owner)

    def close(self) -> None:
        self._engine.dispose()

    def _path(self, key: str, name: str) -> Path:
        return self._files / f"{key}.{name}"

    def _column(self, column: sql.Column[Any], where: sql.ColumnElement[bool]) -> list[str]:
        with self._engine.connect() as connection:
            return [str(value) for value in connection.execute(sql.select(column).where(where)).scalars()]


def _write_ahead(connection: Any, _record: object) -> None:
    """Switch SQLite to write-ahead logging, so that readers need not wait for the writer."""
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
