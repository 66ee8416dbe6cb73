"""Pictures of wrong programs: frames at the instructions that are named, the same bytes each time."""

from dataclasses import replace
from pathlib import Path

import pytest

from chorale.synth.programs.explanation import explanations
from chorale.synth.programs.program import Op, Program
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.registry import target_named
from chorale.tuner.plots.program_plot import plot_judged
from tests.command import chorale
from tests.unit.synth.lowering.programs import edited, instructions, lowered


def damaged(spec: str = "hypercube:2") -> Program:
    made = lowered(spec, "allreduce")
    rank, index, number, item = next(place for place in instructions(made) if place[3].op == Op.RECV_REDUCE_COPY)
    return edited(made, (rank, index, number, replace(item, op=Op.RECV)))


def drawn(made: Program, path: Path) -> str:
    violations = check_program(made)
    plot_judged(made, violations, explanations(made, violations), "a title", path)
    return path.read_text()


@pytest.mark.parametrize(
    "spec", ["hypercube:2", *(pytest.param(spec, marks=pytest.mark.slow) for spec in ("torus:4x4", "torus:8x8"))]
)
def test_the_same_program_gives_the_same_picture(tmp_path, spec):
    made = damaged(spec)
    first = drawn(made, tmp_path / "a.svg")
    assert first == drawn(made, tmp_path / "b.svg")
    assert "#dc2626" in first
    assert "#ea580c" in first


def test_a_right_program_has_no_marks(tmp_path):
    picture = drawn(lowered("hypercube:2", "allreduce"), tmp_path / "a.svg")
    assert picture.count("#dc2626") == 1  # of the legend
    assert "#2563eb" in picture


def test_the_command_draws_what_is_wrong(tmp_path, capsys):
    file, picture = tmp_path / "a.xml", tmp_path / "a.png"
    file.write_text(target_named("oneccl-xml").emit(damaged()))
    lifted = chorale(capsys, "lift", file, "--spec", "hypercube:2", "--plot", picture, "--json")
    assert lifted.code == 1
    assert lifted.document["plot"] == str(picture)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    explanation = lifted.document["explanations"][0]
    assert explanation["violation"] == 0
    assert "overwrites" in explanation["text"]
    assert all(len(position) == 3 for position in explanation["positions"])
    assert chorale(capsys, "lift", file, "--spec", "hypercube:2", "--plot", tmp_path / "a.txt").code == 2


def test_a_program_that_cannot_be_executed_is_not_drawn(tmp_path, capsys):
    file = tmp_path / "a.xml"
    file.write_text(target_named("oneccl-xml").emit(lowered("hypercube:2", "allreduce")).replace('cnt="1"', 'cnt="0"'))
    lifted = chorale(capsys, "lift", file, "--spec", "hypercube:2", "--plot", tmp_path / "a.png")
    assert lifted.code == 2
    assert "can be executed" in lifted.stderr
