"""The page of the threat model says what is so."""

import inspect
import re
from pathlib import Path

from chorale.runners.measurement.machine import OTHERS_PATIENCE_S, everybodys_lock
from chorale.runners.measurement.private_files import temporary_folder
from chorale.runners.ray.watch import INSECURE_VARIABLE
from chorale.tuner.cli.main import GLOBAL_FLAGS
from chorale.tuner.cli.serve import serve
from chorale.tuner.cli.tune import ui
from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_pages import password_file

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "threat-model.md"
TEXT = PAGE.read_text()


def rows(heading: str) -> dict[str, str]:
    """Return the rows of the table below a heading of the page, by their first cell."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in lines[1:]}


def test_the_ports_options_and_limits_of_the_page_exist() -> None:
    ports = rows("Ports")
    for command, name in ((serve, "the service"), (ui, "`chorale ui`")):
        default = inspect.signature(command).parameters["port"].default
        assert any(str(default) in key and name in row and "loopback" in row for key, row in ports.items())
    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"
    assert "--insecure-cluster" in GLOBAL_FLAGS
    assert f"{INSECURE_VARIABLE}=1" in TEXT
    assert str(everybodys_lock()) in TEXT
    assert {int(number) for number in re.findall(r"(\d+) s\b", TEXT)} == {int(OTHERS_PATIENCE_S)}


def test_the_files_of_the_page_have_their_modes(home: Home) -> None:
    files = rows("Files")
    assert "0700" in files["`/tmp/chorale-UID`"]
    assert temporary_folder().name.startswith("chorale-")
    assert temporary_folder().stat().st_mode & 0o777 == 0o700
    assert "ui-password" in files["`$CHORALE_HOME`, `chorale-data`"]
    assert (password_file(home).name, password_file(home).stat().st_mode & 0o777) == ("ui-password", 0o600)
