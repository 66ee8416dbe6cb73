"""`chorale show` and `chorale compare`: what they say and draw of schedules and programs, and how they refuse."""

from fractions import Fraction

import pytest

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.collective import ALLREDUCE
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.custom_programs import SCAN, scan_program
from tests.hand_written import direct_allreduce


def test_a_schedule_of_trees(capsys, files):
    schedule, _ = files("forest", "a100:2", "allgather")
    document = chorale(capsys, "show", schedule, "--rank", 3, "--json").document
    assert (document["kind"], document["plot"]) == ("schedule", None)
    assert document["cost"]["time_per_byte"] == "3/1040"
    assert len(document["links"]) == 96
    assert {link["busy"] for link in document["links"]} == {1.0}
    assert sum(Fraction(way["share"]) for way in document["ways"]) == 1
    for way in document["ways"]:
        assert (way["rank"], way["sums"], len(way["edges"])) == (3, False, 15)
        assert way["edges"][0]["path"][0] == "0.3"


def test_a_program_needs_no_spec_if_it_names_its_network_and_a_wrong_one_is_not_shown(capsys, files):
    _, program = files()
    done = chorale(capsys, "show", program, "--size", "8MiB", "--hop-us", 0, "--link-latency-us", 0, "--json")
    document = done.document
    assert document["kind"] == "program"
    assert document["topology"]["spec"] == "hypercube:3"
    assert "100 Gbit/s" in done.stderr
    # 7/4 of the vector over three links of 100 Gbit/s; no latency, all links busy from the beginning to the end
    assert document["time_us"] == pytest.approx(7 / 4 / 3 * 2**23 * 8 / 1e11 * 1e6)
    assert document["cost"]["time_per_byte"] == "7/12"
    assert document["resources"]["threadblocks_max"] == 6
    assert [row["rank"] for row in document["timeline"]] == list(range(8))
    assert [row["bytes"] for row in document["timeline"]] == pytest.approx([7 / 4 * 2**23] * 8)
    assert sum(row["messages"] for row in document["timeline"]) == document["messages"]
    _, program = files()
    program.write_text(program.read_text().replace('type="rrc"', 'type="r"', 1))
    assert "chorale lift" in chorale(capsys, "show", program, code=1).stderr


def test_rates_are_options(capsys, files):
    _, program = files("bfb", "hypercube:3", "allgather", "oneccl-xml")
    arguments = ("show", program, "--spec", "hypercube:3", "--json", "--link-gbps", 10)
    plain = chorale(capsys, *arguments)
    assert "assuming 100 Gbit/s" not in plain.stderr
    assert plain.document["parameters"]["buffer_bytes"] is None
    slow = chorale(capsys, *arguments, "--alpha-us", 1000).document
    assert slow["time_us"] > plain.document["time_us"] + 2000


def test_pictures_repeat_and_many_sending_blocks_become_rows(capsys, tmp_path, files):
    words = (b"data of rank 0", b"all links equally loaded"), (b"rank 3", b"part of the time in use")
    for path, said in zip(files("forest", "ring:4", "allreduce", "oneccl-xml"), words, strict=True):
        for name in ("one", "two"):
            assert chorale(capsys, "show", path, "--plot", tmp_path / f"{name}.svg", "--quiet").code == 0
        drawn = (tmp_path / "one.svg").read_bytes()
        assert drawn == (tmp_path / "two.svg").read_bytes()
        assert all(word in drawn for word in said)
    _, program = files("bfb", "complete:14", "allgather", "oneccl-xml")
    plot = tmp_path / "rows.svg"
    assert chorale(capsys, "show", program, "--plot", plot).code == 0
    assert b"part of a rank" in plot.read_bytes()
    schedule, _ = files("ring", "ring:5")
    assert chorale(capsys, "show", schedule, "--plot", plot).code == 0
    words = (b"share of each step", b"all links equally loaded", b"sums for rank 0, by step")
    assert all(word in plot.read_bytes() for word in words)


def test_a_plan_is_shown_like_a_program(capsys, tmp_path, files):
    """Its puts go straight to where they belong: it takes what the program takes, and the latencies of operations."""
    schedule, program = files("bfb", "hypercube:3", "allgather", "oneccl-xml")
    plan, plot = tmp_path / "plan.json", tmp_path / "plan.svg"
    assert chorale(capsys, "lower", schedule, "--target", "mscclpp-json", "-o", plan).code == 0
    free = ("--size", "8MiB", "--hop-us", 0, "--link-latency-us", 0, "--json")
    shown = chorale(capsys, "show", plan, *free, "--plot", plot).document
    same = chorale(capsys, "show", program, *free).document
    assert (shown["target"], shown["kind"]) == ("mscclpp-json", "program")
    for name in ("links", "cost", "messages", "collective"):
        assert shown[name] == same[name]
    assert same["time_us"] < shown["time_us"] < same["time_us"] + 3 * 7  # three steps, each with some latencies
    assert [row["bytes"] for row in shown["timeline"]] == [row["bytes"] for row in same["timeline"]]
    assert b"rank 3" in plot.read_bytes()
    priced = chorale(capsys, "run", plan, "--runner", "simulated", "--sizes", "1M", "--link-mbps", 100, "--json")
    assert priced.document["results"][0]["time_us_median"] > 0


