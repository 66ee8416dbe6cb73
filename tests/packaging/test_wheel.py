"""The wheel owns the four import packages and the command, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_owns_four_packages(tmp_path):
    source = tmp_path / "source"
    # Built from a copy, so that build folders do not appear in the checkout.
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in files:
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("chorale-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"synth", "runners", "tuner", "experiments"}
    assert {
        "runners/oneccl/interpreter/main.cpp",
        "runners/oneccl/interpreter/task.hpp",
        "runners/recorded/mi250-runs.csv.gz",
        "synth/bases/cayley.json",
        "experiments/data/direct-connect.json",
        "tuner/training/profiles/gpt2-small.json",
        "experiments/data/mi250-allreduce.xml.gz",
        "experiments/reproduction_report.html",
        "tuner/campaign_page.html",
    } <= set(names)
    entry_points = next(name for name in names if name.endswith("entry_points.txt"))
    assert "chorale = tuner.cli.main:main" in zipfile.ZipFile(wheel).read(entry_points).decode()


def test_constraints_name_versions_only():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, equals, version = line.partition("==")
        assert equals, line
        assert name.replace("-", "").replace("_", "").replace(".", "").isalnum(), line
        assert not set(version) & set("/:@ "), line


def test_every_dependency_has_a_minimum_and_a_pin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().split()
    }
    for requirement in [*project["dependencies"], *project["optional-dependencies"]["dev"]]:
        name = requirement.split(">")[0].split("[")[0].strip().lower().replace("_", "-")
        assert name in pinned, requirement
    for requirement in project["dependencies"]:
        assert ">=" in requirement, requirement
