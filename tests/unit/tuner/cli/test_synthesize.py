"""`chorale synth`, `chorale verify` and `chorale failures` as scripts use them, also on large topologies."""

import json
from fractions import Fraction

import pytest

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.methods.forest.symmetric import symmetric_forest
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.cli.options import people
from chorale.tuner.files.schedule_files import save_schedule
from tests.command import chorale
from tests.links import topology_document


def test_the_document_of_the_contract(capsys, tmp_path):
    output = tmp_path / "cube.parquet"
    done = chorale(capsys, "synth", "bfb", "hypercube:3", "--collective", "allgather", "--json", "-o", output, code=0)
    document = done.document
    assert document["topology"] | {"id": ""} == {
        "spec": "hypercube:3", "nodes": 8, "switches": 0, "links": 24, "degree": 3, "diameter": 3, "id": "",
    }  # fmt: skip
    assert (document["collective"], document["method"], document["verified"]) == ("allgather", "bfb", True)
    schedule = document["schedule"]
    assert (schedule["kind"], schedule["steps"], schedule["chunks_per_shard"]) == ("stepped", 3, 3)
    assert schedule["trees_per_root"] is None
    assert document["cost"] == {"bandwidth_factor": "7/8", "time_per_byte": "7/24", "algbw": pytest.approx(24 / 7)}
    optimality = document["optimality"]
    assert (optimality["lower_bound"], optimality["achieved"], optimality["gap"]) == ("7/24", "7/24", "0")
    assert optimality["certificate"]["kind"] == "into"
    seconds = document["seconds"]
    assert seconds["total"] == pytest.approx(seconds["synthesis"] + seconds["verification"])
    assert document["peak_memory_bytes"] > 10**7
    assert document["output"] == str(output)


def test_without_a_method_the_best_one_is_taken_and_with_a_size_the_fastest(capsys):
    document = chorale(capsys, "synth", "torus:4x4", "--json").document
    assert document == document | {"method": "bfb", "collective": "allreduce", "verified": True}
    assert document["optimality"]["gap"] == "0"
    assert document["chosen_by"] == "bandwidth"
    named = chorale(capsys, "synth", "--collective", "allreduce", "auto", "torus:4x4", "--json").document
    left_out = chorale(capsys, "synth", "torus:4x4", "--collective", "allreduce", "--json").document
    assert named["schedule"] == left_out["schedule"]
    assert named["method"] != "auto"
    sized = ("torus:4x4", "--collective", "allreduce", "--link-gbps", 100, "--json")
    document = chorale(capsys, "synth", *sized, "--size", "4KiB").document
    (simulated,) = chorale(capsys, "simulate", "auto", *sized, "--sizes", "4KiB").document["results"]
    assert (document["chosen_by"], document["method"]) == ("time", simulated["method"])
    assert float(Fraction(document["cost"]["time_s"])) * 1e6 == pytest.approx(simulated["time_us"])
    assert document["method"] != chorale(capsys, "synth", *sized).document["method"]
    ring = chorale(capsys, "synth", "ring", "hypercube:3", "--collective", "allreduce", "--json").document
    assert (ring["optimality"]["gap"], ring["cost"]["bandwidth_factor"]) == ("2", "21/4")


def test_quiet_works_before_and_after_the_command(capsys):
    """Results stay; what only tells about the way there goes."""
    for arguments in (("synth", "bfb", "ring:5", "--quiet"), ("--quiet", "synth", "bfb", "ring:5")):
        assert "optimal" in chorale(capsys, *arguments).stdout
        assert people.quiet
    done = chorale(capsys, "synth", "bfb", "ring:5")
    assert (done.code, people.quiet) == (0, False)
    assert "│" not in done.stderr


def test_a_changed_file_fails_with_reasons(capsys, tmp_path):
    file = tmp_path / "ring.json"
    chorale(capsys, "synth", "bfb", "ring:5", "-o", file)
    document = json.loads(file.read_text())
    del document["transfers"][-1]  # of the last step: nothing depends on it
    file.write_text(json.dumps(document))
    done = chorale(capsys, "verify", file, "--json", code=1)
    rules = [violation["rule"] for violation in done.document["violations"]]
    assert rules == ["content-id", "not-delivered"]
    assert done.document["cost"] is None


