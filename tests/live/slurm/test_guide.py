"""The commands of docs/guide/slurm.md on a real Slurm."""

import re
import shlex

import pytest

from tests.docs.pages import DOCS
from tests.live.slurm.conftest import JOB_LIMIT_S, Site
from tests.live.support import needs_mpi

pytestmark = [needs_mpi, pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(3 * JOB_LIMIT_S)]

PAGE = (DOCS / "guide/slurm.md").read_text()
CAMPAIGN = """\
name: guide
topology: ring:4
collective: allreduce
sizes: [64KiB]
runner: {kind: simulated}
search: {methods: [ring, swing]}
budget: {trials: 2}
"""


def test_the_commands_of_the_guide_run(site: Site) -> None:
    (site.folder / "campaign.yaml").write_text(CAMPAIGN)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    (profile,) = (text for language, text in blocks if language == "yaml")
    assert "ulimit -c 0" in profile
    slow_start = f'prologue: ["export RAY_raylet_start_wait_time_s=300 PYTHONPATH={site.variables["PYTHONPATH"]}",'
    (site.folder / "site.yaml").write_text(profile.replace("prologue: [", slow_start))
    commands = [line for language, text in blocks if language == "" for line in text.splitlines()]
    assert len(commands) == 11
    for command in commands:
        words = [word.replace("NAME", "guide") for word in shlex.split(command)]
        if words[0] == "scontrol":
            (site.folder / words[-1]).write_text(site.cluster.output(*words[: words.index(">")]))
            continue
        if "--stop" in words:  # the one above has been followed to its end
            assert site.chorale("tune", "campaign.yaml", "--slurm", "--site", "site.yaml")[0] == 0
        code, output, messages = site.chorale(*words[1:])
        has_ended = "--stop" in words and "the job has ended already" in messages  # before it could be stopped
        assert code == 0 or has_ended, f"{command}\n{output}\n{messages}"
