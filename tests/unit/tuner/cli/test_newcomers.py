"""What stops newcomers: words in the wrong place, several faults at once, and what to type next."""

from pathlib import Path

import pytest

from chorale.tuner.cli.commands import COMMANDS, TASKS
from tests.command import chorale

WORDS = [
    ("topology show product:3x8", "product is a function: write product("),
    ("topology show 'torus(4x4)'", "write family:arguments"),
    ("bound line:3", "line is a function: write line("),
    ("bound dump.xml", "write file:dump.xml"),
    ("bound made.parquet", "made.parquet is a schedule"),
    ("bound forest", "forest is a method: a topology is wanted"),
    ("bound torus:4x4 allreduce", "allreduce is a collective: write --collective allreduce"),
    ("bound torus:4x4 --k 2", "add --collective allgather"),
    ("synth torus:4x4 allreduce", "write `chorale synth torus:4x4 --collective allreduce`"),
    ("synth all-reduce torus:4x4", "all-reduce is a collective: write --collective"),
    ("synth fastest torus:4x4", "did you mean 'auto'?"),
    ("synth local torus:4x4", "local is a runner, for `chorale run --runner local`"),
    ("verify torus:4x4", "torus:4x4 is a topology: `chorale synth torus:4x4 -o schedule.parquet`"),
    ("lower forest -o made.xml", "`chorale synth forest SPEC -o schedule.parquet`"),
    ("run hypercube:3", "hypercube:3 is a topology: `chorale synth"),
    ("training gpt2-small h100:2", "write forest@h100:2"),
    ("synth bfb a100:2", "use the method forest, or auto"),
    (
        "tune campaign.yaml",
        "campaign key `sizes` is a list; got '64K'; write [64K]; also campaign key `search.methods`",
    ),
]


@pytest.mark.parametrize(("command", "fix"), WORDS, ids=[command for command, _ in WORDS])
def test_a_word_in_the_wrong_place_is_explained(
    command: str, fix: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    campaign = "{name: a, topology: 'torus:2x2', collective: allreduce, sizes: 64K, search: {methods: bfb}}"
    Path("campaign.yaml").write_text(campaign)
    done = chorale(capsys, *(word.strip("'") for word in command.split()))
    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert fix in done.stderr


def test_the_help_groups_commands_by_task_and_explains_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(name for names in TASKS.values() for name in names) == sorted(COMMANDS)
    text = chorale(capsys, "--help").stdout
    assert [text.index(f"{task}:") for task in TASKS] == sorted(text.index(f"{task}:") for task in TASKS)
    assert "down trees that reach the optimum" in chorale(capsys, "synth", "--help").stdout


@pytest.mark.parametrize(
    ("command", "next_step"),
    [
        ("bound ring:4", "chorale synth ring:4 --collective allreduce -o schedule.parquet"),
        ("synth ring:4", "chorale synth bfb ring:4 --collective allreduce -o schedule.parquet"),
        ("failures ring:4", "chorale table write --topology 'without(ring:4;node=0)' -o job.table"),
        ("topology show ring:4", "chorale bound ring:4"),
    ],
)
def test_a_command_says_what_may_come_next(
    command: str, next_step: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    done = chorale(capsys, *command.split())
    assert done.stderr.splitlines()[-1] == f"next: {next_step}"
    assert chorale(capsys, *command.split(), "--quiet").stderr == ""


def test_failures_say_whose_and_group_what_is_alike(capsys: pytest.CaptureFixture[str]) -> None:
    shown = chorale(capsys, "failures", "torus:2x2", "--executor", "serial").stdout
    assert "allreduce by forest on torus:2x2" in shown
    assert "8 single failures, none without a plan" in shown
    assert "link=0-1 +1" in shown  # no known symmetry swaps the dimensions


def test_a_bound_is_told_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(chorale(capsys, "bound", "a100:4").stdout.replace("│", " ").split())
    assert "allreduce of 1GiB takes at least 8.05 ms: the links between 8 ranks and the other 24 limit it" in shown


def test_a_table_for_the_tuner_of_nccl_is_marked_as_predicted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "nccl.csv"
    done = chorale(capsys, "bound", "h100:1", "--nccl-tuner-csv", file)
    assert "predicted by the published model of the library and not measured" in done.stdout
    assert file.read_text().startswith("# predicted for h100:1")
