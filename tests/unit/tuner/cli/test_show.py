"""`chorale show`: what it says and draws of schedules and programs, and how it refuses."""

from fractions import Fraction

import pytest

from tests.command import chorale


@pytest.fixture
def files(capsys, tmp_path):
    """Make a schedule of `method` on `spec` and its program; return both paths."""

    def make(method="bfb", spec="hypercube:3", collective="allreduce", target="msccl-xml", *options):
        schedule, program = tmp_path / "schedule.parquet", tmp_path / "program.xml"
        assert chorale(capsys, "synth", method, spec, "--collective", collective, "-o", schedule).code == 0
        assert chorale(capsys, "lower", schedule, "--target", target, *options, "-o", program).code == 0
        return schedule, program

    return make


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


def test_a_program_needs_no_spec_if_it_names_its_network(capsys, files):
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


def test_rates_and_the_buffer_are_options(capsys, files):
    _, program = files("bfb", "hypercube:3", "allgather", "oneccl-xml")
    arguments = ("show", program, "--spec", "hypercube:3", "--json", "--link-gbps", 10)
    plain = chorale(capsys, *arguments)
    assert "taken to have" not in plain.stderr
    assert plain.document["parameters"]["buffer_bytes"] is None
    cut = chorale(capsys, *arguments, "--buffer", "64KiB").document
    assert cut["parameters"]["buffer_bytes"] == 2**16
    assert cut["messages"] > plain.document["messages"]
    slow = chorale(capsys, *arguments, "--alpha-us", 1000).document
    assert slow["time_us"] > plain.document["time_us"] + 2000


def test_pictures_repeat(capsys, tmp_path, files):
    words = (b"data of rank 0", b"all links equally loaded"), (b"rank 3", b"part of the time in use")
    for path, said in zip(files("forest", "ring:4", "allreduce", "oneccl-xml"), words, strict=True):
        for name in ("one", "two"):
            assert chorale(capsys, "show", path, "--plot", tmp_path / f"{name}.svg", "--quiet").code == 0
        drawn = (tmp_path / "one.svg").read_bytes()
        assert drawn == (tmp_path / "two.svg").read_bytes()
        assert all(word in drawn for word in said)


def test_many_sending_blocks_become_rows(capsys, tmp_path, files):
    _, program = files("bfb", "complete:14", "allgather", "oneccl-xml")
    plot = tmp_path / "rows.svg"
    assert chorale(capsys, "show", program, "--plot", plot).code == 0
    assert b"part of a rank" in plot.read_bytes()
    schedule, _ = files("ring", "ring:5")
    assert chorale(capsys, "show", schedule, "--plot", plot).code == 0
    words = (b"share of each step", b"all links equally loaded", b"sums for rank 0, by step")
    assert all(word in plot.read_bytes() for word in words)


def test_a_wrong_program_is_not_shown(capsys, files):
    _, program = files()
    program.write_text(program.read_text().replace('type="rrc"', 'type="r"', 1))
    done = chorale(capsys, "show", program)
    assert done.code == 1
    assert "chorale lift" in done.stderr


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
