"""The README is short and true, and the Python of docs/guide/python.md runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import commands_of

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_the_readme(tmp_path, monkeypatch, capsys, home):
    """It says everything within two screens; its commands are some of those of the first hour, and its Python runs."""
    monkeypatch.chdir(tmp_path)
    text = README.read_text()
    assert len(text.splitlines()) <= 90
    first_hour = [command.text for command in commands_of((ROOT / "docs/guide/first-hour.md").read_text())]
    commands = [command.text for command in commands_of(text)]
    assert [line.split()[1] for line in commands] == ["synth", "verify", "run", "lower", "table"]
    assert set(commands) <= set(first_hour)  # tests/docs/test_pages.py runs those
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})  # our own documentation
    method, algbw, gap = capsys.readouterr().out.split()
    assert f"# {method} {algbw[:5]}… {gap}: nothing can be faster" in code
    assert Path("allreduce.xml").read_text().startswith("<algo")


def python_of_the_page() -> list[str]:
    """Return the blocks of docs/guide/python.md, which are one program."""
    page = (ROOT / "docs" / "guide" / "python.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def starts_a_cluster(code: str) -> bool:
    return "ch.tune(" in code


def test_the_python_page(capsys, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
def test_the_whole_python_page(home, tmp_path):
    codes = python_of_the_page()
    assert sum(map(starts_a_cluster, codes)) == 2
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-c", "\n".join(codes)]
    done = subprocess.run(
        arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert {"bfb", "ring"} & set(re.findall(r"\w+", done.stdout))


def test_links_beside_the_site_lead_somewhere():
    """Those within the site are checked where it is built."""
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
