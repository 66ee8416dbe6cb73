"""`chorale bound`: what it prints, how it refuses, and bounds of switches that act beside those of ranks alone."""

import json
from fractions import Fraction

import pytest

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.collective import ALLREDUCE
from chorale.synth.verify.verify import verify
from chorale.tuner.files.schedule_files import load_schedule, load_topology
from chorale.tuner.reports.job_tables import schedule_certificate
from tests.command import chorale
from tests.links import topology_document


def test_json(capsys):
    document = chorale(capsys, "bound", "a100:4", "--collective", "allgather", "--json", code=0).document
    assert document["time_per_byte"] == "3/800"
    assert document["algbw"] == pytest.approx(800 / 3)
    assert document["bottleneck_cut"] == [*(f"0.{gpu}" for gpu in range(8)), "nvswitch:0"]
    assert document["k_optimal"] == document["k"] == 1
    assert document["certificate"]["kind"] == "into"
    assert document["reached_by_trees"] is True
    document = chorale(capsys, "bound", "mi250:2", "--collective", "allgather", "--k", 2, "--json").document
    assert (document["time_per_byte"], document["k"], document["k_optimal"]) == ("3/1024", 2, 83)
    assert document["gap_to_any_k"] == "3/80"
    assert document["certificate"]["k"] == 2


def test_other_collectives(capsys):
    for collective, time in {"allreduce": "3/400", "reduce": "1/200", "alltoall": "3/100"}.items():
        document = chorale(capsys, "bound", "a100:4", "--collective", collective, "--json").document
        assert (document["collective"], document["time_per_byte"]) == (collective, time)
        assert document["bottleneck_cut"]
        gap = document.get("gap_to_reduce_scatter_allgather")
        assert gap == ("0" if collective == "allreduce" else None)


def test_for_people(capsys):
    done = chorale(capsys, "bound", "a100:4", "--collective", "allgather", "--quiet")
    assert (done.code, done.stderr) == (0, "")
    assert "8 ranks and 1 switch inside" in done.stdout
    assert "0.75 × size (3/4) must get in, over 200 GB/s" in done.stdout
    given = chorale(capsys, "bound", "mi250:2", "--collective", "allgather", "--k", "2").stdout
    given = " ".join(given.replace("│", " ").split())
    assert "60 trees must get in" in given
    assert "with k = 83; the given k takes 3.75% longer" in given
    assert "4 groups of ranks must have received 6 × size" in chorale(
        capsys, "bound", "a100:4", "--collective", "allreduce"
    ).stdout.replace("\n", " ")
    document = chorale(capsys, "bound", "mi250half:2", "--collective", "allreduce", "--json").document
    assert document["gap_to_reduce_scatter_allgather"] == "3/13"
    pairs = document["tree_pairs"]
    assert (pairs["time_per_byte"], pairs["gap"]) == ("1/128", "0")
    assert sum(map(Fraction, pairs["roots"].values())) == 1
    shown = chorale(capsys, "bound", "mi250half:2", "--collective", "allreduce").stdout
    assert "pairs of trees" in shown


NO_GAIN = "able(switch:4,450;multicast=no)"  # of one ability there is no use, so that ranks alone win

ONE_WAY = [
    *(("1", "0", 1), ("2", "0", 6), ("3", "0", 3), ("0", "1", 1), ("3", "1", 6), ("s", "1", 4)),
    *(("0", "2", 3), ("3", "2", 3), ("0", "3", 3), ("1", "3", 6), ("2", "3", 3), ("1", "s", 4)),
]
"""Groups with the switch prove 23/4 here, and what is tried for ranks by themselves 35/6."""


def test_synth_reports_the_bound_with_switches_beside_that_of_ranks_alone(capsys):
    document = chorale(capsys, "synth", NO_GAIN, "--collective", "allreduce", "--in-network", "--json").document
    assert document["schedule"]["in_network"] is False
    optimality, bound = document["optimality"], document["in_network"]
    assert optimality["certificate"]["in_network"] is True
    assert optimality["lower_bound"] == bound["time_per_byte"]
    assert optimality["certificate"] == bound["certificate"]
    assert document["ranks_alone"]["time_per_byte"] == "1/300"
    assert "ranks alone" in chorale(capsys, "synth", NO_GAIN, "--collective", "allreduce", "--in-network").stdout
    command = ("synth", "h100:1", "--collective", "allreduce", "--json")
    with_switches, alone = (chorale(capsys, *command, *more).document for more in (("--in-network",), ()))
    for document in (with_switches, alone):
        assert document["in_network"]["time_per_byte"] == "1/450"
        assert document["ranks_alone"]["time_per_byte"] == "7/1800"
    assert with_switches["optimality"]["lower_bound"] == "1/450"
    assert alone["optimality"]["lower_bound"] == "7/1800"
    nothing_acts = chorale(capsys, "synth", "ring:4", "--json").document
    assert (nothing_acts["in_network"], nothing_acts["ranks_alone"]) == (None, None)


def test_no_bound_on_ranks_alone_is_weaker_than_that_with_switches(capsys, tmp_path):
    """Whatever limits schedules in which switches act limits those of ranks alone."""
    switch, path = {"multicast": True, "reduce": True, "reduce_bandwidth": "1/2"}, tmp_path / "one_way.json"
    path.write_text(json.dumps(topology_document("0123", ONE_WAY, {"s": switch}, both_ways=False)))
    document = chorale(capsys, "bound", f"file:{path}", "--collective", "allreduce", "--json").document
    assert Fraction(document["time_per_byte"]) == Fraction(document["in_network"]["time_per_byte"]) == Fraction(4, 23)
    topology = load_topology(f"file:{path}")
    assert check_certificate(topology, ALLREDUCE, document["certificate"]) == Fraction(4, 23)
    alone = chorale(capsys, "synth", f"file:{path}", "--collective", "allreduce", "--json").document
    assert alone["ranks_alone"]["time_per_byte"] == "4/23"
    assert Fraction(alone["optimality"]["lower_bound"]) == Fraction(4, 23)


def test_a_schedule_of_switches_is_compared_with_their_bound_and_refused_by_tables_of_jobs(capsys, tmp_path):
    file = tmp_path / "box.parquet"
    chorale(capsys, "synth", "h100:1", "--collective", "allreduce", "--in-network", "-o", file)
    document = chorale(capsys, "compare", file, "--sizes", "1GiB", "--json").document
    assert (document["bound"]["kind"], document["gap"]) == ("in_network", "0")
    assert document["results"][0]["ratio"] >= 1
    certificate = schedule_certificate(verify(load_schedule(str(file))))
    assert (certificate["lower_bound"], certificate["gap"]) == ("1/450", "0")
    schedule, program = tmp_path / "star.parquet", tmp_path / "star.xml"
    chorale(capsys, "synth", "able(switch:4,1)", "--collective", "allreduce", "--in-network", "-o", schedule)
    chorale(capsys, "lower", schedule, "--target", "oneccl-xml", "-o", program)
    done = chorale(capsys, "table", "write", program, "--sizes", "4KiB:1MiB", "-o", tmp_path / "star.table", code=2)
    assert "the program needs switches that add, which jobs lack" in done.stderr
