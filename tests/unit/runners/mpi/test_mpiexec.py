"""Which MPI an mpiexec is of, by what it says of itself."""

from pathlib import Path

import pytest

from chorale.runners.mpi.launch import MpichLauncher, OpenMpiLauncher, mpi_version
from chorale.synth.errors import Unavailable


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("mpiexec (Open MPI) 5.0.11\\n\\nReport bugs to", "Open MPI 5.0.11"),
        ("HYDRA build details:\\n    Version:       5.0.2\\n", "MPICH 5.0.2"),
        ("Some vendor's launcher", "MPICH"),
    ],
)
def test_an_mpiexec_is_known_by_its_version(said: str, name: str, tmp_path: Path) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\nprintf "{said}"\n')
    mpiexec.chmod(0o700)
    version = mpi_version(str(mpiexec))
    assert str(version) == name
    assert isinstance(version.launcher, OpenMpiLauncher if "Open" in name else MpichLauncher)


def test_one_that_cannot_be_run_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="mpiexec must say its version"):
        mpi_version(str(tmp_path / "none"))
