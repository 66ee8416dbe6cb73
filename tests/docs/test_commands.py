"""Every command that a reader can paste from the README runs, and the Python of docs/guide/python.md too."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chorale.runners.msccl.commands import MODES
from chorale.runners.msccl.runtimes import EXECUTOR
from chorale.tuner.reports.job_export import LAUNCHERS
from tests.docs.pages import Command, commands_of
from tests.docs.test_pages import require_known_words, run

ROOT = Path(__file__).parents[2]


def tour_commands() -> list[str]:
    """Return the `chorale` lines of the tour, in order; later ones use files of earlier ones."""
    tour = (ROOT / "README.md").read_text().split("## A tour")[1].split("## On networks")[0]
    blocks = re.findall(r"```\n(.*?)```", tour, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("chorale ")]


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_the_tour(tmp_path, monkeypatch, capsys, home):
    """Run in a new folder with its own data; the examples are copied as a clone would have them."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    commands = tour_commands()
    assert len(commands) >= 12
    for command in commands:
        done = run(Command(command, None), capsys)
        assert done.code == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_the_commands_after_the_tour_have_words_that_are_known():
    """They need a fabric, which tests/live has."""
    after = commands_of((ROOT / "README.md").read_text().split("## On networks")[1])
    assert len(after) >= 4
    for command in after:
        require_known_words(command)


def test_the_checklist_for_clusters_is_that_of_the_runtime():
    cluster = (ROOT / "README.md").read_text().split("**Take it to a GPU cluster.**")[1].split("## More")[0]
    assert f"cd job/{EXECUTOR.name}-{LAUNCHERS['openmpi']}" in cluster
    assert f"cd job/{EXECUTOR.name}-{LAUNCHERS['srun']}" in cluster
    assert EXECUTOR.loaded in cluster
    assert EXECUTOR.scheduled in cluster
    assert all(f"./run.sh {mode} >" in cluster for mode in MODES)


def python_of_the_page() -> list[str]:
    """Return the blocks of docs/guide/python.md, which are one program."""
    page = (ROOT / "docs" / "guide" / "python.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def starts_a_cluster(code: str) -> bool:
    return "ch.tune(" in code


def test_the_python_page(capsys, home):
    codes = [code for code in python_of_the_page() if not starts_a_cluster(code)]
    assert len(codes) >= 3
    names: dict[str, object] = {}
    printed = []
    for code in codes:
        exec(compile(code, "docs/guide/python.md", "exec"), names)  # our own documentation
        printed.append(capsys.readouterr().out.splitlines())
    assert printed[0][:2] == ["8 15/8", "<algo 2"]
    assert printed[-1] == ["True", "True"]


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(300)
def test_the_whole_python_page(home):
    codes = python_of_the_page()
    assert sum(map(starts_a_cluster, codes)) == 2
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", "\n".join(codes)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"bfb", "ring"} & set(re.findall(r"\w+", done.stdout))


def test_links_beside_the_site_lead_somewhere():
    """Those within the site are checked where it is built."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
