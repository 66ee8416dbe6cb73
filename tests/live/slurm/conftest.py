"""A real Slurm for the tests of this folder, and what jobs in it need."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.live.slurm.cluster import SlurmCluster, missing_for_slurm
from tests.stand_ins.nccl import stand_in_library

BIN = Path(sys.executable).parent
CHORALE = str(BIN / "chorale")
JOB_LIMIT_S = 900
"""For a job with several commands, each of which takes its seconds to start on a busy machine."""


@dataclass(frozen=True)
class Site:
    """The cluster as a user has it: a folder that all nodes see, stand-ins for GPUs, a way to run jobs."""

    cluster: SlurmCluster
    folder: Path
    variables: dict[str, str]

    def chorale(self, *arguments: str, limit_s: float = JOB_LIMIT_S) -> tuple[int, str, str]:
        done = self.cluster.run(CHORALE, *arguments, limit_s=limit_s, folder=self.folder, variables=self.variables)
        return done.returncode, done.stdout, done.stderr

    def start(self, script: str, *options: str) -> str:
        """Submit a batch script, which writes into `job.out`; return the id of its job."""
        text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in self.variables.items())
        output = self.folder / "job.out"
        output.unlink(missing_ok=True)
        return self.cluster.submit(f"#!/bin/bash\n{text}{script}", f"--output={output}", *options, folder=self.folder)

    def job(self, script: str, *options: str) -> str:
        self.cluster.wait(self.start(script, *options), JOB_LIMIT_S)
        return self.said()

    def said(self) -> str:
        return (self.folder / "job.out").read_text()

    def document(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / name).read_text()))


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if (reason := missing_for_slurm()) is not None:
        pytest.skip(f"SLURM IS NOT TESTED ON THIS MACHINE: {reason}")
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a data folder, stand-ins for GPUs and the schedule `ring8.parquet`."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("home", "jobs", "bin"):
        (folder / name).mkdir()
    program = folder / "bin" / "all_reduce_perf"  # of nccl-tests, for jobs that `chorale export` writes
    program.write_text('#!/bin/sh\necho "$0 $*"\n')
    program.chmod(0o755)
    (folder / "libnccl.so").symlink_to(stand_in_library())
    return folder


@pytest.fixture
def site(slurm: SlurmCluster, shared: Path) -> Iterator[Site]:
    played = {"PYTHONPATH": str(Path(__file__).parents[3]), "STAND_IN_RUNTIME": "executor"}
    path = f"{BIN}:{shared / 'bin'}:/usr/bin:/bin:/usr/sbin"
    settings = {"CHORALE_HOME": str(shared / "home"), "RAY_AUTH_MODE": "token", "CHORALE_INSECURE_CLUSTER": "0"}
    site = Site(slurm, shared, {**played, **settings, "PATH": path, "RAY_raylet_start_wait_time_s": "300"})
    slurm.clean()
    if not (shared / "ring8.parquet").exists():
        code, _, messages = site.chorale("synth", "ring", "ring:8", "--collective", "allreduce", "-o", "ring8.parquet")
        assert code == 0, messages
    yield site
    if os.environ.get("CHORALE_KEEP") != "1":
        slurm.clean()
