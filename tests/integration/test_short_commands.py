"""Short commands under load: whatever reads a schedule ends with exit code 0, every time.

Threads of Arrow's pool once gave Python buffers back while the interpreter ended, which aborted it (exit code 134).
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chorale.synth.build.request import ScheduleRequest
from chorale.synth.build.schedules import build_schedule
from chorale.synth.collective import parse_collective
from chorale.synth.topology.spec import parse_topology

ROOT = Path(__file__).parents[2]
AT_ONCE = 4
COMMAND = ("simulate", "s.parquet", "--sizes", "1MiB", "--link-gbps", "100")

THREADS = """
import os, pathlib, sys
import pyarrow.parquet  # which starts one when it is imported
from chorale.synth.schedule.codec import from_parquet, stated_id
from chorale.synth.topology.spec import parse_topology
content = pathlib.Path(sys.argv[1]).read_bytes()
before = set(os.listdir("/proc/self/task"))
schedule = from_parquet(content, parse_topology)
assert stated_id(content) == schedule.id
print(len(set(os.listdir("/proc/self/task")) - before))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the schedule s.parquet."""
    request = ScheduleRequest(parse_topology("ring:4"), parse_collective("allreduce"), "ring")
    (tmp_path / "s.parquet").write_bytes(build_schedule(request).file)
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_reading_a_schedule_starts_no_thread(folder: Path) -> None:
    command = [sys.executable, "-c", THREADS, str(folder / "s.parquet")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_a_few_commands_side_by_side(folder: Path) -> None:
    environment = {**os.environ, "CHORALE_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}

    def run(_number: int) -> tuple[int, str]:
        line = [sys.executable, "-m", "chorale", *COMMAND]
        done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr if done.returncode else ""

    with ThreadPoolExecutor(AT_ONCE) as threads:
        assert list(threads.map(run, range(AT_ONCE))) == [(0, "")] * AT_ONCE
