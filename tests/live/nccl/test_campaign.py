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
    pytest.mark.alone,  # the baseline is beaten only if ranks have the processors for themselves
    pytest.mark.skipif(not has_compiler(), reason="CAMPAIGNS ON NCCL ARE NOT TESTED: apt-get install g++"),
    pytest.mark.timeout(400),
]
EXAMPLE = Path(__file__).parents[3] / "examples" / "stock-nccl.yaml"
RANKS, SIZES = 4, (4096, 65536, 2**20)


def test_settings_and_a_program_win_at_different_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    run = partial(chorale, capsys)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STAND_IN_SLOWNESS", "80")
    monkeypatch.setenv("STAND_IN_GROUP_US", "5000")
    settings = {
        "topology": "complete:4", "sizes": list(SIZES), "runner.library": str(stand_in_library()),
        "runner.memory": "host", "runner.iterations": 1, "search.methods": ["nccl:ring", "nccl:nvls", "ring"],
        "search.protocol": ["Simple", "LL128"], "search.ctas": [None], "search.chunk_bytes": [None],
        "budget.trials": 4, "repeats": 2, "final.launches": 8, "sampler": "grid", "parallel": 1,
    }  # fmt: skip
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    tuned = run("tune", EXAMPLE, *flags, "--programs", tmp_path / "programs", "--json").document
    assert tuned["trials"] == {"complete": 3, "failed": 1, "pruned": 0}  # nvls is not there
    small, middle, large = tuned["best"]
    assert small["parameters"] is None or small["speedup_vs_baseline"] < 1.5
    assert (middle["parameters"]["method"], middle["parameters"]["protocol"]) == ("nccl:ring", "LL128")
    assert large["parameters"]["method"] == "ring"
    names = {path.suffix for path in (tmp_path / "programs").iterdir()}
    assert names == {".xml", ".csv"}
    journal = next((tmp_path / "home" / "campaigns").rglob("trials.jsonl")).read_text()
    assert "not_applied" in journal
    assert "not nvls simple" in journal

    table, csv = tmp_path / "job.table", tmp_path / "tuner.csv"
    assert run("table", "write", "--campaign", "stock-nccl", "-o", table).code == 0
    shown = run("table", "show", table, "--json").document
    assert [bool(entry["program"]) for entry in shown["entries"]][-1]
    [entry] = [entry for entry in shown["entries"] if entry.get("settings")]
    assert entry["settings"] == {"algorithm": "ring", "protocol": "LL128"}
    assert run("table", "verify", table, "--json").document["ok"]
    exported = run("table", "export", table, "--for", "nccl", "-o", csv, "--json").document
    assert exported["environment"] == {}
    configs = [one["config"] for one in exported["coll_config"] if one["min_bytes"] == entry["min_bytes"]]
    assert configs == [{"algSelection": "RING_LL128"}]

    library, calls = str(stand_in_library()), [("allreduce", size) for size in SIZES for _ in range(3)]
    report = run_job(tmp_path, library, library, csv, calls, {})
    row = next(row for row in applied_rows(report) if row["protocol"] == "ll128")
    assert (row["calls"], row["refused"], row["bytes"]) == (3 * RANKS, 0, 3 * RANKS * SIZES[1])
    assert (row["own"]["algorithm"], row["own"]["protocol"]) == ("tree", "ll")
    assert row["own"]["cost_us"] < row["cost_us"]  # NCCL's model is why it takes trees