def test_a_warm_start_says_what_was_and_what_was_kept(capsys, tmp_path):
    old = tmp_path / "old.parquet"
    gather = ("--collective", "allgather")
    assert chorale(capsys, "synth", "forest", "a100:2", *gather, "--k", "1", "-o", old).code == 0
    done = chorale(capsys, "synth", "forest", "without(a100:2;node=3)", *gather, "--warm-start", old, "--json")
    document = json.loads(done.stdout)
    assert document["schedule"]["trees_per_root"] == 7  # as a single tree for each root would be slower
    assert document["optimality"]["gap"] == "0"
    assert document["warm_start"]["achieved"] == "7/2400"
    assert document["warm_start"]["lower_bound"] == "3/1040"
    assert 0 < document["warm_start"]["transfers_kept"] <= document["warm_start"]["transfers_possible"] <= 15 * 14
    done = chorale(capsys, "synth", "bfb", "a100:2", "--warm-start", old)
    assert (done.code, done.stderr.count("\n"), "--warm-start" in done.stderr) == (2, 1, True)


def test_allreduce_by_trees_is_as_fast_as_the_bound_on_pairs_says(capsys, tmp_path):
    spec, file = "without(mi250:2;node=3)", tmp_path / "pairs.json"
    made = chorale(capsys, "synth", "forest", spec, "--collective", "allreduce", "--json", "-o", file).document
    pairs = chorale(capsys, "bound", spec, "--collective", "allreduce", "--json").document["tree_pairs"]
    assert made["cost"]["time_per_byte"] == pairs["time_per_byte"]
    assert made["tree_pairs"] == {"lower_bound": pairs["lower_bound"], "gap": "0", "certificate": pairs["certificate"]}
    assert made["optimality"]["gap"] != "0"
    assert chorale(capsys, "verify", file, "--json").document["cost"]["time_per_byte"] == pairs["time_per_byte"]
    shown = chorale(capsys, "synth", "forest", spec, "--collective", "allreduce").stdout
    assert "best pairs of trees" in shown


@pytest.mark.parametrize(
    ("method", "spec", "collective"),
    [
        ("ring", "mesh:3x3", "allgather"),
        ("blink", "a100:1", "broadcast"),
        ("auto", "line(mesh:3x3)", "allreduce"),
        ("bfb", "mesh:3x2", "allgather"),
        ("recursive-doubling", "hypercube:3", "allreduce"),
    ],
)
def test_a_schedule_that_is_more_than_1_percent_behind_its_bound_says_so(method, spec, collective, capsys):
    words = ("synth", method, spec, "--collective", collective)
    document = chorale(capsys, *words, "--json").document
    gap = Fraction(document["optimality"]["gap"])
    of_bandwidth = [one for one in document["warnings"] if one["kind"] == "bandwidth"]
    assert [Fraction(one["gap"]) for one in of_bandwidth] == ([gap] if gap > Fraction(1, 100) else [])
    printed = chorale(capsys, *words)
    assert ("above its bandwidth bound" in printed.stdout + printed.stderr) == bool(of_bandwidth)


