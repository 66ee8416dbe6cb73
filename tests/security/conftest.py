"""The attacker of these tests: another user of this machine, who runs what is given to `as_other_user`."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

OTHER_USER = 65534  # nobody
OtherUser = Callable[[str], "subprocess.CompletedProcess[str]"]
"""Runs a line of shell as another user, whose rights are those of everybody."""


@pytest.fixture
def as_other_user() -> OtherUser:
    """Return a call that runs a line of shell as another user; skips where the tests may not become one."""
    if os.geteuid() != 0:
        pytest.skip("needs two users: run these tests as root, who may become another")

    def run(line: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", "-c", line]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent"}
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment,
            cwd="/",
            user=OTHER_USER,
            group=OTHER_USER,
            extra_groups=[],
        )

    return run


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """Return a folder that every user enters and reads, as home folders and folders of projects often are."""
    folder = Path(tempfile.mkdtemp(prefix="chorale-shared-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
