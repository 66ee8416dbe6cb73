"""`chorale alltoall`: what it prints and writes, and how it refuses."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from chorale.synth.methods.alltoall import linear_program as commodities
from tests.command import chorale


def test_json(capsys):
    done = chorale(capsys, "alltoall", "torus:4x4", "--json")
    assert done.code == 0
    document = done.document
    assert list(document) == [
        "topology", "rate", "lower", "upper", "exact", "gap", "method", "seconds", "stages", "peak_memory_bytes",
    ]  # fmt: skip
    assert document["rate"] == document["lower"] == document["upper"] == 0.125
    assert document["exact"] == "1/8"
    assert (document["method"], document["gap"]) == ("lp", 0.0)
    assert 0 < document["seconds"] < 60
    assert document["topology"]["nodes"] == 16
    done = chorale(capsys, "alltoall", "ring:4", "--quiet")
    assert (done.code, "│" in done.stderr) == (0, False)
    assert "0.5 of a link, exactly 1/2" in done.stdout


def test_bounds_by_prices(capsys, monkeypatch):
    document = chorale(capsys, "alltoall", "genkautz:3,20", "--method", "prices", "--gap", "1/50", "--json").document
    assert document["method"] == "prices"
    assert document["exact"] is None
    assert document["lower"] < document["upper"] <= document["lower"] * 1.02
    monkeypatch.setattr(commodities, "MAX_CELLS", 100)
    done = chorale(capsys, "alltoall", "genkautz:3,20")
    rule = "all-to-all rates need at most 100 pairs of a source and a link, after known symmetries"
    assert (done.code, done.stderr.startswith(f"chorale: {rule}, got ")) == (2, True)


def test_a_schedule_is_written_and_verifies(capsys, tmp_path):
    path = tmp_path / "alltoall.parquet"
    document = chorale(capsys, "alltoall", "mesh:2x3", "-o", path, "--chunks", 2, "--json").document
    schedule = document["schedule"]
    assert schedule["output"] == str(path)
    assert schedule["chunks_per_shard"] == 2
    assert schedule["rate"] <= document["upper"]
    assert schedule["gap"] == pytest.approx(document["upper"] / schedule["rate"] - 1)
    checked = chorale(capsys, "verify", path, "--json")
    assert checked.code == 0
    assert checked.document["cost"]["time_per_byte"] == str(
        1 / (6 * Fraction(schedule["rate"]).limit_denominator(1000))
    )
    text = chorale(capsys, "alltoall", "mesh:2x3", "-o", path).stdout
    for row in ("transfers over up to", "chunks per shard", "rate of the schedule", "written to"):
        assert row in text


def test_it_is_designed_and_lowered_without_another_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    schedule, program = tmp_path / "a.parquet", tmp_path / "a.xml"
    document = chorale(capsys, "synth", "ring:4", "--collective", "alltoall", "-o", schedule, "--json").document
    assert (document["method"], document["optimality"]["gap"]) == ("alltoall", "0")
    lowered = chorale(capsys, "lower", schedule, "--target", "msccl-xml", "-o", program, "--json")
    assert lowered.document["in_place"] is False
    assert chorale(capsys, "lift", program).code == 0
    assert "`chorale alltoall ring:4` proves" in chorale(capsys, "bound", "ring:4", "--collective", "alltoall").stdout


def test_tokens_with_several_experts_on_a_node(capsys, tmp_path):
    routing = tmp_path / "routing.json"
    routing.write_text(
        json.dumps({"experts": [[8, 9, 10], [0, 11]] * 8, "placement": list(range(16)), "token_bytes": 64})
    )
    output = tmp_path / "combine.parquet"
    arguments = "alltoall", "h100:2", "--routing", routing
    document = chorale(capsys, *arguments, "--combine", "-o", output, "--json").document
    assert document["method"] == "two level"
    assert Fraction(document["time"]) >= Fraction(document["time_lower"])
    assert document["compared"]["no_copies"]["ratio"] > 1.5
    assert document["schedule"]["collective"] == "combine"
    assert chorale(capsys, "verify", output).code == 0
    assert "sums on the way back" in chorale(capsys, *arguments, "-q").stdout
    advice = chorale(capsys, *arguments, "--advise", 3, "--json").document["advice"]
    assert [step["action"] for step in advice["steps"]]
    assert Fraction(advice["time_lower"]) <= Fraction(document["time_lower"])
    refused = chorale(capsys, "lower", output, "-o", tmp_path / "combine.xml")
    assert (refused.code, "there are no programs for copies and sums of tokens yet" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n2 x\n", "invalid literal"),
        ("[[0], [1]]", "no token goes to another rank"),
        ('{"tokens": []}', "no `experts`"),
        ("", "of shape"),
        ('{"experts": [[0, 1]], "placement": [0, 99]}', "the rank of an expert must be -1 to 15, got 99"),
    ],
)
def test_what_is_no_routing(capsys, tmp_path, text, message):
    path = tmp_path / "routing.txt"
    path.write_text(text)
    done = chorale(capsys, "alltoall", "h100:2", "--routing", path)
    assert (done.code, message in done.stderr) == (2, True)
