"""A pytest plugin: which lines of the product each test runs, also in processes that it starts, and how long it takes.

`python -m tests.mutation cover` loads it. What it finds goes to the folder $MUTATION_OUT: a file of coverage per
process, and a line of JSON per test with its marks and its processor and wall seconds.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

OUT = Path(os.environ["MUTATION_OUT"])
_MEASURED = coverage.Coverage(
    data_file=str(OUT / "lines"),
    data_suffix=True,
    config_file=False,
    source=os.environ["MUTATION_SOURCES"].split(os.pathsep),
    messages=False,
)
_MEASURED.set_option("run:disable_warnings", ["no-data-collected"])  # the process that only starts workers has none


def pytest_configure() -> None:
    """Start to measure, before the product is imported."""
    _MEASURED.start()


def pytest_unconfigure() -> None:
    _MEASURED.stop()
    _MEASURED.save()


_FAILED: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what fails without a fault: it says nothing about faults."""
    if report.failed:
        _FAILED.add(report.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count lines and seconds for this test, with its fixtures."""
    os.environ["MUTATION_TEST"] = item.nodeid
    _MEASURED.switch_context(item.nodeid)
    before, began = os.times(), time.perf_counter()
    try:
        return (yield)
    finally:
        spent = sum(os.times()[:4]) - sum(before[:4])
        record = {
            "test": item.nodeid,
            "failed": item.nodeid in _FAILED,
            "marks": sorted({mark.name for mark in item.iter_markers()}),
            "cpu_s": round(spent, 3),
            "wall_s": round(time.perf_counter() - began, 3),
        }
        with (OUT / f"tests.{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
            print(json.dumps(record), file=file)
