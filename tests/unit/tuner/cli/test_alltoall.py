"""`chorale alltoall`, with traffic and routings, and `chorale groups`: what they print, write and refuse."""

import json
from fractions import Fraction

import numpy as np
import pytest

import chorale as ch
from chorale.synth.methods.alltoall import linear_program as commodities
from chorale.synth.topology.spec import parse_topology
from chorale.tuner.cli.alltoall import parse_groups
from chorale.tuner.files.traffic_files import load_traffic
from tests.command import chorale


def test_rates_by_linear_programs_and_by_prices(capsys, monkeypatch):
    document = chorale(capsys, "alltoall", "torus:4x4", "--json", code=0).document
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
    document = chorale(capsys, "alltoall", "genkautz:3,20", "--method", "prices", "--gap", "1/50", "--json").document
    assert document["method"] == "prices"
    assert document["exact"] is None
    assert document["lower"] < document["upper"] <= document["lower"] * 1.02
    monkeypatch.setattr(commodities, "MAX_CELLS", 100)
    done = chorale(capsys, "alltoall", "genkautz:3,20")
    rule = "all-to-all rates need at most 100 pairs of a source and a link, after known symmetries"
    assert (done.code, done.stderr.startswith(f"chorale: {rule}, got ")) == (2, True)


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
    assert chorale(capsys, "lower", output, "-o", tmp_path / "combine.xml").code == 0


def test_what_is_no_routing(capsys, tmp_path):
    path = tmp_path / "routing.txt"
    for text, message in (
        ("0 1\n2 x\n", "invalid literal"),
        ("0 1000000000\n", "1000000001 numbers; at most"),  # a list of experts that takes 8 GB
        (f"[[{'1,' * 99999}1]{',[1]' * 99999}]", "10000000000 numbers; at most"),  # rows that are filled up
        ("[[0], [1]]", "no token goes to another rank"),
        ('{"tokens": []}', "no `experts`"),
        ("", "of shape"),
        ('{"experts": [[0, 1]], "placement": [0, 99]}', "the rank of an expert must be -1 to 15, got 99"),
        ('{"experts": [[0.5, 1]]}', "0.5"),
        ('{"experts": [[true, 1]]}', "True"),
        ('{"experts": [[0, 1]], "token_bytes": 1.5}', "1.5"),
    ):
        path.write_text(text)
        assert message in chorale(capsys, "alltoall", "h100:2", "--routing", path, code=2).stderr


AMOUNTS = [[0, 300, 10, 40], [20, 0, 400, 10], [0, 30, 0, 0], [90, 0, 50, 0]]


def test_traffic_is_planned_and_replanned(capsys, tmp_path):
    path = tmp_path / "dispatch.parquet"
    options = ("--traffic", "zipf:1.2", "--next", "zipf:1.2", "--seed", 5, "-o", path, "--json")
    document = chorale(capsys, "alltoall", "mesh:2x3", *options, code=0).document
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
    assert chorale(capsys, "verify", path, "--json", code=0).document["ok"] is True


def test_files_of_each_kind_give_the_same_plan(capsys, tmp_path):
    np.save(tmp_path / "traffic.npy", np.array(AMOUNTS))
    (tmp_path / "traffic.csv").write_text("\n".join(",".join(map(str, row)) for row in AMOUNTS))
    (tmp_path / "traffic.json").write_text(json.dumps({"traffic": AMOUNTS}))
    for path in tmp_path.glob("traffic.*"):
        document = chorale(capsys, "alltoall", "ring:4", "--traffic", path, "--json").document
        assert document["traffic"]["total"] == sum(map(sum, AMOUNTS))
        assert document["time"] == document["time_lower"] == "760/3"
    back = chorale(capsys, "alltoall", "ring:4", "--traffic", path, "--combine", "--json").document
    assert back["traffic"]["name"] == f"transpose of {path}"
    shown = chorale(capsys, "alltoall", "ring:4", "--traffic", path, "--quiet").stdout
    assert "exactly the least" in shown
    assert "over one shortest" in shown


def test_files_that_hold_no_traffic_are_refused(capsys, tmp_path):
    no_rows = "rows of numbers, as text, JSON or .npy"
    head = "{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000, 0)}".ljust(117) + "\n"
    for name, content, message in (
        ("t.json", b"[[0, 1], [1, 0]]", "has 4 ranks"),
        ("t.json", b'{"rows": 1}', no_rows),
        ("t.npy", b"no array", no_rows),
        ("t.npy", b"PK\x03\x04", no_rows),
        ("t.npy", b"\x93NUMPY\x01\0v\0" + head.encode(), "1000000000 numbers"),
        ("t.json", b"[[1], 2]", "a number next to rows"),
        ("t.json", b"[" + b"[]," * 2**20 + b"[]]", "1048577 numbers; at most 1048576 are allowed"),
        ("t.txt", b"", "at least 2 ranks"),
        ("t.csv", b"0,-1\n1,0", "which is not an amount"),
    ):
        (tmp_path / name).write_bytes(content)
        assert message in chorale(capsys, "alltoall", "ring:4", "--traffic", tmp_path / name, code=2).stderr


def test_a_program_is_written_with_what_it_must_do(capsys, tmp_path):
    schedule, program = tmp_path / "dispatch.parquet", tmp_path / "dispatch.xml"
    chorale(capsys, "alltoall", "ring:4", "--traffic", "zipf:1", "--chunks", 4, "-o", schedule)
    lowered = chorale(capsys, "lower", schedule, "--target", "msccl-xml", "-o", program, "--json", code=0)
    collective = lowered.document["collective_file"]
    lifted = chorale(capsys, "lift", program, "--spec", "ring:4", "--collective-file", collective, "--json")
    assert (lifted.code, lifted.document["ok"]) == (0, True)


