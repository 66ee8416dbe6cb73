"""The program and the table of MPI jobs."""

from pathlib import Path

import pytest

from tests.live.job.mpi_jobs import COLLECTIVES, compiled, write_table


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("program"))


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "table", COLLECTIVES)
