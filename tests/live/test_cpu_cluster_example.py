"""The example for CPU clusters as its first lines say: an emulated network, real oneCCL, a campaign."""

import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.runners.fabric.fabric import EmulatedFabric, take_down
from chorale.runners.fabric.self_test import bring_up
from chorale.synth.errors import Unavailable
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.files.home import Home
from tests.command import ROOT, python
from tests.live.support import needs_oneccl

SIZES = [2**16, 2**18]


@pytest.fixture
def cube() -> Iterator[EmulatedFabric]:
    try:
        fabric = bring_up(parse_topology("hypercube:3"), Fraction(100), f"example-{os.getpid()}", is_tested=False)
    except Unavailable as error:
        pytest.skip(f"THE EXAMPLE FOR CPU CLUSTERS IS NOT RUN ON THIS MACHINE: {error}")
    yield fabric
    take_down(fabric)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@needs_oneccl
def test_the_example_runs_on_a_fabric(cube: EmulatedFabric, home: Home, tmp_path: Path) -> None:
    changes = {
        "sizes": SIZES,
        "runner.fabric": cube.name,
        "budget.trials": 3,
        "repeats": 2,
        "baselines": '["library:ring"]',
    }
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