RATES = ("--link-gbps", 100, "--alpha-us", 1, "--hop-us", 0, "--link-latency-us", 0)


def test_a_comparison_has_crossovers_and_a_picture(capsys, schedule, tmp_path):
    # recursive doubling sends everything in each of 3 steps, over up to 4 links; a ring 2 * 7 eighths in 14 steps.
    doubling, ring = schedule("recursive-doubling", "ring:8"), schedule("ring", "ring:8")
    document = chorale(capsys, "compare", doubling, ring, *RATES, "--sizes", "1KiB:64MiB:x64", "--json").document
    assert [side["method"] for side in document["sides"]] == ["recursive-doubling", "ring"]
    assert [side["steps"] for side in document["sides"]] == [3, 14]
    costs = [Fraction(side["time_per_byte"]) for side in document["sides"]]
    assert Fraction(document["time_per_byte_ratio"]) == costs[0] / costs[1] > 1
    assert [row["faster"] for row in document["results"]] == ["first", "second", "second"]
    (cross,) = document["crossovers"]
    assert (cross["faster_below"], cross["faster_above"]) == ("first", "second")
    # 3 us + first * M = 14 us + second * M, at 100 Gbit/s
    assert cross["size_bytes"] == pytest.approx(11e-6 * 12.5e9 / float(costs[0] - costs[1]), rel=0.02)
    files = schedule("ring", "ring:8"), schedule("bfb", "ring:8")
    assert chorale(capsys, "compare", *files, *RATES, "--plot", tmp_path / "a.svg").code == 0
    assert b"second: " in (tmp_path / "a.svg").read_bytes()


def test_a_program_beside_its_schedule(capsys, files, tmp_path):
    schedule, program = files("bfb", "ring:8", "allreduce", "oneccl-xml")
    document = chorale(capsys, "compare", schedule, program, *RATES, "--sizes", "1MiB,16MiB", "--json").document
    assert document["parameters"]["model"] == "flow"
    assert [side["kind"] for side in document["sides"]] == ["stepped", "program"]
    assert document["sides"][1]["threadblocks_max"] == 4
    assert document["time_per_byte_ratio"] == "1"
    for row in document["results"]:
        assert row["time_us"][0] == pytest.approx(row["time_us"][1])
        assert row["faster"] == "equal"
    assert document["crossovers"] == []
    plan = tmp_path / "plan.json"
    assert chorale(capsys, "lower", schedule, "--target", "mscclpp-json", "-o", plan).code == 0
    document = chorale(capsys, "compare", program, plan, *RATES, "--sizes", "1MiB,64MiB", "--json").document
    assert [side["target"] for side in document["sides"]] == ["oneccl-xml", "mscclpp-json"]
    assert document["sides"][1]["scratch_chunks_max"] > document["sides"][0]["scratch_chunks_max"]
    assert document["time_per_byte_ratio"] == "1"
    assert [row["speedup"] for row in document["results"]] == pytest.approx([1, 1])


def test_a_program_without_a_name_runs_on_the_network_of_the_schedule(capsys, files, schedule):
    program = files("bfb", "ring:8", "allreduce", "msccl-xml")[1]
    program.write_text(program.read_text().replace("allreduce bfb ring:8", "unnamed"))
    done = chorale(capsys, "compare", schedule("ring", "ring:8"), program, "--sizes", "1MiB", code=0)
    assert "100 Gbit/s" in done.stderr
    assert chorale(capsys, "compare", program, program).code == 2
    assert chorale(capsys, "compare", program, program, "--spec", "ring:8", "--sizes", "1MiB").code == 0


def test_a_program_is_measured_by_the_bound_of_the_fabric_that_is_given(capsys, tmp_path):
    hand = tmp_path / "hand.xml"
    hand.write_text(direct_allreduce(4))
    done = chorale(capsys, "compare", hand, "--topology", "complete:4", "--sizes", "1MiB,1GiB", "--json")
    document = done.document
    assert (done.code, document["bound"]["time_per_byte"], document["gap"]) == (0, "1/2", "0")
    check_certificate(parse_topology("complete:4"), ALLREDUCE, document["bound"]["certificate"])
    small, large = document["results"]
    assert small["ratio"] > large["ratio"] >= 1  # latencies weigh less
    on_ring = chorale(capsys, "compare", hand, "--topology", "ring:4", "--json").document
    assert on_ring["side"]["time_per_byte"] == "3/2"  # opposite ranks exchange over two links each
    assert on_ring["gap"] == "1"
    shown = chorale(capsys, "compare", hand, "--spec", "complete:4", "--sizes", "1MiB").stdout
    assert "above the bound" in shown
    assert "least by bandwidth" in shown
    refused = chorale(capsys, "compare", hand, "--spec", "complete:4", "--plot", tmp_path / "a.svg", code=2)
    assert "--plot draws the comparison of two files, but only one is given" in refused.stderr
    (tmp_path / "scan.xml").write_text(scan_program())
    (tmp_path / "scan.yaml").write_text(SCAN)
    refused = chorale(capsys, "compare", tmp_path / "scan.xml", "--spec", "complete:3", code=2)
    assert "add --collective-file FILE" in refused.stderr
