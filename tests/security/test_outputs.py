"""What a person names as output has the mode of the person's mask; everything else is private."""

import os
import stat
import subprocess
import sys
from pathlib import Path

CODE = """
from pathlib import Path
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import keep_private, write_file, write_folder
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
        "table.json": 0o644,
        "job": 0o755,
        "job/a": 0o755,
        "job/a/run.sh": 0o755,
        "data": 0o700,
        "data/best": 0o700,
        "data/best/v": 0o700,
        "data/best/v/program.xml": 0o600,
        "log": 0o600,
    }
