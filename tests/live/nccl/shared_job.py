"""A job of four ranks without PyTorch that calls collectives with the tuner plug-in, and reports what rows decided."""

import json
import os
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from chorale.job.nccl.plugin import tuner_plugin
from chorale.runners.nccl.calls import find_library

RANKS = 4


def found(pattern: str) -> Path:
    """Return a library of CUDA that a package of Python brought, or the toolkit. FileNotFoundError if there is none."""
    roots = [Path(path) / "nvidia" for path in (*site.getsitepackages(), *sys.path) if path]
    for root in (*roots, Path("/usr/local/cuda/lib64")):
        for path in sorted(root.rglob(pattern)):
            return path
    raise FileNotFoundError(pattern)


def run_job(
    folder: Path, library: str, runtime: str | None, csv: Path, calls: Sequence[tuple[str, int]],
    variables: Mapping[str, str],
) -> Path:  # fmt: skip
    """Run it; return its report. RuntimeError where a result is wrong, or a rank ends early."""
    report = folder / "applied.json"
    environment = {"NCCL_TUNER_PLUGIN": str(tuner_plugin()), "NCCL_TUNER_CONFIG_FILE": str(csv)}
    environment["CHORALE_TUNER_REPORT"] = str(report)
    given = {"library": find_library(library), "runtime": runtime or str(found("libcudart.so.1[0-9]"))}
    given |= {"ranks": RANKS, "folder": str(folder), "calls": calls}
    ranks = []
    for rank in range(RANKS):
        own = {name: text.replace("{rank}", str(rank)) for name, text in variables.items()}
        command = [sys.executable, str(Path(__file__).with_name("rank.py")), json.dumps({**given, "rank": rank})]
        each = {**os.environ, **own, **environment}
        ranks.append(subprocess.Popen(command, env=each, stdout=subprocess.PIPE, text=True))
    try:
        said = [rank.communicate(timeout=90)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if [text.splitlines()[-1:] for text in said] != [["[]"]] * RANKS:
        raise RuntimeError(f"ranks said {said}")
    return report
