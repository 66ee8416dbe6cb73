"""`chorale tune` and `chorale best` as scripts see them."""

import json
from pathlib import Path

import pytest

from chorale.job.record import CallCount, CallKey, Record, record_bytes
from chorale.tuner.cli.tune_launch import write_programs
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.unit.tuner.launch.test_tuning import run

ROOT = Path(__file__).parents[4]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(capsys, home, tmp_path):
    plan = chorale(capsys, "tune", QUICKSTART, "--dry-run", "--json", "--set", "budget.trials=7", code=0).document
    assert (plan["campaign"], plan["points"], plan["trials"]) == ("quickstart", 48, 7)
    assert [first["method"] for first in plan["first"]] == ["bfb", "ring", "biring"]
    assert plan["sizes_bytes"] == [2**16, 2**18, 2**20]
    assert not home.campaigns.exists()
    assert chorale(capsys, "tune", "--schema", code=0).document["title"] == "Campaign"
    calls = {
        CallKey("allreduce", "float32", None, None, 2**20): CallCount(10, 3.0),
        CallKey("allgather", "float32", None, None, 2**16): CallCount(10, 1.0),
    }
    (tmp_path / "job.json").write_bytes(record_bytes(Record(4, calls)))
    tune = ("tune", "--from-record", tmp_path / "job.json", "--set", "runner.kind=simulated", "--dry-run", "--topology")
    document = chorale(capsys, *tune, "ring:4", "--json").document
    assert document["covered"] == 1
    assert [plan["collective"] for plan in document["campaigns"]] == ["allreduce", "allgather"]
    assert document["campaigns"][0]["resolved"]["weights"] == [1.0]
    assert not home.campaigns.exists()
    assert "2 ranks of the job share each node of complete:2" in chorale(capsys, *tune, "complete:2", code=0).stderr


def test_best_gives_files_and_numbers(capsys, home, tmp_path):
    report = run(home)
    where = ["--topology", "ring:4", "--collective", "allreduce"]
    found = chorale(capsys, "best", *where, "--size", "64KiB", "--json").document
    assert Path(found["schedule"]).is_file()
    assert Path(found["program"]).read_bytes().startswith(b"<")
    assert found["parameters"]["method"] == "bfb"
    assert found["measured"]["size_bytes"] == 65536
    assert found["measured"]["speedup_vs_baseline"] == pytest.approx(2.0)
    assert found["run_id"] in report.tracked.run_ids.values()
    assert (found["version"], found["exact"]) == ("1", True)
    near = chorale(capsys, "best", *where, "--size", "1GiB", "-o", tmp_path, "--json")
    assert near.document["exact"] is False
    assert "nothing is registered for 1GiB; this is for the nearest class, 64KiB" in near.stderr
    assert {"schedule.parquet", "program.xml", "manifest.json"} <= {path.name for path in tmp_path.iterdir()}
    assert json.loads((tmp_path / "manifest.json").read_text())["collective"] == "allreduce"
    verified = chorale(capsys, "verify", tmp_path / "schedule.parquet", "--json")
    assert verified.document["ok"] is True
    words = chorale(capsys, "best", *where, "--size", "64KiB").stdout
    assert "ring, " in words
    assert "2× as fast" in words
    assert "speedup_vs_baseline" not in words


@pytest.mark.parametrize(("kind", "step"), [("mpi", "table write --topology ring:4 "), ("msccl", "export ")])
def test_best_says_what_takes_its_answer_to_jobs(capsys, home, kind, step):
    """Runtimes that execute MSCCL XML read files; all other jobs read tables."""
    run(home, small_campaign(runner={"kind": kind}, search={"methods": ["bfb"]}))
    found = chorale(capsys, "best", "--topology", "ring:4", "--size", "64KiB")
    assert f"next: chorale {step}" in found.stderr


