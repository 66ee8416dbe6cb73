"""A campaign on stock NCCL, played by the stand-in: from `chorale tune` to a job whose report says what was applied."""

import json
from functools import partial
from pathlib import Path

import pytest

from chorale.job.nccl.plugin import applied_rows
from chorale.runners.engine.build import has_compiler
from tests.command import chorale
from tests.live.nccl.shared_job import run_job
from tests.stand_ins.nccl import stand_in_library

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="CAMPAIGNS ON NCCL ARE NOT TESTED: there is no C++ compiler"),
    pytest.mark.timeout(240),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "stock-nccl.yaml"
RANKS, SIZES = 4, (4096, 65536)


def test_a_campaign_ends_with_rows_that_a_job_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    run = partial(chorale, capsys)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STAND_IN_SLOWNESS", "15")
    settings = {
        "topology": "complete:4", "sizes": list(SIZES), "runner.library": str(stand_in_library()),
        "runner.memory": "host", "runner.iterations": 1, "search.methods": ["nccl:ring", "nccl:nvls"],
        "search.protocol": ["Simple", "LL128"], "search.ctas": [None], "search.chunk_bytes": [None],
        "budget.trials": 3, "repeats": 2, "final.launches": 8, "sampler": "grid", "parallel": 1,
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    tuned = run("tune", EXAMPLE, *flags, "--json").document
    assert tuned["trials"] == {"complete": 2, "failed": 1, "pruned": 0}  # nvls is not there
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

    library, calls = str(stand_in_library()), [("allreduce", size) for size in SIZES for _ in range(3)]
    report = run_job(tmp_path, library, library, csv, calls, {})
    [row] = [row for row in applied_rows(report) if row["algorithm"] == "ring"]
    assert (row["calls"], row["refused"], row["bytes"]) == (3 * RANKS, 0, 3 * RANKS * SIZES[1])
    assert (row["own"]["algorithm"], row["own"]["protocol"]) == ("tree", "ll")
    assert row["own"]["cost_us"] < row["cost_us"]  # NCCL's model is why it takes trees
