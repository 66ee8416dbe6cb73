"""A rank of an MPI job that is killed in the middle of a collective: an error of all others, no hang, no wrong sum."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chorale.runners.mpi.launch import OPEN_MPI, find_mpiexec, mpi_version
from tests.live.job.mpi_jobs import COLLECTIVES, RANKS, job_command, write_table
from tests.live.support import needs_mpi

pytestmark = [needs_mpi, pytest.mark.timeout(300)]
VICTIM = 2
LIMIT_S = 20.0
"""Of calls; a rank that is gone is noticed long before."""
PATIENCE_S = 90.0
SUPERVISED = '"$@"; for i in $(seq 600); do test -e "$0/over" && exit; sleep 0.1; done'
"""A launcher ends all ranks when one of them has died, so it gets to know a shell instead, until all are done."""


def endings(folder: Path, delay_s: float) -> list[dict[str, object]]:
    """Return what the surviving ranks say of a job of which one is killed after `delay_s`."""
    table = write_table(folder / "table", COLLECTIVES)
    rank = (sys.executable, "-m", "tests.live.job.mpi_endless", str(folder), str(VICTIM), str(delay_s))
    variables = {"CHORALE_TABLE": str(table), "CHORALE_STRICT": "1", "CHORALE_TIMEOUT_S": str(LIMIT_S)}
    command, environment = job_command(("/bin/sh", "-c", SUPERVISED, folder, *rank), variables)
    with (folder / "said").open("w+b") as said:
        job = subprocess.Popen(command, env={**os.environ, **environment}, stdout=said, stderr=said)
        try:
            files = [folder / f"{rank}.json" for rank in range(RANKS) if rank != VICTIM]
            deadline = time.monotonic() + PATIENCE_S
            while not all(file.exists() for file in files) and time.monotonic() < deadline and job.poll() is None:
                time.sleep(0.05)
            (folder / "over").touch()
            job.wait(PATIENCE_S)
        finally:
            job.kill()
            job.wait()
        said.seek(0)
        missing = [file.name for file in files if not file.exists()]
        assert not missing, (missing, said.read().decode(errors="replace")[-3000:])
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.parametrize("delay_s", [0.05, pytest.param(0.31, marks=pytest.mark.slow)])
def test_the_others_end_with_an_error(delay_s: float, tmp_path: Path) -> None:
    if mpi_version(find_mpiexec()).name == OPEN_MPI:
        pytest.skip("Open MPI's launcher ends all ranks of a job that has lost one, whatever they do")
    for said in endings(tmp_path, delay_s):
        assert said["wrong"] == 0
        assert said["right"] >= 18
        assert said["error"]
        assert said["seconds"] < LIMIT_S + 10
        assert said["next"], "a group that has lost a rank must refuse all later calls"
    output = (tmp_path / "said").read_text(errors="replace")
    assert f"rank {VICTIM} is gone" in output


def test_a_job_that_does_not_handle_errors_ends(tmp_path: Path) -> None:
    """As the launcher and MPI have it: all ranks end, and the job has failed."""
    table = write_table(tmp_path / "table", COLLECTIVES)
    rank = (sys.executable, "-m", "tests.live.job.mpi_endless", str(tmp_path), str(VICTIM), "0.1")
    command, environment = job_command(rank, {"CHORALE_TABLE": str(table)})
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode != 0
