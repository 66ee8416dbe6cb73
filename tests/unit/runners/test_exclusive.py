"""The lock of a machine: one holder, and none after its death."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runners.exclusive import exclusive
from synth.errors import Unavailable

HOLD = "import sys, time\nfrom pathlib import Path\nfrom runners.exclusive import exclusive\n"
HOLD += "with exclusive(Path(sys.argv[1]), 1): print('held', flush=True); time.sleep(60)"


def test_one_holds_it_and_death_frees_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Unavailable, match="the machine for itself"), exclusive(lock, 0.2):
            pass
        holder.kill()
        with exclusive(lock, 10.0):
            pass


def test_it_is_free_after_the_block_and_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), exclusive(tmp_path / "lock", 0):
        raise ZeroDivisionError
    with exclusive(tmp_path / "lock", 0):
        pass
