"""`chorale compare`: exact terms, times of both models, crossovers, and how it refuses."""

from fractions import Fraction

import pytest

from tests.command import chorale

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


def test_pictures_repeat(capsys, tmp_path, made):
    drawn = []
    files = made("ring"), made("bfb")
    for name in ("one.svg", "two.svg"):
        assert chorale(capsys, "compare", *files, *RATES, "--plot", tmp_path / name, "--quiet").code == 0
        drawn.append((tmp_path / name).read_bytes())
    assert drawn[0] == drawn[1]
    assert b"second: " in drawn[0]


def test_bad_input_is_one_line_and_exit_2(capsys, tmp_path, made):
    ring = made("ring")
    cases = [
        ((ring, made("bfb", "ring:6")), "for one network"),
        ((ring, made("biring", "ring:8", "allgather")), "for one collective"),
        ((ring, ring, "--model", "packet"), "unknown model 'packet'; choose from step, flow"),
        ((ring, ring, "--plot", "x.gif"), ".png, .svg or .pdf"),
        ((ring, ring, "--sizes", "none"), "a size must be"),
        ((ring, tmp_path / "absent.xml"), "must be readable"),
    ]
    for arguments, message in cases:
        done = chorale(capsys, "compare", *arguments, "--quiet")
        assert (done.code, len(done.stderr.strip().splitlines())) == (2, 1)
        assert message in done.stderr


def test_a_plan_beside_the_program_that_it_was_made_from(capsys, tmp_path, made):
    schedule, program = made("bfb"), made("bfb", "ring:8", "allreduce", "oneccl-xml")
    plan = tmp_path / "plan.json"
    assert chorale(capsys, "lower", schedule, "--target", "mscclpp-json", "-o", plan).code == 0
    document = chorale(capsys, "compare", program, plan, *RATES, "--sizes", "1MiB,64MiB", "--json").document
    assert [side["target"] for side in document["sides"]] == ["oneccl-xml", "mscclpp-json"]
    assert document["sides"][1]["scratch_chunks_max"] > document["sides"][0]["scratch_chunks_max"]
    assert document["time_per_byte_ratio"] == "1"
    assert [row["speedup"] for row in document["results"]] == pytest.approx([1, 1])
