"""Jobs that end with the test."""

from collections.abc import Callable, Iterator

import pytest

from tests.live.engine.job import Job

MakeJob = Callable[..., Job]


@pytest.fixture
def make_job() -> Iterator[MakeJob]:
    jobs: list[Job] = []

    def make(*arguments: object, **options: object) -> Job:
        jobs.append(Job(*arguments, **options))  # type: ignore[arg-type]
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
