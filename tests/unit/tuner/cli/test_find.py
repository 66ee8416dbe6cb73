"""`chorale find` as scripts and people use it."""

import csv
import re

import pytest

from chorale.synth import parse_topology
from tests.command import chorale

WORKLOAD = ("--alpha-us", 10, "--size", "1M", "--bandwidth-gbps", 100)


def test_the_document_of_the_contract(capsys):
    done = chorale(capsys, "find", "--nodes", 64, "--degree", 4, "--search", 0, *WORKLOAD, "--json", code=0)
    document = done.document
    assert (document["nodes"], document["degree"], document["bidirectional"]) == (64, 4, False)
    assert document["bound"] == {"steps": 3, "bandwidth_factor": "63/64"}
    first, second = document["frontier"]
    assert (first["steps"], first["bandwidth_factor"]) == (3, "17/16")
    assert (first["moore_optimal"], first["bandwidth_optimal"]) == (True, False)
    assert (second["steps"], second["bandwidth_factor"], second["diameter"]) == (4, "63/64", 4)
    assert (second["moore_optimal"], second["bandwidth_optimal"]) == (False, True)
    assert all(row["confirmed"] for row in (first, second))
    assert document["best"] == first
    assert first["allreduce_us"] == pytest.approx(2 * (3 * 10 + 17 / 16 * 2**20 * 8 / 100e3))
    assert document["seconds"] > 0
    assert sum(v for v in document["stages"].values()) == pytest.approx(document["seconds"])


def test_more_seeds_find_no_worse_networks_and_ranges_of_sizes_are_told(capsys):
    document = chorale(capsys, "find", "-n", "3:20", "-d", 4, *WORKLOAD, "--json").document
    assert [size["nodes"] for size in document["sizes"]] == list(range(5, 21))
    for size in document["sizes"]:
        assert size["best"]["spec"] in [row["spec"] for row in size["frontier"]]
        assert size["frontier"][0]["steps"] >= size["bound"]["steps"]
    two_way = chorale(capsys, "find", "-n", "4:9", "-d", 3, "--bidirectional", "--json").document
    assert [size["nodes"] for size in two_way["sizes"]] == [4, 6, 8]
    assert "circulant" in chorale(capsys, "find", "-n", "310:311", "-d", 4).stdout
    few, more = (chorale(capsys, "find", "-n", 36, "-d", 4, "--json", "--search", seeds).document for seeds in (3, 20))
    assert few["frontier"][0]["steps"] >= more["frontier"][0]["steps"]


def test_a_plot(capsys, tmp_path):
    for suffix, begin in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        file, again = tmp_path / f"frontier{suffix}", tmp_path / f"again{suffix}"
        for path in (file, again):
            done = chorale(capsys, "find", "-n", 16, "-d", 4, "--search", 0, "--plot", path, code=0)
            assert f"{path.name}: picture of the Pareto frontier" in " ".join(done.stdout.split())
        assert file.read_bytes().startswith(begin)
        assert file.read_bytes() == again.read_bytes()
    svg = (tmp_path / "frontier.svg").read_text()
    assert "16 nodes, degree 4" in svg


