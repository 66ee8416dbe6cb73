"""`chorale failures`: a verified plan for every single failure."""

import csv
import json
from fractions import Fraction

from tests.command import chorale


def document(capsys, *arguments):
    done = chorale(capsys, "failures", *arguments, "--json")
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def test_every_failure_of_a_gpu_fabric_has_an_optimal_plan(capsys):
    found = document(capsys, "a100:2", "--collective", "allgather", "--executor", "serial")
    assert found["intact"]["algbw"] > 346.6
    assert sum(row["alike"] for row in found["failures"] if row["failure"].startswith("node")) == 16
    assert {row["gap"] for row in found["failures"]} == {"0"}
    # fewer GPUs may gather faster; a lost link never helps
    assert all(Fraction(row["slowdown"]) >= 1 for row in found["failures"] if row["failure"].startswith("link"))


def test_a_row_is_what_synth_makes_of_its_spec(capsys):
    found = document(capsys, "torus:3x3", "--method", "bfb", "--executor", "processes", "--workers", "2")
    row = found["failures"][0]
    done = chorale(capsys, "synth", "bfb", row["spec"], "--json")
    assert json.loads(done.stdout)["schedule"]["id"] == row["schedule_id"]


def test_failures_that_cut_the_fabric_are_listed_with_the_reason(capsys):
    found = document(capsys, "uniring:1,4", "--executor", "serial")
    assert found["without_plan"] == len(found["failures"]) == 2
    assert all("path" in row["reason"] for row in found["failures"])


def test_parts_of_links_are_planned_and_priced(capsys):
    document = chorale(
        capsys, "failures", "h100:1", "--collective", "allgather", "--part", "nvlink", "--part", "1/4", "--json"
    ).document
    costs = {row["failure"]: row["slowdown"] for row in document["failures"]}
    assert costs["link=0.0-nvswitch:0;part=1/18"] == "18/17"
    assert costs["link=0.0-nvswitch:0;part=1/4"] == "4/3"


def test_the_table_names_the_fabric_as_it_is_first(capsys):
    done = chorale(capsys, "failures", "torus:3x3", "--method", "bfb", "--executor", "serial")
    assert done.code == 0
    assert "27 single failures, none without a plan" in done.stdout
    assert done.stdout.index("none") < done.stdout.index("node=0")


def test_the_table_is_written_for_spreadsheets(capsys, tmp_path):
    path = tmp_path / "failures.csv"
    done = chorale(capsys, "failures", "uniring:1,4", "--executor", "serial", "-o", path, "--json")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["failure"] for row in rows] == ["", "node=0", "link=0-1"]
    assert rows[0]["time_per_byte"] == json.loads(done.stdout)["intact"]["time_per_byte"]
    assert "path" in rows[1]["reason"]
