"""A campaign on stock NCCL, played by the stand-in: from `chorale tune` to a job whose report says what was applied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from chorale.job.nccl.plugin import applied_rows, tuner_plugin
from chorale.runners.engine.build import has_compiler
from tests.command import chorale
from tests.stand_ins.nccl import stand_in_library

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="CAMPAIGNS ON NCCL ARE NOT TESTED: there is no C++ compiler"),
    pytest.mark.timeout(240),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "stock-nccl.yaml"
RANKS, SIZES = 4, (4096, 65536)


def job(folder: Path, csv: Path) -> Path:
    """Run a job of four ranks that calls allreduces with the plug-in; return its report."""
    report = folder / "applied.json"
    variables = {
        "NCCL_TUNER_PLUGIN": str(tuner_plugin()),
        "NCCL_TUNER_CONFIG_FILE": str(csv),
        "CHORALE_TUNER_REPORT": str(report),
    }
    library, calls = str(stand_in_library()), [("allreduce", size) for size in SIZES for _ in range(3)]
    script = str(Path(__file__).with_name("rank.py"))
    given = {"library": library, "runtime": library, "ranks": RANKS, "folder": str(folder), "calls": calls}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, json.dumps({**given, "rank": rank})],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [json.loads(each.splitlines()[-1]) for each in said] == [[]] * RANKS
    return report


def test_a_campaign_ends_with_rows_that_a_job_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    run = partial(chorale, capsys)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STAND_IN_SLOWNESS", "15")
    settings = {
        "topology": "complete:4", "sizes": list(SIZES), "runner.library": str(stand_in_library()),
        "runner.memory": "host", "runner.iterations": 1, "search.methods": ["nccl:ring", "nccl:nvls", "ring"],
        "search.protocol": ["Simple", "LL128"], "search.ctas": [None], "search.chunk_bytes": [None],
        "budget.trials": 4, "repeats": 2, "final.launches": 8, "sampler": "grid", "parallel": 1,
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    tuned = run("tune", EXAMPLE, *flags, "--json").document
    assert tuned["trials"] == {"complete": 3, "failed": 1, "pruned": 0}  # nvls is not there
    small, large = tuned["best"]
    assert small["parameters"] is None or small["speedup_vs_baseline"] < 1.5
    assert (large["parameters"]["method"], large["parameters"]["protocol"]) == ("nccl:ring", "LL128")
    journal = next((tmp_path / "home" / "campaigns").rglob("trials.jsonl")).read_text()
    assert "not_applied" in journal
    assert "not nvls simple" in journal

    table, csv = tmp_path / "job.table", tmp_path / "tuner.csv"
    assert run("table", "write", "--campaign", "stock-nccl", "-o", table).code == 0
    shown = run("table", "show", table, "--json").document
    [entry] = [entry for entry in shown["entries"] if entry.get("settings")]
    assert entry["settings"] == {"algorithm": "ring", "protocol": "LL128"}
    assert run("table", "verify", table, "--json").document["ok"]
    exported = run("table", "export", table, "--for", "nccl", "-o", csv, "--json").document
    assert exported["environment"] == {}
    assert exported["coll_config"][0]["config"] == {"algSelection": "RING_LL128"}

    [row] = [row for row in applied_rows(job(tmp_path, csv)) if row["algorithm"] == "ring"]
    assert (row["calls"], row["refused"], row["bytes"]) == (3 * RANKS, 0, 3 * RANKS * SIZES[1])
    assert (row["own"]["algorithm"], row["own"]["protocol"]) == ("tree", "ll")
    assert row["own"]["cost_us"] < row["cost_us"]  # NCCL's model is why it takes trees
