"""`chorale synth` and `chorale verify` as scripts use them."""

import json
from fractions import Fraction

import pytest

from chorale.tuner.cli.output import people
from tests.command import chorale


def test_the_document_of_the_contract(capsys, tmp_path):
    output = tmp_path / "cube.parquet"
    done = chorale(capsys, "synth", "bfb", "hypercube:3", "--collective", "allgather", "--json", "-o", output)
    assert done.code == 0
    document = done.document
    assert document["topology"] | {"id": ""} == {
        "spec": "hypercube:3",
        "nodes": 8,
        "switches": 0,
        "links": 24,
        "degree": 3,
        "diameter": 3,
        "id": "",
    }
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


def test_without_a_method_the_best_one_is_taken(capsys):
    document = chorale(capsys, "synth", "torus:4x4", "--json").document
    assert document == document | {"method": "bfb", "collective": "allreduce", "verified": True}
    assert document["optimality"]["gap"] == "0"
    assert document["chosen_by"] == "bandwidth"
    named = chorale(capsys, "synth", "--collective", "allreduce", "auto", "torus:4x4", "--json").document
    left_out = chorale(capsys, "synth", "torus:4x4", "--collective", "allreduce", "--json").document
    assert named["schedule"] == left_out["schedule"]
    assert named["method"] != "auto"


def test_with_a_size_the_method_is_the_one_that_simulate_predicts_to_be_the_fastest(capsys):
    """The network states no latencies: both count 0.1 us a link and 0.3 us a node."""
    sized = ("torus:4x4", "--collective", "allreduce", "--link-gbps", 100, "--json")
    document = chorale(capsys, "synth", *sized, "--size", "4KiB").document
    (simulated,) = chorale(capsys, "simulate", "auto", *sized, "--sizes", "4KiB").document["results"]
    assert (document["chosen_by"], document["method"]) == ("time", simulated["method"])
    assert float(Fraction(document["cost"]["time_s"])) * 1e6 == pytest.approx(simulated["time_us"])
    assert document["method"] != chorale(capsys, "synth", *sized).document["method"]
    ring = chorale(capsys, "synth", "ring", "hypercube:3", "--collective", "allreduce", "--json").document
    assert (ring["optimality"]["gap"], ring["cost"]["bandwidth_factor"]) == ("2", "21/4")


def test_a_schedule_in_the_data_folder_is_read_and_its_seconds_say_so(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    command = ("synth", "forest", "a100:2", "--collective", "allreduce", "--json")
    first, second = chorale(capsys, *command).document, chorale(capsys, *command).document
    assert (first["cached"], second["cached"]) == (False, True)
    assert second["seconds"]["total"] == pytest.approx(second["seconds"]["cache"])
    assert not {"synthesis", "verification"} & set(second["seconds"])
    for key in ("schedule", "cost", "optimality", "tree_pairs", "parameters", "verified"):
        assert first.get(key) == second.get(key)
    anew = chorale(capsys, *command, "--no-cache").document
    assert "synthesis" in anew["seconds"]
    assert not anew["cached"]
    assert "cache 0." in chorale(capsys, *command[:-1]).stdout


def test_quiet_works_before_and_after_the_command(capsys):
    """Results stay; what only tells about the way there goes."""
    for arguments in (("synth", "bfb", "ring:5", "--quiet"), ("--quiet", "synth", "bfb", "ring:5")):
        assert "optimal" in chorale(capsys, *arguments).stdout
        assert people.quiet
    done = chorale(capsys, "synth", "bfb", "ring:5")
    assert (done.code, people.quiet) == (0, False)
    assert "│" not in done.stderr


@pytest.mark.parametrize("suffix", [".parquet", ".json"])
def test_files_verify(capsys, tmp_path, suffix):
    file = tmp_path / f"torus{suffix}"
    chorale(capsys, "synth", "bfb", "torus:2x3", "--collective", "allreduce", "-o", file)
    done = chorale(capsys, "verify", file, "--json")
    assert done.code == 0
    assert done.document["ok"] is True
    assert done.document["violations"] == []
    assert done.document["cost"]["time_per_byte"] == "5/9"
    assert done.document["link_loads"]["duplicate_deliveries"] == 0


def test_a_changed_file_fails_with_reasons(capsys, tmp_path):
    file = tmp_path / "ring.json"
    chorale(capsys, "synth", "bfb", "ring:5", "-o", file)
    document = json.loads(file.read_text())
    del document["transfers"][-1]  # of the last step: nothing depends on it
    file.write_text(json.dumps(document))
    done = chorale(capsys, "verify", file, "--json")
    assert done.code == 1
    rules = [violation["rule"] for violation in done.document["violations"]]
    assert rules == ["content-id", "not-delivered"]
    assert done.document["cost"] is None


def test_processes_give_the_same_schedule(capsys):
    made = ("synth", "bfb", "torus:4x5", "--workers", 2, "--json", "--executor")
    serial, processes = (chorale(capsys, *made, name).document["schedule"] for name in ("serial", "processes"))
    assert serial["id"] == processes["id"]


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
    assert all("tried" in one["message"] for one in of_bandwidth)
    printed = chorale(capsys, *words)
    assert ("above its bandwidth bound" in printed.stdout + printed.stderr) == bool(of_bandwidth)