def test_the_alias_goes_back_on_request(capsys, home):
    run(home, small_campaign(search={"methods": ["ring"]}))
    run(home, small_campaign(search={"methods": ["bfb"]}))
    where = ["--topology", "ring:4", "--collective", "allreduce", "--size"]
    assert chorale(capsys, "best", *where, "64KiB", "--json").document["version"] == "2"
    back = chorale(capsys, "best", *where, "64KiB", "--rollback", "--json")
    assert (back.document["version"], back.document["rolled_back"]) == ("1", "2")
    assert chorale(capsys, "best", *where, "64KiB", "--json").document["version"] == "1"
    assert "there is no earlier champion" in chorale(capsys, "best", *where, "64KiB", "--rollback", code=1).stderr
    chorale(capsys, "best", *where, "1GiB", "--rollback", code=2)
    assert chorale(capsys, "best", *where, "4KiB", "--json").document["version"] == "2"


def test_best_without_an_answer_or_a_server_is_one_line(capsys, home, monkeypatch):
    for network, output, code in (("ring:5", ".", 1), ("ring:4", ".", 1), ("ring:4", "/nowhere/at/all", 2)):
        arguments = ("--topology", network, "--collective", "allgather", "--size", "1K", "-o", output)
        finished = chorale(capsys, "best", *arguments, "--json", code=code)
        assert (finished.stderr.count("\n"), finished.stdout) == (1, "")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    finished = chorale(capsys, "best", "--topology", "ring:4", "--collective", "allreduce", "--size", "1K", code=3)
    assert "MLflow cannot be reached" in finished.stderr
    assert "open its address in the browser" in chorale(capsys, "ui", code=2).stderr


def test_what_is_said_of_programs_is_no_part_of_the_document(capsys, home, tmp_path):
    write_programs(run(home), tmp_path / "programs")
    said = capsys.readouterr()
    assert "files; at other sizes the runtime's own algorithms run" in " ".join(said.err.split())
    assert said.out == ""
    assert list((tmp_path / "programs").glob("*.xml"))


EXAMPLES = Path(__file__).parents[4] / "examples"
TARGETS = {
    "quickstart.yaml": ("oneccl-xml", "1 CPU"),
    "cpu-cluster-oneccl.yaml": ("oneccl-xml", "1 CPU"),
    "gpu-cluster-msccl.yaml": ("msccl-executor-xml", "1 CPU, 8 GPU"),
    "stock-nccl.yaml": ("oneccl-xml", "1 CPU, 8 GPU"),
    "plans-as-kernels.yaml": ("mscclpp-json", "1 CPU, 8 GPU"),
    "switch-processes.yaml": ("oneccl-xml", "1 CPU"),
}


def test_every_example_is_looked_at():
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_an_example_is_a_campaign(name, capsys):
    plan = chorale(capsys, "tune", EXAMPLES / name, "--dry-run", "--json", code=0).document
    assert (plan["target"], plan["node_to_measure_on"]) == TARGETS[name]
    # LL and NVLS do not go together, nor do pipelines and groups
    assert plan["pruned_beforehand"] == {"stock-nccl.yaml": 52, "plans-as-kernels.yaml": 56}.get(name, 0)
    assert 0 < plan["trials"] <= plan["points"]
    fitting = sorted(set(plan["resolved"]["search"]["methods"]) - {"nccl:nvls_tree"})  # which needs several boxes
    assert sorted(first["method"] for first in plan["first"]) == fitting


def test_several_boxes_have_other_algorithms_of_nccl_and_need_a_launcher(capsys):
    tune = ("tune", EXAMPLES / "stock-nccl.yaml", "--dry-run", "--json", "--set", "topology=h100:4")
    assert "32 ranks need 4 hosts of 8 GPUs; set `runner.launcher`" in chorale(capsys, *tune, code=2).stderr
    plan = chorale(capsys, *tune, "--set", "runner.launcher=srun").document
    assert [first["method"] for first in plan["first"]] == ["nccl:ring", "nccl:tree", "nccl:nvls_tree", "ring"]
    assert "symmetric kernels for allreduce need one box" in plan["reasons"]
