"""`chorale compare`: exact terms, times of both models, crossovers, and how it refuses."""

from fractions import Fraction

import pytest

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.collective import ALLREDUCE
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.custom_programs import SCAN, scan_program
from tests.hand_written import direct_allreduce

RATES = ("--link-gbps", 100, "--alpha-us", 1, "--hop-us", 0, "--link-latency-us", 0)


@pytest.fixture
def made(capsys, tmp_path):
    def make(method, spec="ring:8", collective="allreduce", *lowering):
        path, program = tmp_path / f"{method}.parquet", tmp_path / f"{method}.xml"
        assert chorale(capsys, "synth", method, spec, "--collective", collective, "-o", path).code == 0
        if lowering:
            assert chorale(capsys, "lower", path, "--target", *lowering, "-o", program).code == 0
        return program if lowering else path

    return make


def test_few_steps_are_overtaken_by_more_bandwidth(capsys, made):
    # recursive doubling sends everything in each of 3 steps, over up to 4 links; a ring 2 * 7 eighths in 14 steps.
    doubling, ring = made("recursive-doubling"), made("ring")
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


def test_a_program_beside_its_schedule(capsys, made):
    schedule, program = made("bfb"), made("bfb", "ring:8", "allreduce", "oneccl-xml")
    document = chorale(capsys, "compare", schedule, program, *RATES, "--sizes", "1MiB,16MiB", "--json").document
    assert document["parameters"]["model"] == "flow"
    assert [side["kind"] for side in document["sides"]] == ["stepped", "program"]
    assert document["sides"][1]["threadblocks_max"] == 4
    assert document["time_per_byte_ratio"] == "1"
    for row in document["results"]:
        assert row["time_us"][0] == pytest.approx(row["time_us"][1])
        assert row["faster"] == "equal"
    assert document["crossovers"] == []


def test_a_program_without_a_name_runs_on_the_network_of_the_schedule(capsys, made):
    program = made("bfb", "ring:8", "allreduce", "msccl-xml")
    program.write_text(program.read_text().replace("allreduce bfb ring:8", "unnamed"))
    done = chorale(capsys, "compare", made("ring"), program, "--sizes", "1MiB")
    assert done.code == 0
    assert "100 Gbit/s" in done.stderr
    assert chorale(capsys, "compare", program, program).code == 2
    assert chorale(capsys, "compare", program, program, "--spec", "ring:8", "--sizes", "1MiB").code == 0


def test_a_picture(capsys, tmp_path, made):
    assert chorale(capsys, "compare", made("ring"), made("bfb"), *RATES, "--plot", tmp_path / "a.svg").code == 0
    assert b"second: " in (tmp_path / "a.svg").read_bytes()


def test_a_plan_beside_the_program_that_it_was_made_from(capsys, tmp_path, made):
    schedule, program = made("bfb"), made("bfb", "ring:8", "allreduce", "oneccl-xml")
    plan = tmp_path / "plan.json"
    assert chorale(capsys, "lower", schedule, "--target", "mscclpp-json", "-o", plan).code == 0
    document = chorale(capsys, "compare", program, plan, *RATES, "--sizes", "1MiB,64MiB", "--json").document
    assert [side["target"] for side in document["sides"]] == ["oneccl-xml", "mscclpp-json"]
    assert document["sides"][1]["scratch_chunks_max"] > document["sides"][0]["scratch_chunks_max"]
    assert document["time_per_byte_ratio"] == "1"
    assert [row["speedup"] for row in document["results"]] == pytest.approx([1, 1])


@pytest.fixture
def hand(tmp_path):
    path = tmp_path / "hand.xml"
    path.write_text(direct_allreduce(4))
    return path


def test_a_program_is_measured_by_the_bound_of_the_fabric_that_is_given(capsys, hand):
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


def test_what_has_no_bound_is_refused(capsys, hand, tmp_path):
    refused = chorale(capsys, "compare", hand, "--spec", "complete:4", "--plot", tmp_path / "a.svg")
    assert (refused.code, "--plot draws the comparison of two files, but only one is given" in refused.stderr) == (
        2,
        True,
    )
    (tmp_path / "scan.xml").write_text(scan_program())
    (tmp_path / "scan.yaml").write_text(SCAN)
    refused = chorale(capsys, "compare", tmp_path / "scan.xml", "--spec", "complete:3")
    assert (refused.code, "add --collective-file FILE" in refused.stderr) == (2, True)
