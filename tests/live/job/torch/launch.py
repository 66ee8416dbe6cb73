"""Starts the ranks of jobs in torch, as processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.live.job.torch.tables import library_table, whole_table, written

ROOT = Path(__file__).parents[4]

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="THE BACKEND FOR TORCH IS NOT TESTED: pip install torch"
)


def environment_of_jobs(folder: Path) -> dict[str, str]:
    """Return variables of a job: tables, and the entry point as an installed package has it."""
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["torch.backends"]
    package = folder / "site" / "chorale_entry_point-0.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: chorale-entry-point\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in entry_points.items()]
    (package / "entry_points.txt").write_text("\n".join(["[torch.backends]", *lines, ""]))
    tables = {
        "CHORALE_TABLE": str(written(whole_table(), folder / "table")),
        "LIBRARY_TABLE": str(written(library_table(4), folder / "library-table")),
    }
    paths = [str(folder / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **tables, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "GLOO_SOCKET_IFNAME": "lo"}


def start_ranks(folder: Path, ranks: int, environment: Mapping[str, str], names: Sequence[str]) -> list[Process]:
    """Start `ranks` ranks that run the scenarios `names`; what they say goes to FOLDER/RANK.log."""
    folder.mkdir(exist_ok=True)
    return [_start(folder, rank, ranks, environment, names) for rank in range(ranks)]


Process = subprocess.Popen[bytes]


def _start(folder: Path, rank: int, ranks: int, environment: Mapping[str, str], names: Sequence[str]) -> Process:
    command = [sys.executable, "-m", "tests.live.job.torch.rank", str(folder), *names]
    variables = {**environment, "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    with (folder / f"{rank}.log").open("wb") as log:
        return subprocess.Popen(command, env=variables, cwd=ROOT, stdout=log, stderr=log)


def wait_for(processes: Sequence[Process], limit_s: float) -> list[int]:
    """Return the exit codes; end the processes if it takes longer than `limit_s` in all."""
    try:
        return [process.wait(limit_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def results_of(folder: Path, ranks: int) -> dict[str, list[str]]:
    """Return how each scenario ended on each rank."""
    by_rank = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [results.get(name, "not run") for results in by_rank] for name in by_rank[0]}
