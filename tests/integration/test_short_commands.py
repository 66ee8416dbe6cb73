"""Whatever reads a schedule ends with exit code 0, also under load.

Threads of Arrow's pool once gave Python buffers back while the interpreter ended, which aborted it (exit code 134).
"""

import sys

import pytest

from chorale.synth.build.build import verified_schedule
from chorale.synth.build.request import ScheduleRequest
from chorale.synth.collective import parse_collective
from chorale.synth.schedule.codec import to_parquet
from chorale.synth.topology.spec import parse_topology
from tests.command import python

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


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_reading_a_schedule_starts_no_thread(tmp_path):
    request = ScheduleRequest(parse_topology("ring:4"), parse_collective("allreduce"), "ring")
    (tmp_path / "s.parquet").write_bytes(to_parquet(verified_schedule(request).schedule))
    assert python("-c", THREADS, tmp_path / "s.parquet").stdout.strip() == "0"
