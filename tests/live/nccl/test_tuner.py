"""A table in NCCL: rows decide the calls that they are for, and NCCL all others."""

import importlib.util
import os
from pathlib import Path

import pytest

from chorale.job.nccl.plugin import tuner_plugin
from tests.live.nccl.example import example_csv
from tests.live.nccl.tuner import CALLS, RANKS, compared, found, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # eight processes that make a context of CUDA


def has_gpu() -> bool:
    return Path("/dev/nvidia0").exists() and importlib.util.find_spec("nvidia") is not None


@pytest.mark.skipif(not has_gpu(), reason="NOT TESTED ON THIS MACHINE: no GPU with NCCL from a package of Python")
def test_rows_decide_what_they_are_for_and_nccl_all_else():
    library = Path(os.environ.get("CHORALE_TEST_NCCL") or found("libnccl.so.2"))
    table_csv = example_csv()
    plain, tuned = run(library, None, None, True), run(library, table_csv, tuner_plugin(), True)
    assert (tuned.exits, tuned.wrong, tuned.errors) == ((0,) * RANKS, (), ())
    rows = compared(table_csv, plain, tuned)
    assert len(rows) == len(CALLS)
    for row in rows:
        if row["table"] is None:
            assert row["with"] == row["without"]
        else:
            algorithm, protocol, channels = row["table"]
            assert row["with"][:2] == (algorithm, protocol)
            assert channels == 0 or row["with"][2] <= channels
