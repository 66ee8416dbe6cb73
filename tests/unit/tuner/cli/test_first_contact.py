"""What people try first: common spellings, arguments left out, rates in other units, output into a pipe."""

import warnings
from pathlib import Path

import pytest

from chorale.tuner.cli.main import COMMANDS, TASKS
from tests.command import chorale


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COLUMNS", raising=False)
    return tmp_path


def test_names_rates_and_sizes_in_common_spellings(capsys):
    synth = ("synth", "DBT", "hypercube:3", "--collective", "All-Reduce", "-o", "a.json", "--json")
    made = chorale(capsys, *synth).document
    assert (made["method"], made["collective"]) == ("double-binary-tree", "allreduce")
    bound = chorale(capsys, "bound", "ring:4", "--collective", "reduce_scatter", "--json")
    assert bound.document["collective"] == "reduce_scatter"
    lowered = chorale(capsys, "lower", "a.json", "--target", "MSCCL", "-o", "a.xml", "--json")
    assert lowered.document["target"] == "msccl-xml"
    done = chorale(capsys, "run", "a.json", "--runner", "Simulator", "--link-mbps", "100", "--json")
    assert [row["size_bytes"] for row in done.document["results"]] == [2**16, 2**20]
    assert done.document["runner"] == "simulated"
    arguments = ("simulate", "ring", "ring:4", "--sizes", "1MB,1M,1MiB", "--link-gbps", "1")
    done = chorale(capsys, *arguments, "--json")
    assert [row["size_bytes"] for row in done.document["results"]] == [10**6, 2**20]
    assert "1MB is 1000000 bytes; 1MiB would be 1048576" in " ".join(done.stderr.split())
    assert chorale(capsys, *arguments, "--json", "--quiet").stderr == ""
    done = chorale(capsys, "find")
    assert (done.code, done.stderr.count("\n")) == (2, 1)
    assert "`chorale find` needs --nodes (number of nodes" in done.stderr
    assert " and --degree (number of links out of, and into, every node); see `chorale find --help`" in done.stderr
    done = chorale(capsys, "best", "--collective", "all-reduce")
    assert "needs --topology (network, such as hypercube:3) and --size (buffer size" in done.stderr
    done = chorale(capsys, "simulate")
    assert "needs FILE|METHOD" in done.stderr
    assert "(schedule file, or a method); see `chorale simulate --help`" in done.stderr
    done = chorale(capsys, "lower", "--nothing")  # an unknown option comes before what is missing
    assert (done.code, "No such option: --nothing" in done.stderr) == (2, True)


RESULTS = [
    ("topology", "list"),
    ("topology", "show", "a100:2"),
    ("synth", "a100:2"),
    ("bound", "mi250half:2", "--collective", "allreduce"),
    ("simulate", "bfb", "torus:4x4", "--sizes", "1K:1G:x4", "--link-gbps", "1"),
    ("verify", "made.parquet"),
    ("show", "made.parquet"),
    ("compare", "made.parquet", "made.xml", "--sizes", "1M"),
    ("lift", "made.xml", "--spec", "torus:4x4"),
    ("alltoall", "ring:5"),
    ("find", "-n", "8", "-d", "2"),
    ("experiment", "list"),
    ("doctor",),
    ("fabric", "status"),
]


@pytest.fixture
def made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chorale(capsys, "synth", "bfb", "torus:4x4", "--collective", "allgather", "-o", "made.parquet")
    chorale(capsys, "lower", "made.parquet", "-o", "made.xml")


def test_results_go_to_stdout_and_fit_80_columns(made, capsys):
    for arguments in RESULTS:
        done = chorale(capsys, *arguments, "--quiet")
        assert (done.code, done.stderr) == (0, ""), arguments
        assert done.stdout
        for line in done.stdout.splitlines():
            assert len(line) <= 80 or len(line.split()) <= 2, line  # a path may be longer, but whole


