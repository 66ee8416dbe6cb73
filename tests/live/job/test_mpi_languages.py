"""Programs in every language with a compiler here run under the preloaded library of the MPI that is there."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.job.mpi_jobs import COLLECTIVES, compiler, run_job, write_table
from tests.live.support import needs_mpi

pytestmark = [needs_mpi, pytest.mark.timeout(300)]
HERE = Path(__file__).parent
FORTRAN = {"mpif.h": 1, "use mpi": 2, "use mpi_f08": 3}


def languages() -> Iterator[list[str]]:
    """Yield how the program of each language is compiled."""
    yield [str(compiler("mpicxx")), str(HERE / "mpi_languages.cpp")]
    for form in FORTRAN.values() if compiler("mpifort").exists() else ():
        flags = [f"-DFORM={form}", "-fallow-argument-mismatch"]
        yield [str(compiler("mpifort")), *flags, str(HERE / "mpi_languages.F90")]


OTHERS = {"group not in the table", "call that does not wait for its result"}
"""Why the library serves calls of these programs, though the table is for all collectives."""


def test_calls_are_served_counted_or_refused(tmp_path: Path) -> None:
    program, report = tmp_path / "program", tmp_path / "report.json"
    variables = {"CHORALE_TABLE": str(write_table(tmp_path / "table", COLLECTIVES)), "CHORALE_REPORT": str(report)}
    for build in languages():
        report.unlink(missing_ok=True)
        subprocess.run([*build, "-DPENDING", "-o", program], check=True, cwd=tmp_path)
        done = run_job((program,), variables)
        assert done.returncode == 0, (build, done)
        written = json.loads(report.read_text())
        assert written["programs"], build
        fell = {(each["collective"], each["reason"]): each["calls"] for each in written["fallbacks"]}
        assert {reason for _, reason in fell} <= OTHERS
        assert fell["allreduce", "group not in the table"] == 1
        assert ("allreduce", "call that does not wait for its result") in fell
    done = run_job((program,), {**variables, "CHORALE_STRICT": "1"})
    assert "CHORALE_STRICT refuses it" in done.stderr + done.stdout
    subprocess.run([*next(languages()), "-o", program], check=True, cwd=tmp_path)
    assert run_job((program,), {**variables, "CHORALE_STRICT": "1"}).returncode == 0
