"""Secrets planted in every input are in no output, log, file, database or process list; a data folder is private."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput, Unavailable
from chorale.synth.redaction import redacted, split_credentials
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.campaign_file import campaign_of, parse_campaign
from chorale.tuner.config.values import REVEALED, with_password
from chorale.tuner.files.home import Home
from chorale.tuner.search.search import open_storage
from chorale.tuner.trials.journal import Launch, launch_codec
from tests.security.conftest import OtherUser

pytestmark = pytest.mark.timeout(600)  # commands that start Ray, on machines that are busy

REPOSITORY = Path(__file__).parents[2]
NOWHERE = "127.0.0.1:9"
CANARY = "canary7f3a"
CAMPAIGN = """
name: canaries
topology: hypercube:2
collective: allreduce
sizes: [64KiB]
runner: {kind: simulated}
search: {methods: [ring, bfb]}
budget: {trials: 2}
"""


@dataclass
class Traces:
    """What commands left behind: their outputs, and the last arguments of every process that was seen."""

    home: Path
    temporary: Path = Path("/tmp")
    outputs: list[str] = field(default_factory=list)
    arguments: dict[int, bytes] = field(default_factory=dict)

    def run(self, *words: str, code: int, **variables: str) -> str:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "MLFLOW_"))}
        environment |= {"CHORALE_HOME": str(self.home), "PYTHONPATH": str(REPOSITORY), **variables}
        command = [sys.executable, "-m", "chorale", *words]
        ended = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(ended,))
        watcher.start()
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, umask=0o022, cwd=self.home.parent
            )
        finally:
            ended.set()
            watcher.join()
        self.outputs += [done.stdout, done.stderr]
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(0.1):
            for folder in Path("/proc").iterdir():
                with suppress(OSError):
                    if folder.name.isdigit() and (words := (folder / "cmdline").read_bytes()):
                        self.arguments[int(folder.name)] = words


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """Return what is left of commands that were given secrets in a file, in options and in the environment."""
    folder = tmp_path_factory.mktemp("canaries")
    campaign = folder / "campaign.yaml"
    campaign.write_text(CAMPAIGN + f"storage: sqlite:///{folder}/optuna.db?timeout=30&password={CANARY}0\n")
    traces = Traces(folder / "home", Path(tempfile.mkdtemp(dir="/tmp")))
    server, database = f"http://user:{CANARY}1@{NOWHERE}", f"postgresql+psycopg://user:{CANARY}2@{NOWHERE}/mlflow"
    secrets = {"MLFLOW_TRACKING_URI": server, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": f"{CANARY}3" * 4}
    secrets["RAY_ADDRESS"] = "local"  # a cluster of its own, which has logs
    traces.run("tune", str(campaign), code=4, HOME=str(folder), TMPDIR=str(traces.temporary), **secrets)
    options = ["--set", f"tracking.mlflow_uri={server}", "--set", f"storage={database}"]
    traces.run("tune", str(campaign), "--dry-run", "--json", *options, code=0)
    question = ("best", "--topology", "hypercube:2", "--collective", "allreduce", "--size", "64KiB")
    traces.run(*question, "--json", code=3, MLFLOW_TRACKING_URI=server)
    yield traces
    shutil.rmtree(traces.temporary)


def test_no_output_file_log_or_process_has_a_secret(traces: Traces) -> None:
    assert all(CANARY not in output for output in traces.outputs)
    assert any(f"http://user:***@{NOWHERE}" in output for output in traces.outputs)
    files = [path for path in traces.home.rglob("*") if path.is_file()]
    assert any(path.name == "trials.jsonl" for path in files)
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []
    logs = [path for path in traces.temporary.rglob("*") if path.is_file()]
    assert any("raylet" in path.name for path in logs)
    assert [path for path in logs if CANARY.encode() in path.read_bytes()] == []
    assert any(b"--dry-run" in words for words in traces.arguments.values())
    assert [words for words in traces.arguments.values() if CANARY.encode() in words] == []
    paths = [traces.home, *traces.home.rglob("*")]
    assert len(paths) > 10
    assert {str(path): oct(path.stat().st_mode) for path in paths if path.stat().st_mode & 0o077} == {}


def test_another_user_reads_nothing_of_a_data_folder(shared_folder: Path, as_other_user: OtherUser) -> None:
    folder = shared_folder / "home"
    code = "from chorale.tuner.files.home import Home; home = Home.from_environment(); home.create(home.campaigns)"
    environment = {**os.environ, "CHORALE_HOME": str(folder)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, umask=0o000)
    stolen = as_other_user(f"ls -R {folder}; cat {folder}/campaigns/*")
    assert (stolen.returncode != 0, stolen.stdout) == (True, "")


def test_what_earlier_versions_left_readable_is_taken_from_others(tmp_path: Path) -> None:
    home = Home(tmp_path)
    tmp_path.chmod(0o755)
    home.service.mkdir(mode=0o755)
    home.database.touch(0o644)
    home.create(home.campaigns)
    assert [path.stat().st_mode & 0o777 for path in (home.service, home.campaigns, home.database)] == [0o700] * 2 + [
        0o600
    ]


def test_addresses_are_shown_without_their_secrets() -> None:
    shown = {
        "see http://u:p@h:5000/x.": "see http://u:***@h:5000/x.",
        "postgresql+psycopg://u:p@ss/w@h/d": "postgresql+psycopg://u:***@h/d",
        "redis://:p@h": "redis://:***@h",
        "https://token@h/x": "https://***@h/x",
        "mysql://u@h/d?ssl=1&password=p&x=2": "mysql://u@h/d?ssl=1&password=***&x=2",
        '{"a":"http://h:5000","b":"x@y"}': '{"a":"http://h:5000","b":"x@y"}',
        "file:/a and git@host:repository": "file:/a and git@host:repository",
    }
    assert {text: redacted(text) for text in shown} == shown
    assert {text: redacted(text) for text in shown.values()} == {text: text for text in shown.values()}


def test_errors_hold_no_secrets(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"\*\*\*") as caught:
        parse_campaign(CAMPAIGN, ["tracking.mlflow_uri=[http://u:p@h]"])
    assert "u:p" not in f"{caught.value}{caught.value.args}"
    error = Unavailable("a rule", ValueError("http://u:p@h"), "see http://u:p@h")
    assert "u:p" not in f"{error}{error!r}{error.args}"
    with pytest.raises(Unavailable) as caught:
        open_storage(f"postgresql://u:{CANARY}@{NOWHERE}/d", tmp_path / "journal")
    with pytest.raises(Unavailable, match="CHORALE_STORAGE"):
        open_storage("postgresql://u:***@h/d", tmp_path / "journal")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


def test_a_campaign_shows_its_addresses_without_passwords_and_connects_with_them() -> None:
    document = {"name": "a", "topology": "ring:4", "collective": "allreduce", "sizes": [1024]}
    document |= {"runner": {"kind": "simulated"}, "search": {"methods": ["ring"]}}
    address = "http://u:p@h:5000"
    campaign = campaign_of({**document, "tracking": {"mlflow_uri": address}, "storage": "postgresql://u:p@h/d"})
    assert "u:p" not in f"{campaign!r}{campaign}{campaign.model_dump(mode='json')}{campaign.model_dump_json()}"
    assert campaign.tracking.address("default") == address
    revealed = campaign.model_dump(by_alias=True, mode="json", context=REVEALED)
    assert Campaign.model_validate(revealed) == campaign
    assert revealed["tracking"]["mlflow_uri"] == address
    schema = Campaign.model_json_schema()
    assert schema["properties"]["storage"]["anyOf"][0]["type"] == "string"


def test_journals_are_read_without_passwords_which_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = Launch("id", 1, {}, {"tracking": {"mlflow_uri": "http://u:p@h"}, "storage": None}, 0.0)
    line = launch_codec.dump_json(launch)
    assert launch_codec.validate_json(line.replace(b"***", b"p")).campaign["tracking"]["mlflow_uri"] == "http://u:***@h"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://u:p@h")
    assert with_password("http://u:***@h", "MLFLOW_TRACKING_URI") == "http://u:p@h"
    assert with_password("http://v@w:5000", "MLFLOW_TRACKING_URI") == "http://v@w:5000"
    with pytest.raises(Unavailable, match="the password of"):
        with_password("http://u:***@other", "MLFLOW_TRACKING_URI")


def test_credentials_are_split_from_addresses() -> None:
    assert split_credentials("http://u:p%40@h:5000/x") == ("http://h:5000/x", "u", "p@")
    assert split_credentials("http://h") == ("http://h", None, None)
    assert split_credentials("http://t@h") == ("http://h", "t", None)


CODE = """
from pathlib import Path
from chorale.tuner.files.home import Home
from chorale.tuner.files.home import keep_private, write_file, write_folder
keep_private()
home = Home.from_environment()
write_file("table.json", b"x")
write_folder(Path("job"), {"a/run.sh": b"x"})
write_file(home.create(home.best / "v") / "program.xml", b"x")
Path("log").touch()
"""


def test_outputs_are_shared_and_all_else_is_not(tmp_path: Path) -> None:
    environment = {**os.environ, "CHORALE_HOME": "data", "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", CODE], env=environment, cwd=tmp_path, check=True, umask=0o022)
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {
        "table.json": 0o644, "job": 0o755, "job/a": 0o755, "job/a/run.sh": 0o755, "data": 0o700, "data/best": 0o700,
        "data/best/v": 0o700, "data/best/v/program.xml": 0o600, "log": 0o600,
    }  # fmt: skip
