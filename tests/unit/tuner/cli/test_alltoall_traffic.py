"""`chorale alltoall --traffic`: what it prints and writes, and how it refuses."""

import json
from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.errors import InvalidInput
from chorale.tuner.files.traffic_files import load_traffic
from tests.command import chorale

AMOUNTS = [[0, 300, 10, 40], [20, 0, 400, 10], [0, 30, 0, 0], [90, 0, 50, 0]]


def test_json(capsys, tmp_path):
    path = tmp_path / "dispatch.parquet"
    options = ("--traffic", "zipf:1.2", "--next", "zipf:1.2", "--seed", 5, "-o", path, "--json")
    done = chorale(capsys, "alltoall", "mesh:2x3", *options)
    assert done.code == 0, done.stderr
    document = done.document
    assert {"rate", "lower", "upper", "method", "seconds", "exact", "gap"} <= set(document)
    assert document["traffic"]["name"] == "zipf:1.2 with seed 5"
    assert document["lower"] <= document["upper"]
    schedule = document["schedule"]
    assert (schedule["verified"], schedule["output"], schedule["padding"]) == (True, str(path), 0)
    assert Fraction(schedule["gap"]) == Fraction(document["time"]) / Fraction(document["time_lower"]) - 1
    assert all(each["ratio"] >= 1 - 1e-9 for each in document["compared"].values())
    [again] = document["replans"]
    assert again["traffic"] == "zipf:1.2 with seed 6"
    assert Fraction(again["gap"]) <= Fraction(1, 200)
    checked = chorale(capsys, "verify", path, "--json")
    assert checked.code == 0
    assert checked.document["ok"] is True


@pytest.mark.parametrize("suffix", [".json", ".csv", ".npy"])
def test_files_of_each_kind_give_the_same_plan(capsys, tmp_path, suffix):
    path = tmp_path / f"traffic{suffix}"
    if suffix == ".npy":
        np.save(path, np.array(AMOUNTS))
    elif suffix == ".csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in AMOUNTS))
    else:
        path.write_text(json.dumps({"traffic": AMOUNTS}))
    document = chorale(capsys, "alltoall", "ring:4", "--traffic", path, "--json").document
    assert document["traffic"]["total"] == sum(map(sum, AMOUNTS))
    assert document["time"] == document["time_lower"] == "760/3"
    back = chorale(capsys, "alltoall", "ring:4", "--traffic", path, "--combine", "--json").document
    assert back["traffic"]["name"] == f"transpose of {path}"
    shown = chorale(capsys, "alltoall", "ring:4", "--traffic", path, "--quiet").stdout
    assert "exactly the least" in shown
    assert "over one shortest" in shown


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", "[[0, 1], [1, 0]]", "a row for each of the 4 ranks"),
        ("t.json", '{"rows": 1}', "rows of numbers, as text, JSON or .npy"),
        ("t.npy", "no array", "rows of numbers, as text, JSON or .npy"),
        ("t.json", "[[1], 2]", "a number beside rows"),
        ("t.json", f"[{'[],' * 2**20}[]]", "1048577 numbers, of which 1048576 are allowed"),
        ("t.txt", "", "at least 2 ranks"),
        ("t.csv", "0,-1\n1,0", "which is no amount"),
    ],
)
def test_files_that_hold_no_traffic_are_refused(capsys, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    done = chorale(capsys, "alltoall", "ring:4", "--traffic", tmp_path / name)
    assert done.code == 2
    assert message in done.stderr


def test_an_array_of_many_empty_rows_is_refused(tmp_path):
    head = "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000, 0)}".ljust(117) + "\n"
    (tmp_path / "t.npy").write_bytes(b"\x93NUMPY\x01\0v\0" + head.encode())
    with pytest.raises(InvalidInput, match="1000000000 numbers"):
        load_traffic(str(tmp_path / "t.npy"), 4, "ring:4")


def test_a_program_is_written_with_what_it_must_do(capsys, tmp_path):
    schedule, program = tmp_path / "dispatch.parquet", tmp_path / "dispatch.xml"
    chorale(capsys, "alltoall", "ring:4", "--traffic", "zipf:1", "--chunks", 4, "-o", schedule)
    lowered = chorale(capsys, "lower", schedule, "--target", "msccl-xml", "-o", program, "--json")
    assert lowered.code == 0, lowered.stderr
    collective = lowered.document["collective_file"]
    lifted = chorale(capsys, "lift", program, "--spec", "ring:4", "--collective-file", collective, "--json")
    assert (lifted.code, lifted.document["ok"]) == (0, True)


def test_shards_of_given_sizes(capsys, tmp_path):
    sizes, path = tmp_path / "sizes.json", tmp_path / "scatter.json"
    sizes.write_text("[30, 0, 10, 20]")
    bound = chorale(capsys, "bound", "ring:4", "--collective", "allgather", "--shards", sizes, "--json").document
    assert (bound["time_per_byte"], bound["shards"]["units"]) == ("1/2", [3, 0, 1, 2])  # into rank 1
    for collective in ("allgather", "reduce_scatter"):
        options = ("--collective", collective, "--shards", sizes, "-o", path, "--json")
        document = chorale(capsys, "synth", "forest", "ring:4", *options).document
        assert document["collective"] == f"{collective}v"
        assert document["optimality"]["gap"] == "0"
        assert chorale(capsys, "verify", path).code == 0


@pytest.mark.parametrize(
    ("name", "text", "amounts"),
    [
        ("nccl.txt", "100  200\n50 7\n", [[100, 200], [50, 7]]),
        ("fractions.csv", "0,0.5\n.25, 0\n", [[0, 2], [1, 0]]),
        ("units.csv", "# UCC\n0 5M\n1KiB; 0\n", [[0, 5 * 2**20], [1024, 0]]),
        ("decimal.txt", "0,1.5KB\n1e3,0", [[0, 1500], [1000, 0]]),
        ("t.json", '{"traffic": [[0, 0.1], ["1M", 0]]}', [[0, 1], [10 * 2**20, 0]]),
    ],
)
def test_matrices_as_others_write_them(tmp_path, name, text, amounts):
    (tmp_path / name).write_text(text)
    assert load_traffic(str(tmp_path / name), 2, "complete:2").amounts.tolist() == amounts
