"""The lock of a machine: one holder, and none after its death."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from chorale.runners.measurement.machine import exclusive
from chorale.synth.errors import Unavailable

HOLD = "import sys, time\nfrom pathlib import Path\nfrom chorale.runners.measurement.machine import exclusive\n"
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


def test_it_is_free_for_one_who_waits_as_soon_as_it_is_given_back(tmp_path: Path) -> None:
    lock, waited = tmp_path / "lock", threading.Event()

    def second() -> None:
        with exclusive(lock, 30.0):
            waited.set()

    with exclusive(lock, 0):
        other = threading.Thread(target=second)
        other.start()
        assert not waited.wait(0.3)
    assert waited.wait(30.0)
    other.join()


def test_the_lock_is_of_its_user_alone(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock", 0):
        assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_a_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="a lock file must be writable"), exclusive(tmp_path, 0):
        pass