@pytest.mark.parametrize("words", [("h100:1", "--in-network"), ("a100:2",)])
def test_the_suggested_lowering_works(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = chorale(capsys, "synth", *words, "-o", "x.parquet")
    step = said.stderr.partition("next: chorale ")[2].split()
    assert step[0] == "lower"
    assert chorale(capsys, *step).code == 0


@pytest.fixture
def network(tmp_path):
    """A ring of four in GB/s with one pair of slow links besides."""
    ring = [(str(node), str((node + 1) % 4), 10, 1e-6) for node in range(4)]
    path = tmp_path / "ring.json"
    path.write_text(json.dumps(topology_document("0123", [*ring, ("0", "1", 10, 2e-5)])))
    return f"file:{path}"


def test_the_cost_at_a_size(capsys, network, tmp_path):
    output = tmp_path / "ring.parquet"
    options = ("--collective", "allgather", "--size", "4KiB", "--json", "-o", output)
    done = chorale(capsys, "synth", "bfb", network, *options, code=0)
    cost = done.document["cost"]
    assert done.document["parameters"] == {"chunks": None, "size_bytes": 4096}
    assert cost["size_bytes"] == 4096
    # 1024 B at 10 GB/s: neighbours whole, then the opposite shard in halves; the slow links are left alone.
    assert Fraction(cost["time_s"]) == Fraction(2, 10**6) + Fraction(3, 2) * Fraction(1024, 10**10)
    assert cost["divisible_time_s"] == cost["time_s"]
    read = chorale(capsys, "verify", output, "--json").document["cost"]
    assert (read["size_bytes"], read["time_s"]) == (4096, cost["time_s"])
    text = chorale(capsys, "synth", "bfb", network, "--size", "1MiB", "--collective", "allreduce").stdout
    assert "time for 1MiB" in text
    assert "divisible shards" in text
    ring = ("synth", "ring", network, "--collective", "allgather", "--size", "4000", "--json")
    cost = chorale(capsys, *ring).document["cost"]
    assert Fraction(cost["time_s"]) == 3 * (Fraction(1, 10**6) + Fraction(1000, 10**10))
    assert "divisible_time_s" not in cost


def test_a_file_with_an_absurd_size_is_refused(capsys, network, tmp_path):
    output = tmp_path / "ring.json"
    chorale(capsys, "synth", "bfb", network, "--size", "4KiB", "-o", output)
    document = json.loads(output.read_text())
    for size in ("many", -1, 2.5):
        document["parameters"]["size_bytes"] = size
        output.write_text(json.dumps(document))
        refused = chorale(capsys, "verify", output, code=2).stderr
        assert "the schedule is for a size that is not a whole number of bytes" in refused


def test_a_large_torus_is_designed_written_and_verified(capsys, tmp_path):
    output = tmp_path / "torus.parquet"
    made = ("synth", "bfb", "torus:66x66", "--collective", "allgather")
    document = chorale(capsys, *made, "--json", "-o", output).document
    schedule = document["schedule"]
    assert (schedule["form"], schedule["kind"], schedule["steps"]) == ("symmetric", "stepped", 66)
    assert schedule["transfers"] % 66**2 == 0
    assert document["cost"]["bandwidth_factor"] == "4355/4356"
    assert document["optimality"]["gap"] == "0"
    done = chorale(capsys, "verify", output, "--json")
    assert (done.code, done.document["ok"]) == (0, True)
    assert done.document["cost"]["bandwidth_factor"] == "4355/4356"
    assert "verified" in chorale(capsys, "verify", output).stdout
    assert "rank 0 replayed, symmetries checked" in chorale(capsys, *made).stdout
    assert "ends in .parquet" in chorale(capsys, *made, "-o", tmp_path / "torus.json", code=2).stderr
    refused = chorale(capsys, "lower", output, "--target", "msccl-xml", "-o", tmp_path / "torus.xml", code=2)
    assert "ranks: 4356 is above the limit 1024" in refused.stderr


@pytest.mark.parametrize(
    "schedule",
    [
        symmetric_bfb(parse_topology("ring:5"), ALLGATHER, SerialExecutor()),
        symmetric_forest(parse_topology("a100:3"), ALLGATHER, "forest", {}),
    ],
    ids=["steps", "trees"],
)
def test_a_small_one_is_written_out_to_be_lowered(capsys, tmp_path, schedule):
    save_schedule(verify(schedule), tmp_path / "small.parquet")
    arguments = ("--target", "msccl-xml", "-o", tmp_path / "small.xml", "--json")
    done = chorale(capsys, "lower", tmp_path / "small.parquet", *arguments, code=0)
    assert done.document["schedule"] == schedule.expand().id


def failures_of(capsys, *arguments):
    return chorale(capsys, "failures", *arguments, "--json", code=0).document


def test_every_failure_of_a_gpu_fabric_has_an_optimal_plan_and_parts_of_links_are_priced(capsys):
    found = failures_of(capsys, "a100:2", "--collective", "allgather", "--executor", "serial")
    assert found["intact"]["algbw"] > 346.6
    assert sum(row["alike"] for row in found["failures"] if row["failure"].startswith("node")) == 16
    assert {row["gap"] for row in found["failures"]} == {"0"}
    # fewer GPUs may gather faster; a lost link never helps
    assert all(Fraction(row["slowdown"]) >= 1 for row in found["failures"] if row["failure"].startswith("link"))
    found = failures_of(capsys, "h100:1", "--collective", "allgather", "--part", "nvlink", "--part", "1/4")
    costs = {row["failure"]: row["slowdown"] for row in found["failures"]}
    assert costs["link=0.0-nvswitch:0;part=1/18"] == "18/17"
    assert costs["link=0.0-nvswitch:0;part=1/4"] == "4/3"


def test_rows_of_failures_are_what_synth_makes_of_their_specs_or_have_a_reason(capsys):
    found = failures_of(capsys, "torus:3x3", "--method", "bfb", "--executor", "processes", "--workers", "2")
    row = found["failures"][0]
    made = chorale(capsys, "synth", "bfb", row["spec"], "--json").document
    assert made["schedule"]["id"] == row["schedule_id"]
    found = failures_of(capsys, "uniring:1,4", "--executor", "serial")
    assert found["without_plan"] == len(found["failures"]) == 2
    assert all("path" in row["reason"] for row in found["failures"])
    assert [row["failure"] for row in found["failures"]] == ["node=0", "link=0-1"]
    shown = chorale(capsys, "failures", "torus:3x3", "--method", "bfb", "--executor", "serial", code=0).stdout
    assert "27 single failures, none without a plan" in shown
    assert shown.index("none") < shown.index("node=0")
