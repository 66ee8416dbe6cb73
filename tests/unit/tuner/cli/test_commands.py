"""The command line itself: its list, help, completions, extras, progress and signals."""

import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import packages_distributions
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

import chorale as ch
from chorale.synth.lazy_modules import EXTRAS, missing_extra
from chorale.tuner.cli import fabric, options
from chorale.tuner.cli.main import COMMANDS, command_line, load_command, main
from chorale.tuner.cli.process import STOP_SIGNALS, stop_before_the_job_ends, stopping_in_order
from chorale.tuner.launch.plan import budget_within
from chorale.tuner.reports.tables import WordConsole
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.waiting import until

ROOT = Path(__file__).parents[4]
HEAVY = {"numpy", "scipy", "networkx", "ray", "mlflow", "optuna", "matplotlib", "pyarrow", "pydantic", "rich"}


def started(folder: Path, code: str, *lines: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "CHORALE_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *lines]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


EACH = """
import sys
from chorale.tuner.cli.main import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit as end:
        print(f"{line}: exit {end.code or 0}", file=sys.stderr)
    else:
        print(f"{line}: exit 0", file=sys.stderr)
"""


def test_no_command_is_imported_for_the_list(tmp_path):
    done = started(tmp_path, f"{EACH}\nprint('imported', *sys.modules, file=sys.stderr)", "--version", "--help", "-h")
    modules = set(done.stderr.splitlines()[-1].split())
    assert "imported" in modules
    assert not modules & HEAVY
    assert not modules & {f"chorale.tuner.cli.{module}" for module, _ in COMMANDS.values()}


OPTIONAL = sorted({module.partition(".")[0] for modules in EXTRAS.values() for module in modules})
WITHOUT_EXTRAS = f"""
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nowhere())
"""
CORE = """\
synth bfb torus:3x3 --collective allreduce -o made.parquet
synth forest a100:2 --json
--quiet synth ring genkautz:2,9
bound torus:3x3
alltoall genkautz:2,9
topology show torus:3x3
verify made.parquet
lower made.parquet --target msccl-xml -o made.xml
lift made.xml --spec torus:3x3
simulate made.parquet --sizes 1MiB --link-gbps 1
run made.parquet --runner simulated --sizes 1MiB --link-mbps 100
find --nodes 12 --degree 3
export made.parquet -o job
"""


def test_the_core_designs_verifies_lowers_simulates_runs_and_describes_every_command(tmp_path):
    lines = [*CORE.splitlines(), *(f"{name} --help" for name in COMMANDS if name not in ("serve", "token"))]
    done = started(tmp_path, WITHOUT_EXTRAS + EACH, *lines)
    assert [line for line in lines if f"{line}: exit 0" not in done.stderr.splitlines()] == [], done.stderr


NEED_AN_EXTRA = {
    f"tune {ROOT / 'examples' / 'quickstart.yaml'}": "tune",
    "ui": "tune",
    "best --topology torus:4x4 --collective allreduce --size 1MiB": "tune",
    "serve": "serve",
    "token list": "serve",
    "topology show torus:3x3 --plot made.png": "plot",
}


def test_what_needs_an_extra_says_which(tmp_path):
    done = started(tmp_path, WITHOUT_EXTRAS + EACH, *NEED_AN_EXTRA)
    said = done.stderr.splitlines()
    for line, extra in NEED_AN_EXTRA.items():
        assert said[said.index(f"{line}: exit 3") - 1].endswith(f"run: pip install 'chorale-collectives[{extra}]'")
    code = """
import chorale as ch
made = ch.synthesize("ring:4", "allgather", method="bfb")
print(ch.run(made, "64KiB", "simulated", link_mbps=100).runner)
ch.tune
"""
    done = started(tmp_path, WITHOUT_EXTRAS + code)
    assert done.stdout.startswith("simulated"), done.stderr
    assert "Unavailable: this needs the extra 'tune'" in done.stderr


def test_every_command_is_listed_and_finds_its_help(capsys):
    text = " ".join(chorale(capsys, "--help").stdout.split())
    for name, (_, summary) in COMMANDS.items():
        assert f"{name} {summary}" in text
        command = load_command(name)
        assert (command.name, " ".join((command.help or "").split("\n\n")[0].split())) == (name, summary)
    assert list(command_line().commands) == list(COMMANDS)
    assert chorale(capsys, "synth", "ring", "ring:4", "--help").stdout.startswith("Usage: chorale synth [OPTIONS]")
    assert chorale(capsys, "topology", "nonsense", "--help").code == 2
    assert "Did you mean 'topology'" in " ".join(chorale(capsys, "topolgy", code=2).stderr.split())


@pytest.fixture
def complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Return a function from a line, whose last word is completed, to what a shell gets."""

    def completed(line: str, shell: str = "bash") -> list[str]:
        words = re.findall(r"'[^']*'|\S+", line)
        monkeypatch.setenv("_CHORALE_COMPLETE", f"complete_{shell}")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) if line.endswith(" ") else len(words) - 1))
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out.split()

    return completed


def test_words_and_campaigns_of_the_data_folder_are_completed(complete, tmp_path, monkeypatch):
    for line, words in {
        "chorale l": ["lower", "lift"],
        "chorale bound a100:2 --coll": ["--collective"],
        "chorale topology s": ["show"],
        "chorale synth torus:4x4 --collective all": ["allgather", "allreduce", "alltoall"],
        "chorale --quiet synth hamil": ["hamiltonian-ring"],
        "chorale synth bfb hyperc": ["hypercube:3"],
        "chorale synth hyperc": ["hypercube:3"],
        "chorale run a.parquet --runner one": ["oneccl"],
        "chorale lower a.parquet --target=oneccl": ["oneccl-xml"],
        "chorale lower a.parquet --target oneccl-xml --inp": ["--inplace"],
        "chorale run 'a b.parquet' --repeats 3 --dty": ["--dtype"],
        "chorale verify ": [],
    }.items():
        assert set(complete(line)) == set(words), line
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))
    assert complete("chorale campaign check ") == []
    assert not list(tmp_path.iterdir())
    for name in ("quickstart", "quick", "other"):
        (tmp_path / "campaigns" / name).mkdir(parents=True)
    assert complete("chorale campaign check q") == ["quick", "quickstart"]
    assert complete("chorale tune --follow o") == ["other"]
    assert "token" in " ".join(complete("chorale tok", "zsh"))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    shown = StringIO()
    monkeypatch.setattr(options, "people", WordConsole(file=shown, force_terminal=True, width=80))
    return shown


def test_the_stage_that_has_begun_is_shown_where_there_is_a_terminal(terminal, capsys, monkeypatch):
    with options.stage_display("oneccl-xml, 8 ranks") as observe:
        for stage in ("lowering", "check"):
            with observe(stage):
                until(lambda stage=stage: f"oneccl-xml, 8 ranks: {stage}" in terminal.getvalue(), 10)
    monkeypatch.undo()
    with options.stage_display("oneccl-xml, 8 ranks") as observe, observe("lowering"):
        pass
    assert capsys.readouterr() == ("", "")


def test_other_missing_modules_are_no_extras():
    extras = {"ray": "tune", "mlflow.tracking": "tune", "limits.storage": "serve"}
    for name, extra in extras.items():
        missing = missing_extra(ModuleNotFoundError("no", name=name))
        assert missing.way_out == f"run: pip install 'chorale-collectives[{extra}]'"
    assert missing_extra(ModuleNotFoundError("no", name="psycopg")) is None
    with pytest.raises(AttributeError):
        ch.nothing  # noqa: B018


def test_the_extras_of_the_project_bring_these_modules():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {_name(requirement) for requirement in project["dependencies"]}
    distributions = packages_distributions()
    for extra, modules in EXTRAS.items():
        brought = {_name(requirement) for requirement in project["optional-dependencies"][extra]}
        for module in modules:
            names = {name.lower().replace("_", "-") for name in distributions[module.partition(".")[0]]}
            assert not names & core
            assert names & brought or module in {"starlette", "uvicorn"}, module  # of FastAPI


def _name(requirement: str) -> str:
    matched = re.match(r"[A-Za-z0-9_-]+", requirement)
    assert matched
    return matched[0].lower()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_stops_once_and_cleaning_up_is_not_interrupted(number):
    before, cleaned = signal.getsignal(number), []

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            time.sleep(5)
        finally:
            os.kill(os.getpid(), number)
            time.sleep(0.05)
            cleaned.append(True)

    with pytest.raises(KeyboardInterrupt), stopping_in_order():
        work()
    assert cleaned
    assert signal.getsignal(number) == before


def test_signals_that_come_together_stop_once_and_print_nothing(monkeypatch):
    said = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            for number in STOP_SIGNALS:
                os.kill(os.getpid(), number)  # another thread may take it, so that the interrupt comes here
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), stopping_in_order():
        work()
    assert said == []


def test_a_command_stops_before_its_job_ends(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert stop_before_the_job_ends() is None
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho 0:31\n")
    squeue.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CHORALE_STOP_S", "30")
    with stopping_in_order():
        assert stop_before_the_job_ends() == 1.0
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    squeue.write_text("#!/bin/sh\necho UNLIMITED\n")
    assert stop_before_the_job_ends() is None


def test_budgets_end_within_the_job():
    campaign = small_campaign(budget={"trials": 5, "minutes": 100})
    alone = budget_within(campaign, 3600, goes_on=False)
    assert alone.budget.minutes is not None
    assert alone.final.minutes is not None
    assert alone.budget.minutes + alone.final.minutes < 60
    requeued = budget_within(campaign, 3600, goes_on=True)
    assert (requeued.budget.minutes, requeued.final.minutes) == (100, alone.final.minutes)
    assert budget_within(small_campaign(budget={"minutes": 1}), 3600, goes_on=False).budget.minutes == 1


def test_down_without_a_name_says_that_it_removed_all_fabrics(capsys, monkeypatch):
    taken = list[str]()
    monkeypatch.setattr(fabric, "fabrics", lambda: [SimpleNamespace(name=each) for each in ("default", "torus")])
    monkeypatch.setattr(fabric, "take_down", lambda each: taken.append(each.name))
    for name, gone, text in (
        ([], ["default", "torus"], "down: default, torus (all of this user's; `chorale fabric down default` removes"),
        (["torus"], ["torus"], "down: torus"),
        (["absent"], [], "no fabric absent is up, only default, torus"),
    ):
        taken.clear()
        assert text in chorale(capsys, "fabric", "down", *name).stdout.replace("\n", " ")
        assert taken == gone
