"""`chorale compare` with one file: how far it is from the certified bound of a fabric."""

import pytest

from chorale.synth.bounds.certificate import check_certificate
from chorale.synth.collective import ALLREDUCE
from chorale.synth.topology.spec import parse_topology
from tests.command import chorale
from tests.custom_programs import SCAN, scan_program
from tests.hand_written import direct_allreduce


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


def test_a_single_file_is_shown_as_tables(capsys, hand):
    done = chorale(capsys, "compare", hand, "--spec", "complete:4", "--sizes", "1MiB")
    assert done.code == 0
    assert "above the bound" in done.stdout + done.stderr  # wherever the terminal is
    assert "least by bandwidth" in done.stdout + done.stderr  # wherever the terminal is


def test_what_has_no_bound_is_refused(capsys, hand, tmp_path):
    refused = chorale(capsys, "compare", hand, "--spec", "complete:4", "--plot", tmp_path / "a.svg")
    assert (refused.code, "--plot draws two files" in refused.stderr) == (2, True)
    (tmp_path / "scan.xml").write_text(scan_program())
    (tmp_path / "scan.yaml").write_text(SCAN)
    refused = chorale(capsys, "compare", tmp_path / "scan.xml", "--spec", "complete:3")
    assert (refused.code, "add --collective-file FILE" in refused.stderr) == (2, True)
