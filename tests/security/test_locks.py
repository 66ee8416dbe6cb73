"""Another user neither stops measurements nor leads a lock astray."""

import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chorale.runners.measurement import private_files as private_folder
from chorale.runners.measurement.machine import everybodys_lock, exclusive, machine_lock
from tests.security.conftest import OTHER_USER, OtherUser


@pytest.fixture
def temporary(shared_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder for temporary files of all users, like /tmp, where there are no runtime folders."""
    shared_folder.chmod(0o1777)
    monkeypatch.setattr(private_folder.tempfile, "gettempdir", lambda: str(shared_folder))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(shared_folder / "none"))
    monkeypatch.setattr(private_folder, "SYSTEM_RUNTIME", shared_folder / "none")
    monkeypatch.setenv("HOME", str(shared_folder / "home"))
    (shared_folder / "home").mkdir()
    return shared_folder


def test_locks_lie_in_a_folder_of_their_user(temporary: Path) -> None:
    with exclusive(machine_lock(), 0):
        assert stat.S_IMODE(machine_lock().parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(machine_lock().stat().st_mode) == 0o600


@pytest.mark.parametrize("line", ["mkdir -m 777 {mine}; touch {0}/chorale-measuring.lock", "ln -s {0}/precious {mine}"])
def test_names_and_links_of_another_user_do_not_stop_measuring(temporary, as_other_user, line: str) -> None:
    (temporary / "precious").mkdir(mode=0o700)
    mine = temporary / f"chorale-{os.geteuid()}"
    assert as_other_user(line.format(temporary, mine=mine)).returncode == 0
    with exclusive(machine_lock(), 0):
        assert temporary / "home" in machine_lock().parents
        assert list((temporary / "precious").iterdir()) == []


def test_names_of_temporary_folders_that_another_user_took_do_not_stop_it(
    temporary: Path, as_other_user: OtherUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private_folder, "TEMPORARY", (str(temporary), str(temporary / "other")))
    (temporary / "other").mkdir()
    (temporary / "other").chmod(0o1777)
    name = f"chorale-{os.geteuid()}"
    assert as_other_user(f"mkdir {temporary}/{name} {temporary}/other/{name}").returncode == 0
    assert private_folder.temporary_folder() == temporary / "home" / ".chorale-run"


@contextmanager
def held_by_another(folder: Path, seconds: float) -> Iterator["subprocess.Popen[str]"]:
    command = ["/bin/sh", "-c", f"exec 9<{folder} && flock 9 && echo held && exec sleep {seconds}"]
    user = {"user": OTHER_USER, "group": OTHER_USER, "extra_groups": []}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", **user) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "held\n"
        yield other


def test_another_user_who_holds_the_lock_of_all_delays_but_does_not_stop(temporary, as_other_user, caplog):
    with held_by_another(everybodys_lock(), 60) as attacker:
        with caplog.at_level(logging.WARNING), exclusive(machine_lock(), 0, others_patience_s=0.2):
            assert "another user of this machine" in caplog.text
        code = "from chorale.runners.measurement.machine import exclusive, machine_lock\n"
        code += "with exclusive(machine_lock(), 0, others_patience_s=60): pass"
        own = os.environ | {"TMPDIR": str(temporary)}
        subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=own)  # no process waits for them again
        attacker.kill()
    with exclusive(machine_lock(), 0, others_patience_s=30):
        pass
    began_s = time.monotonic()
    with held_by_another(everybodys_lock(), 60) as attacker, exclusive(machine_lock(), 0, others_patience_s=60):
        attacker.kill()  # it was free for a moment only
    assert time.monotonic() - began_s < 30
    with held_by_another(everybodys_lock(), 1) as other, exclusive(machine_lock(), 0, others_patience_s=60):
        assert other.wait(timeout=30) == 0
