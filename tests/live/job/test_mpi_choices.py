"""The MPI that is installed reads the file that a table is exported to, and follows it, at the sizes that it says."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from chorale.job.table.layout import table_bytes
from chorale.job.table.model import ANY_DTYPE, JobEntry, Table
from chorale.runners.mpi.launch import OPEN_MPI, find_mpiexec, mpi_version
from tests.command import chorale
from tests.live.mpi import needs_mpi

pytestmark = [needs_mpi, pytest.mark.timeout(300)]
RANKS = 8
BOUND = 4096


def is_open_mpi() -> bool:
    return mpi_version(find_mpiexec()).name == OPEN_MPI


def bits(**variables: str) -> tuple[str, str]:
    """Return the digests of a small and a large result under `variables`."""
    [digests] = all_bits((), variables)
    return digests


def all_bits(algorithms: Sequence[str], variables: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the digests by each of `algorithms`, which are chosen one after the other, and then by MPI's choice."""
    command = [find_mpiexec(), "-n", str(RANKS), sys.executable, "-m", "tests.live.job.mpi_bits", *algorithms]
    settings = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    settings |= {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_coll_tuned_priority": "90"}
    done = subprocess.run(
        command, env={**os.environ, **settings, **variables}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("bits ")]
    return [(small, large) for _, small, large in lines]


def forced(algorithm: str) -> tuple[str, str]:
    """Return the digests where one algorithm runs at all sizes, by the MPI's variable for that."""
    if is_open_mpi():
        return bits(OMPI_MCA_coll_tuned_use_dynamic_rules="1", OMPI_MCA_coll_tuned_allreduce_algorithm=algorithm)
    return bits(MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=algorithm)


def exported(capsys: pytest.CaptureFixture[str], folder: Path, names: tuple[str, str]) -> dict[str, str]:
    """Write a table with one algorithm up to BOUND and another beyond; return the variables that its export needs."""
    sizes = ((0, BOUND), (BOUND + 1, None))
    entries = tuple(
        JobEntry("allreduce", ANY_DTYPE, None, None, *size, None, provenance={"baseline": f"library:{name}"})
        for size, name in zip(sizes, names, strict=True)
    )
    path, rules = folder / "job.table", folder / "rules"
    path.write_bytes(table_bytes(Table({"spec": "any"}, RANKS, entries, {})))
    kind = "openmpi" if is_open_mpi() else "mpich"
    done = chorale(capsys, "table", "export", path, "--for", kind, "-o", rules, "--json")
    assert done.code == 0, done.stderr
    return dict(setting.split("=", 1) for setting in done.document["use"].split())


def test_each_size_runs_the_algorithm_that_the_table_says(capsys, tmp_path):
    ring, doubling = forced("ring"), forced("recursive_doubling")
    assert ring[0] != doubling[0]
    assert ring[1] != doubling[1]
    assert bits(**exported(capsys, tmp_path, ("recursive_doubling", "ring"))) == (doubling[0], ring[1])
    assert bits(**exported(capsys, tmp_path, ("ring", "recursive_doubling"))) == (ring[0], doubling[1])


@pytest.mark.slow
def test_an_algorithm_that_is_chosen_while_mpi_runs_is_the_one_that_runs():
    ring, doubling, usual = forced("ring"), forced("recursive_doubling"), bits()
    found = all_bits(("ring", "recursive_doubling", "ring"), {})
    assert found == [ring, doubling, ring, usual]