def test_reading_commands_make_no_data_folder(folder, capsys):
    for arguments in (
        ("synth", "ring:4"),
        ("token", "list"),
        ("fabric", "status"),
        ("campaign", "check", "nothing"),
        ("best", "--topology", "ring:4", "--size", "1M"),
        ("run", "absent.parquet"),
        ("tune", "--schema"),
    ):
        chorale(capsys, *arguments)
        assert not (folder / "data").exists(), arguments


def test_results_are_told_in_words_and_units_that_people_know(capsys):
    fabric = chorale(capsys, "synth", "a100:2", "--collective", "allgather", "--quiet").stdout
    assert "2.88 ps/byte (3/1040 per GB/s)" in fabric
    assert "346.7 GB/s (1040/3)" in fabric
    torus = chorale(capsys, "synth", "torus:4x4", "--collective", "allgather", "--quiet").stdout
    assert "0.94 × size / node bandwidth (15/16)" in torus
    assert "4.27 × link rate (64/15)" in torus
    shown = " ".join(chorale(capsys, "bound", "a100:4").stdout.replace("│", " ").split())
    assert "allreduce of 1GiB takes at least 8.05 ms: the links between 8 ranks and the other 24 limit it" in shown
    shown = chorale(capsys, "failures", "torus:2x2", "--executor", "serial").stdout
    assert "allreduce by forest on torus:2x2" in shown
    assert "8 single failures, none without a plan" in shown
    assert "link=0-1 +1" in shown  # no known symmetry swaps the dimensions
    assert sorted(name for names in TASKS.values() for name in names) == sorted(COMMANDS)
    text = chorale(capsys, "--help").stdout
    assert [text.index(f"{task}:") for task in TASKS] == sorted(text.index(f"{task}:") for task in TASKS)
    assert "spanning trees that reach the optimum" in chorale(capsys, "synth", "--help").stdout


@pytest.mark.usefixtures("made")
def test_what_is_known_of_a_program_is_told_in_words(capsys):
    for command in (("lower", "made.parquet", "-o", "again.xml"), ("lift", "made.xml"), ("verify", "made.xml")):
        said = " ".join(chorale(capsys, *command, "--quiet").stdout.split())
        assert "sums: " not in said  # an allgather adds nothing
    said = " ".join(chorale(capsys, "show", "made.xml", "--quiet").stdout.replace("│", " ").split())
    assert "buffer size 16MiB" in said
    assert "predicted time 31" in said
    chorale(capsys, "synth", "bfb", "ring:4", "--collective", "allreduce", "-o", "sum.parquet")
    lowered = chorale(capsys, "lower", "sum.parquet", "-o", "sum.xml", "--quiet").stdout
    said = " ".join(lowered.replace("│", " ").split())
    assert "sums: same bits in every run yes" in said
    assert "thread blocks, most" in said
    assert "made.xml on torus:4x4: right" in chorale(capsys, "lift", "made.xml").stdout
    Path("other.xml").write_text(Path("made.xml").read_text().replace("torus:4x4", "nothing"))
    done = chorale(capsys, "lift", "other.xml")
    assert (done.code, "all pairs of ranks" in done.stdout) == (0, True)  # judged alone


def test_a_warning_of_python_is_one_notice(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # and back after this test
    for flags, said in (((), "warning: kernels are old\n"), (("--quiet",), "")):
        chorale(capsys, "token", "list", *flags)
        warnings.showwarning("kernels are old", RuntimeWarning, "synth/kernels/library.py", 1)
        assert capsys.readouterr().err == said


def test_a_command_says_what_may_come_next(capsys):
    for command, next_step in {
        "bound ring:4": "chorale synth ring:4 --collective allreduce -o schedule.parquet",
        "synth ring:4": "chorale synth bfb ring:4 --collective allreduce -o schedule.parquet",
        "failures ring:4": "chorale table write --topology 'without(ring:4;node=0)' -o job.table",
        "topology show ring:4": "chorale bound ring:4",
    }.items():
        assert chorale(capsys, *command.split()).stderr.splitlines()[-1] == f"next: {next_step}"
        assert chorale(capsys, *command.split(), "--quiet").stderr == ""
