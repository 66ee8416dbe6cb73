"""The example for CPU clusters as its first lines say: an emulated network, real oneCCL, a campaign."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.tuner.files.home import Home
from tests.command import ROOT, python
from tests.live.support import fabric_of, needs_oneccl

SIZES = [2**16, 2**18]


@pytest.fixture
def cube() -> Iterator[EmulatedFabric]:
    with fabric_of(f"example-{os.getpid()}", "THE EXAMPLE FOR CPU CLUSTERS", "hypercube:3") as fabric:
        yield fabric


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@needs_oneccl
def test_the_example_runs_on_a_fabric(cube: EmulatedFabric, home: Home, tmp_path: Path) -> None:
    changes = {"sizes": SIZES, "runner.fabric": cube.name, "budget.trials": 3, "repeats": 2}
    changes["baselines"] = '["library:ring"]'
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    words += ["--json", "--programs", str(tmp_path / "programs")]
    example = ROOT / "examples" / "cpu-cluster-oneccl.yaml"
    done = python("-m", "chorale", "tune", example, *words, timeout_s=550, CHORALE_HOME=str(home.root))
    document = done.document
    assert document["trials"]["complete"] == 3, done.stderr
    assert [row["size_bytes"] for row in document["best"]] == SIZES
    answers = [row["run"] for row in document["answer"]]
    assert set(answers) <= {"program", "baseline"}
    assert len(list((tmp_path / "programs").glob("*.xml"))) == answers.count("program")
