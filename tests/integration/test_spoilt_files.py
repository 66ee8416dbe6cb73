"""Commands of campaigns on files that are not what they should be: one line with a way out, bounded time and memory."""

import os
import re
from typing import Any

import pytest

from tests.integration.spoilt_files import MEMORY_BYTES
from tests.integration.test_two_nodes import run_script

ONE_LINE = re.compile(r"^chorale: [^;]+; .+$", re.MULTILINE)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs two users: run these tests as root, who may become another"),
]


def problems(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return what is wrong with how commands ended, a line each."""
    lines = []
    for name, ended in found.items():
        if ended["code"] not in (0, 1, 2, 3):
            lines.append(f"{name}: exit code {ended['code']}")
        if "Traceback" in ended["errors"]:
            lines.append(f"{name}: {ended['errors'][-600:]}")
        if ended["code"] != 0 and not ONE_LINE.search(ended["errors"]):
            lines.append(f"{name}: no line with a way out: {ended['errors'][-300:]}")
        if ended["more_bytes"] > MEMORY_BYTES:
            lines.append(f"{name}: {ended['more_bytes']} bytes more")
    return lines


@pytest.mark.timeout(1800)
def test_every_command_says_what_is_wrong_with_a_file(tmp_path):
    """One of seven of all cases; `python -m tests.integration.spoilt_files FOLDER` has them all."""
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)
    found = run_script("spoilt_files", tmp_path, 1700, "--every", "7")
    assert len(found) == 90
    assert problems(found) == []
