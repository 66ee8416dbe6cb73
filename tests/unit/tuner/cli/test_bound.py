"""`chorale bound`: what it prints, and how it refuses."""

from fractions import Fraction

import pytest

from tests.command import chorale


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    done = chorale(capsys, "bound", "a100:4", "--collective", "allgather", "--json")
    assert done.code == 0
    document = done.document
    assert document["time_per_byte"] == "3/800"
    assert document["algbw"] == pytest.approx(800 / 3)
    assert document["bottleneck_cut"] == [*(f"0.{gpu}" for gpu in range(8)), "nvswitch:0"]
    assert document["k_optimal"] == document["k"] == 1
    assert document["certificate"]["kind"] == "into"
    assert document["reached_by_trees"] is True


def test_a_given_k(capsys: pytest.CaptureFixture[str]) -> None:
    document = chorale(capsys, "bound", "mi250:2", "--collective", "allgather", "--k", 2, "--json").document
    assert (document["time_per_byte"], document["k"], document["k_optimal"]) == ("3/1024", 2, 83)
    assert document["gap_to_any_k"] == "3/80"
    assert document["certificate"]["k"] == 2


@pytest.mark.parametrize(("collective", "time"), [("allreduce", "3/400"), ("reduce", "1/200"), ("alltoall", "3/100")])
def test_other_collectives(capsys: pytest.CaptureFixture[str], collective: str, time: str) -> None:
    document = chorale(capsys, "bound", "a100:4", "--collective", collective, "--json").document
    assert document["collective"] == collective
    assert document["time_per_byte"] == time
    assert document["bottleneck_cut"]
    assert document.get("gap_to_reduce_scatter_allgather") == ("0" if collective == "allreduce" else None)


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_allreduce_with_unequal_roots(capsys: pytest.CaptureFixture[str]) -> None:
    document = chorale(capsys, "bound", "mi250half:2", "--collective", "allreduce", "--json").document
    assert document["gap_to_reduce_scatter_allgather"] == "3/13"
    pairs = document["tree_pairs"]
    assert (pairs["time_per_byte"], pairs["gap"]) == ("1/128", "0")
    assert sum(map(Fraction, pairs["roots"].values())) == 1
    shown = chorale(capsys, "bound", "mi250half:2", "--collective", "allreduce").stdout
    assert "pairs of trees" in shown