def test_shards_of_given_sizes(capsys, tmp_path):
    sizes, path = tmp_path / "sizes.json", tmp_path / "scatter.json"
    sizes.write_text("[30, 0, 10, 20]")
    bound = chorale(capsys, "bound", "ring:4", "--collective", "allgather", "--shards", sizes, "--json").document
    assert (bound["time_per_byte"], bound["shards"]["units"]) == ("1/2", [3, 0, 1, 2])  # into rank 1
    assert (bound["collective"], bound["topology"]["spec"]) == ("allgatherv", "ring:4")
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
        ("numpy.txt", "[[100 200]\n [ 50   7]]\n", [[100, 200], [50, 7]]),
        ("pandas.csv", ",0,1\n0,100,200\n1,50,7\n", [[100, 200], [50, 7]]),
        ("fractions.csv", "0,0.5\n.25, 0\n", [[0, 2], [1, 0]]),
        ("commas.csv", "0;0,5\n0,25; 0\n", [[0, 2], [1, 0]]),
        ("commas.txt", "0 0,5\n0,25 0\n", [[0, 2], [1, 0]]),
        ("units.csv", "# UCC\n0 5M\n1KiB; 0\n", [[0, 5 * 2**20], [1024, 0]]),
        ("decimal.txt", "0,1.5KB\n1e3,0", [[0, 1500], [1000, 0]]),
        ("t.json", '{"traffic": [[0, 0.1], ["1M", 0]]}', [[0, 1], [10 * 2**20, 0]]),
    ],
)
def test_matrices_as_others_write_them(tmp_path, name, text, amounts):
    (tmp_path / name).write_text(text)
    assert load_traffic(str(tmp_path / name), 2, "complete:2").amounts.tolist() == amounts


def test_a_guess_is_never_called_proven(capsys, tmp_path):
    machine = "file:tests/data/machines/b200-good.txt"
    (tmp_path / "sizes.txt").write_text("\n".join(" ".join("5" * 8) for _ in range(8)))
    for options in ((), ("--traffic", tmp_path / "sizes.txt")):
        for model, word in (("", "under these assumptions"), ("?model=B200", "proven")):
            done = chorale(capsys, "alltoall", f"{machine}{model}", *options, "--quiet")
            text = " ".join(done.stdout.replace("│", " ").split())
            assert (done.code, word in text, "assumed (guess)" in text) == (0, True, word != "proven")
            assert ("proven" in text) == (word == "proven")
    assert "optimal under these assumptions" in repr(ch.plan_alltoall(machine, [[5] * 8] * 8))
    assert "optimal under these assumptions" in repr(ch.synthesize(machine, "allreduce"))


TENSOR, DATA = ("--group", "tp=allreduce:by2:100"), ("--group", "dp=reduce_scatter:every2:60")


def test_groups_are_planned_together_and_written(capsys, tmp_path):
    folder = tmp_path / "plans"
    document = chorale(capsys, "groups", "ring:4", *TENSOR, *DATA, "-o", folder, "--json", code=0).document
    assert [group["name"] for group in document["groups"]] == ["tp0", "tp1", "dp0", "dp1"]
    assert [group["ranks"] for group in document["groups"]] == [[0, 1], [2, 3], [0, 2], [1, 3]]
    gap = Fraction(document["time"]) / Fraction(document["time_lower"]) - 1
    assert (Fraction(document["gap"]), document["verified"]) == (gap, True)
    assert gap < Fraction(1, 50)
    assert document["compared"]["alone_together"]["ratio"] >= 1
    assert document["compared"]["one_after_another"]["ratio"] >= 1
    for group in document["groups"]:
        assert chorale(capsys, "verify", group["output"]).code == 0
    assert "planned alone, run together" in chorale(capsys, "groups", "ring:4", *TENSOR, "--quiet", code=0).stdout


def test_ranks_of_groups():
    ranks = {
        "by3": [(0, 1, 2), (3, 4, 5)],
        "every3": [(0, 3), (1, 4), (2, 5)],
        "all": [(0, 1, 2, 3, 4, 5)],
        "1-3": [(1, 2, 3)],
        "0,2,5": [(0, 2, 5)],
        "0-1,4": [(0, 1, 4)],
    }
    topology = parse_topology("ring:6")
    read = {text: [group.ranks for group in parse_groups(topology, f"g=allgather:{text}:1")] for text in ranks}
    assert read == ranks


def test_options_for_tokens_need_a_routing(capsys, tmp_path):
    for options in (("--experts", 5), ("--advise", 5), ("--traffic", "zipf:1", "--advise", 5)):
        assert "need --routing" in chorale(capsys, "alltoall", "h100:2", *options, code=2).stderr
    done = chorale(capsys, "alltoall", "ring:4", "--traffic", "zipf:1", "--gap", "-1")
    assert (done.code, "must not be negative" in done.stderr) == (2, True)
    (tmp_path / "routing.csv").write_text("0,1\n2,3\n")
    dispatch = chorale(capsys, "alltoall", "uniring:1,4", "--routing", tmp_path / "routing.csv", "--json").document
    assert dispatch["combine"] is None  # sums cannot go back on a ring in one direction
    assert chorale(capsys, "alltoall", "uniring:1,4", "--routing", tmp_path / "routing.csv", "--combine").code == 2
