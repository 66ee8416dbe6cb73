"""`chorale groups`: what it prints and writes, and how it refuses."""

from fractions import Fraction

from chorale.synth.topology.spec import parse_topology
from chorale.tuner.cli.groups import parse_groups
from tests.command import chorale

TENSOR, DATA = ("--group", "tp=allreduce:by2:100"), ("--group", "dp=reduce_scatter:every2:60")


def test_json_and_files(capsys, tmp_path):
    folder = tmp_path / "plans"
    done = chorale(capsys, "groups", "ring:4", *TENSOR, *DATA, "-o", folder, "--json")
    assert done.code == 0, done.stderr
    document = done.document
    assert [group["name"] for group in document["groups"]] == ["tp0", "tp1", "dp0", "dp1"]
    assert [group["ranks"] for group in document["groups"]] == [[0, 1], [2, 3], [0, 2], [1, 3]]
    gap = Fraction(document["time"]) / Fraction(document["time_lower"]) - 1
    assert (Fraction(document["gap"]), document["verified"]) == (gap, True)
    assert gap < Fraction(1, 50)
    assert document["compared"]["alone_together"]["ratio"] >= 1
    assert document["compared"]["one_after_another"]["ratio"] >= 1
    for group in document["groups"]:
        assert chorale(capsys, "verify", group["output"]).code == 0


def test_for_people(capsys):
    done = chorale(capsys, "groups", "ring:4", *TENSOR, "--quiet")
    assert done.code == 0
    assert "planned alone, run together" in done.stdout


def test_ranks_of_groups():
    topology = parse_topology("ring:6")
    ranks = {text: [group.ranks for group in parse_groups(topology, f"g=allgather:{text}:1")] for text in (
        "by3", "every3", "all", "1-3", "0,2,5", "0-1,4",
    )}  # fmt: skip
    assert ranks == {
        "by3": [(0, 1, 2), (3, 4, 5)],
        "every3": [(0, 3), (1, 4), (2, 5)],
        "all": [(0, 1, 2, 3, 4, 5)],
        "1-3": [(1, 2, 3)],
        "0,2,5": [(0, 2, 5)],
        "0-1,4": [(0, 1, 4)],
    }
