"""The commands on topologies too large for the rows of all ranks."""

from dataclasses import replace

import pytest

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.methods.forest.symmetric.symmetric_forest import symmetric_forest
from chorale.synth.schedule.codec import to_parquet
from chorale.synth.schedule.symmetric import SymmetricSchedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from chorale.tuner.files.schedule_files import load_schedule, save_schedule
from tests.command import chorale


def test_a_large_torus_is_designed_written_and_verified(capsys, tmp_path):
    output = tmp_path / "torus.parquet"
    made = ("synth", "bfb", "torus:66x66", "--collective", "allgather")
    document = chorale(capsys, *made, "--json", "-o", output).document
    schedule = document["schedule"]
    assert (schedule["form"], schedule["kind"], schedule["steps"]) == ("symmetric", "stepped", 66)
    assert schedule["transfers"] % 66**2 == 0
    assert document["cost"]["bandwidth_factor"] == "4355/4356"
    assert document["optimality"]["gap"] == "0"
    done = chorale(capsys, "verify", output, "--json")
    assert (done.code, done.document["ok"]) == (0, True)
    assert done.document["cost"]["bandwidth_factor"] == "4355/4356"
    assert "verified" in chorale(capsys, "verify", output).stdout
    assert "rank 0 replayed, symmetries checked" in chorale(capsys, *made).stdout
    refused = chorale(capsys, *made, "-o", tmp_path / "torus.json")
    assert (refused.code, "ends in .parquet" in refused.stderr) == (2, True)
    refused = chorale(capsys, "lower", output, "--target", "msccl-xml", "-o", tmp_path / "torus.xml")
    assert refused.code == 2
    assert "ranks: 4356 is above the limit 1024" in refused.stderr


@pytest.mark.parametrize(
    "schedule",
    [
        symmetric_bfb(parse_topology("ring:5"), ALLGATHER, SerialExecutor()),
        symmetric_forest(parse_topology("a100:3"), ALLGATHER, "forest", {}),
    ],
    ids=["steps", "trees"],
)
def test_a_small_one_is_written_out_to_be_lowered(capsys, tmp_path, schedule):
    save_schedule(verify(schedule), tmp_path / "small.parquet")
    arguments = ("--target", "msccl-xml", "-o", tmp_path / "small.xml", "--json")
    done = chorale(capsys, "lower", tmp_path / "small.parquet", *arguments)
    assert done.code == 0
    assert done.document["schedule"] == schedule.expand().id


def test_a_file_that_lacks_a_row_fails(capsys, tmp_path):
    """The id matches; only the replay can see that something is missing."""
    topology = parse_topology("ring:5")
    gather = symmetric_bfb(topology, ALLGATHER, SerialExecutor()).gather
    damaged = replace(gather, base=gather.base.select(slice(1, None)))
    schedule = SymmetricSchedule(topology, ALLGATHER, None, damaged, "bfb", {})
    path = tmp_path / "ring.parquet"
    path.write_bytes(to_parquet(schedule))
    done = chorale(capsys, "verify", path, "--json")
    assert done.code == 1
    assert [violation["rule"] for violation in done.document["violations"]] == ["not-delivered"]
    assert chorale(capsys, "lower", path, "--target", "msccl-xml", "-o", tmp_path / "ring.xml").code == 1


def test_a_damaged_file_is_one_line(capsys, tmp_path):
    path = tmp_path / "ring.parquet"
    path.write_bytes(b"PAR1 nothing")
    done = chorale(capsys, "verify", path)
    assert (done.code, "Parquet" in done.stderr) == (2, True)


def test_large_trees_in_symmetric_form_are_saved_and_shown(capsys, tmp_path):
    output = tmp_path / "torus.parquet"
    done = chorale(capsys, "synth", "forest", "torus:16x32", "-o", output)
    assert "trees of one block replayed, symmetries checked" in " ".join(done.stdout.split())
    assert chorale(capsys, "show", output, "--json").code == 0
    output = tmp_path / "torus.json"
    assert chorale(capsys, "synth", "forest", "torus:16x32", "--collective", "allgather", "-o", output).code == 0
    assert verify(load_schedule(output)).cost.steps == 24
