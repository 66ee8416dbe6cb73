"""The wheel owns one import name, `chorale`, and the command, and nothing else."""

import os
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.command import python
from tests.packaging.build import ROOT, build_wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_owns_one_import_name(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if not {".dist-info", ".data"} & {Path(name.split("/")[0]).suffix}}
    assert top == {"chorale"}
    below = {name.split("/")[1] for name in names if name.startswith("chorale/")}
    assert {"synth", "runners", "tuner", "experiments", "__init__.py", "__main__.py"} <= below
    assert {
        "chorale/synth/kernels/native.pyi",
        "chorale/runners/fabric/native/links.cpp",
        "chorale/runners/fabric/native/system.hpp",
        "chorale/runners/nccl/native/plugin.cpp",
        "chorale/runners/nccl/native/table.hpp",
        "chorale/runners/oneccl/native/oneccl.cpp",
        "chorale/runners/recorded/mi250-runs.csv.gz",
        "chorale/synth/topology/bases/cayley.json",
        "chorale/experiments/data/direct-connect.json",
        "chorale/tuner/costs/profiles/gpt2-small.json",
        "chorale/experiments/data/mi250-allreduce.xml.gz",
        "chorale/py.typed",
        "chorale/examples/quickstart.yaml",
        "chorale/examples/demo_job/train.py",
        "chorale/experiments/framework/summaries.json",
    } <= set(names)
    assert [Path(name).name.split(".")[0] for name in names if "synth/kernels/" in name and name.endswith(".so")] == [
        "native"
    ]
    assert not [name for name in names if "synth/kernels/cpp" in name]
    shipped = {Path(name).name for name in names if name.startswith("chorale/runners/engine/shipped/")}
    assert shipped == {"libchorale_engine.so", "chorale_network", "libnccl-tuner-chorale.so"}
    entry_points = next(name for name in names if name.endswith("entry_points.txt"))
    assert "chorale = chorale.__main__:main" in zipfile.ZipFile(wheel).read(entry_points).decode()


def test_a_wheel_needs_no_compiler(wheel, tmp_path, monkeypatch):
    tag = "cp311-cp311" if sys.version_info < (3, 12) else "cp312-abi3"
    assert wheel.name.startswith(f"chorale_collectives-0.1.0-{tag}-linux_")
    folder = tmp_path / "installed"
    python("-m", "pip", "install", "--no-deps", "--no-compile", "--target", folder, wheel)
    code = "from chorale.synth.kernels import native; print(native.__file__)"
    run = python("-c", code, folder=tmp_path, PYTHONPATH=str(folder))
    assert Path(run.stdout.strip()).parent == folder / "chorale/synth/kernels"
    code = """
from chorale.runners.engine.build import build_native
from chorale.runners.engine.library import engine_library, network_target
from chorale.job.nccl.plugin import tuner_plugin
print(engine_library(), build_native(network_target()), tuner_plugin())
"""
    monkeypatch.delenv("CXX", raising=False)  # nor is there another compiler on this path
    cache = str(tmp_path / "home")
    run = python("-c", code, folder=tmp_path, PYTHONPATH=str(folder), PATH=str(tmp_path), XDG_CACHE_HOME=cache)
    engine, network, tuner = map(Path, run.stdout.split())
    assert engine.is_relative_to(folder)
    assert network.is_relative_to(folder)
    assert tuner.is_relative_to(folder)
    assert os.access(network, os.X_OK)
    assert not (tmp_path / "home").exists()


def test_every_dependency_has_a_minimum_and_a_pin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()
    }
    extras = project["optional-dependencies"]
    requirements = [
        *project["dependencies"],
        *(each for extra in ("dev", "plot", "tune", "serve") for each in extras[extra]),
    ]
    for requirement in requirements:
        if requirement.startswith("chorale-collectives["):  # an extra that has others
            continue
        name = requirement.split(">")[0].split("[")[0].strip().lower().replace("_", "-")
        assert name in pinned, requirement
    for requirement in project["dependencies"]:
        assert ">=" in requirement, requirement
