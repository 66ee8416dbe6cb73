"""Errors of other libraries keep their cause, wherever they put it; users' own files that hide libraries are named."""

import subprocess
import sys
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput, Unavailable

RAY = """The actor died because of an error raised in its creation task,
\x1b[36mray::Measurer.__init__()\x1b[39m (pid=7)
  At least one of the input arguments for this task could not be computed:
{}
  File "/site-packages/ray/_private/serialization.py", line 9, in load
    return pickle.loads(data)
ModuleNotFoundError: No module named 'chorale.runners'; 'chorale' is not a package"""


def test_the_end_of_a_traceback_of_ray_is_shown() -> None:
    text = str(Unavailable("an actor must start", RuntimeError(RAY.format('  File "x.py", line 1\n' * 99)), "look"))
    assert text.endswith("got ModuleNotFoundError: No module named 'chorale.runners'; 'chorale' is not a package; look")


def test_what_a_library_says_is_whole_and_long_values_keep_both_ends() -> None:
    hint = "words " * 100 + "set MLFLOW_ALLOW_FILE_STORE=true"
    assert hint in str(Unavailable("MLflow must answer", f"file:./mlruns: {hint}", "choose another"))
    shown = str(InvalidInput("a value must fit", "a" * 500 + "z", "shorten it"))
    assert "aaa ... aaa" in shown
    assert "z; shorten it" in shown
    assert len(shown) < 260


@pytest.mark.parametrize(
    ("name", "path"), [("numpy", ""), ("numpy", "PYTHONPATH"), ("typer", "PYTHONPATH"), ("random", "PYTHONPATH")]
)
def test_a_file_that_hides_a_library_is_harmless_or_named(tmp_path: Path, name: str, path: str) -> None:
    (tmp_path / f"{name}.py").write_text("x = 1\n")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "chorale", "synth", "bfb", "ring:4"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{root}" if path else str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"{tmp_path / name}.py hides the library {name}: rename it" in done.stderr or not (path or done.returncode)
    assert "Traceback" not in done.stderr