def test_cables_that_lie_are_kept_and_each_rank_has_a_host_between_them(capsys, tmp_path):
    lying, wanted = tmp_path / "lying.csv", tmp_path / "wanted.csv"
    lying.write_text("from,from_port,to\n" + "".join(f"a{n},7,a{(n + 1) % 8}\n" for n in range(8)))
    options = ("find", "-n", 8, "-d", 3, "--bidirectional", "--search", 0, "--keep-cables", lying)
    found = chorale(capsys, *options, "--moves", 4, "--cables", wanted, "--panel-ports", 6, "--json").document
    assert found["frontier"][0]["cables"] == {"kept": 8, "added": 4, "removed": 0}
    head, *rows = [line.split(",") for line in wanted.read_text().splitlines()]
    assert head == ["from", "from_port", "to", "to_port", "panel", "change", "from_rank", "to_rank"]
    assert [row[5] for row in rows] == ["keep"] * 8 + ["add"] * 4
    assert all("7" in (row[1], row[3]) for row in rows[:8])
    panels = [row[4] for row in rows]
    assert all(panels.count(panel) <= 3 for panel in panels)
    again = chorale(capsys, *options[:-1], wanted, "--moves", 0, "--json").document
    assert again["frontier"][0]["cables"]["kept"] == 12
    drawing = tmp_path / "cables.svg"
    assert chorale(capsys, *options, "--moves", 4, "--cables", drawing).code == 0
    assert {"#8795a8", "#db2777"} <= set(re.findall("#[0-9a-f]{6}", drawing.read_text()))  # cables that stay, new ones
    lying, wanted = tmp_path / "lying.csv", tmp_path / "wanted.csv"
    lying.write_text("from,to\n" + "".join(f"rack{n * 3 % 8},rack{(n * 3 + 3) % 8}\n" for n in range(7)))
    options = ("find", "-n", 8, "-d", 3, "--bidirectional", "--search", 0, "--keep-cables", lying, "--cables", wanted)
    row = chorale(capsys, *options, "--json").document["frontier"][0]
    assert sorted(row["hosts"]) == [f"rack{n}" for n in range(8)]
    cables = list(csv.DictReader(wanted.read_text().splitlines()))
    assert {cable["change"] for cable in cables} == {"keep", "add"}
    assert all(row["hosts"][int(cable[f"{end}_rank"])] == cable[end] for cable in cables for end in ("from", "to"))
    made = parse_topology(row["spec"]).links
    links = {frozenset(link) for link in zip(made.src.tolist(), made.dst.tolist(), strict=True)}
    assert links == {frozenset((int(cable["from_rank"]), int(cable["to_rank"]))) for cable in cables}
    text = " ".join(chorale(capsys, *options).stdout.split())
    assert f"hosts of ranks 0, 1, … of {row['spec']}: {', '.join(row['hosts'])}" in text


def test_the_result_says_what_was_written(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("find", "-n", 24, "-d", 4, "--bidirectional", "--search", 0, "--collective", "both")
    done = chorale(capsys, *options, "--cables", "cables.csv", "--panel-ports", 12)
    assert "\ncables.csv: 48 cables, 8 panels, of bidirectional(base:cayley-24-2)\n" in done.stdout
    one = chorale(capsys, *options, "--cables", "cables.csv", "--panel-ports", 96)
    assert "48 cables, 1 panel, of" in one.stdout
    (tmp_path / "ring.csv").write_text("".join(f"a{n},a{(n + 1) % 6}\n" for n in range(6)) + "a0,a2\na0,a3\na0,a4\n")
    options = ("find", "-n", 6, "-d", 2, "--bidirectional", "--search", 0, "--keep-cables", "ring.csv")
    done = chorale(capsys, *options, "--cables", "cables.svg")
    assert "\ncables.svg: 6 cables, 3 to remove, of " in done.stdout


def test_an_all_to_all_ranks_by_its_rate(capsys):
    document = chorale(capsys, "find", "-n", 12, "-d", 3, "--search", 0, "--collective", "alltoall", "--json").document
    rates = [row["alltoall"]["rate"] for row in document["frontier"]]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] <= document["bound"]["alltoall_rate"]
    done = chorale(capsys, "find", "-n", 12, "-d", 3, "--search", 0, "--collective", "alltoall")
    assert f"next: chorale alltoall {document['frontier'][0]['spec']}\n" in done.stderr
    assert f" {document['bound']['alltoall_rate']:.5f} (bounds) " in " ".join(done.stdout.split())
    both = chorale(capsys, "find", "-n", 12, "-d", 3, "--search", 0, "--collective", "both")
    assert "all-to-all" in both.stdout
    assert "--collective allreduce" in both.stderr
