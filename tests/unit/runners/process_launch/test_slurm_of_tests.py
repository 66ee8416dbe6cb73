"""The cluster of the tests of Slurm says what it needs where it cannot be set up."""

import os
from pathlib import Path

import pytest

from tests.live.slurm import cluster, packages
from tests.live.slurm.cluster import INSTALL, PROGRAMS, missing_for_slurm


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with everything, in place of those of this machine."""
    monkeypatch.setattr(cluster, "_SBIN", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in PROGRAMS:
        _script(tmp_path / name, "exit 0")
    _script(tmp_path / "ldconfig", "echo '\tlibpmix.so (libc6,x86-64) => /usr/lib/libpmix.so'")
    return tmp_path


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


def test_nothing_is_missing(machine: Path) -> None:
    assert missing_for_slurm() is None


def test_what_is_missing_is_named_with_its_packages(machine: Path) -> None:
    (machine / "slurmd").unlink()
    _script(machine / "ldconfig", "echo '\tlibpmix.so.2 (libc6,x86-64) => /usr/lib/libpmix.so.2'")
    assert missing_for_slurm() == f"a Slurm cluster needs slurmd, libpmix.so: on Debian, {INSTALL}"


def test_packages_are_installed_where_apt_is(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (machine / "slurmd").unlink()
    assert packages.main() == 1
    assert "needs slurmd" in capsys.readouterr().err
    installed = f'case "$*" in *" install "*" slurmd "*) /bin/cp {machine}/munged {machine}/slurmd ;; esac'
    _script(machine / "apt-get", installed)
    assert packages.main() == 0
    assert capsys.readouterr().err == "installing slurmctld slurmd slurm-client munge libpmix-dev\n"
    (machine / "apt-get").unlink()
    assert packages.main() == 0


def test_root_is_needed(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing_for_slurm() == "a Slurm cluster of tests needs root: slurmd starts processes of users"
