"""Ranks of several nodes, each started by what starts them there; srun has its tests in tests/live/slurm."""

import json
import shutil
import sys
from dataclasses import replace
from typing import Any

import pytest

from chorale.runners.api.base import Measurement
from chorale.runners.engine.build import has_compiler
from chorale.runners.nccl.config import NcclConfig
from chorale.runners.nccl.runner import NcclRunner
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from tests.command import python
from tests.conformance.runner_kit import RING, request_of
from tests.integration.two_nodes import cluster_of
from tests.stand_ins.nccl import stand_in_library

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="SEVERAL NODES ARE NOT TESTED: apt-get install g++"),
    pytest.mark.timeout(300),
]
RANKS, PER_NODE = 4, 2
RESULTS = ["library:nccl", "ring", "setting"]


@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="THE LAUNCHER MPICH IS NOT TESTED: pip install mpich")
def test_two_nodes_of_mpiexec() -> None:
    said = measured_by("mpich", hosts=["127.0.0.1", "localhost"], address="127.0.0.1")
    assert said == {"results": RESULTS, "launcher": "mpich", "library": "NCCL 2.32.3"}


@pytest.mark.ray
def test_two_nodes_of_a_ray_cluster() -> None:
    said = json.loads(python("-m", "tests.live.nccl.test_several_nodes", timeout_s=280).stdout.splitlines()[-1])
    assert said == {"results": RESULTS, "launcher": "ray", "library": "NCCL 2.32.3"}


def measured_by(launcher: str, **where: Any) -> dict[str, object]:
    """Return what came of a program and a setting beside the library: results, environment, or the failure."""
    options = NcclConfig(
        library=str(stand_in_library()), memory="host", iterations=1, launcher=launcher, gpus_per_node=PER_NODE,
        variables={"STAND_IN_NODES": "2"}, **where,
    )  # fmt: skip
    setting = LibraryCall(Collective(CollectiveName.ALLREDUCE), RANKS, True, LibrarySettings("ring", "LL", ctas=2))
    programs = {"ring": RING, "setting": setting}
    request = replace(request_of(RING), programs=programs, repeats=1, library=("nccl",), timeout_s=120.0)
    with NcclRunner(options) as runner:
        outcome = runner.submit(request)
    if not isinstance(outcome, Measurement):
        return {"failure": outcome.message}
    environment = outcome.environment
    return {"results": sorted(outcome.results), "launcher": environment["launcher"], "library": environment["library"]}


if __name__ == "__main__":
    with cluster_of(2, num_cpus=1, num_gpus=PER_NODE):
        sys.stdout.write(json.dumps(measured_by("ray")) + "\n")
