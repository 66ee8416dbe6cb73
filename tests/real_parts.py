"""Which real parts the tests ran, such as jobs of MPI or a browser: `make test` says it at its end."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

PARTS = {
    "campaigns, from file to results": ("integration/", "unit/tuner/launch/test_tuning.py", "unit/tuner/cli/test_tune"),
    "jobs of torch": ("live/job/torch/",),
    "jobs of MPI": ("live/test_mpi_", "live/job/test_mpi_"),
    "jobs of oneCCL": ("live/test_oneccl_",),
    "ranks of the own engine": ("live/engine/", "live/test_local_"),
    "emulated fabrics": ("live/test_fabric.py", "live/test_links.py", "live/watch/"),
    "Ray clusters": ("unit/runners/ray/", "unit/tuner/launch/", "live/job/test_ray_"),
    "pages in a browser": ("browser/",),
    "services": ("security/test_service_", "unit/tuner/service/"),
    "faults: killed, stopped, lying or lost parts": ("live/engine/test_liars.py", "soak/"),
    "conformance of runners, executors, targets": ("conformance",),
    "golden files": (
        "unit/synth/lowering/test_collectives.py::test_the_text_is_as_recorded",
        "unit/synth/lowering/test_collectives.py::test_code_of_every_target",
        "unit/runners/msccl/test_job.py::test_golden_folders",
        "unit/tuner/cli/test_refusals.py::test_a_mistake_is_explained",
    ),
}
"""What people want to know whether it ran -> how the names of its tests begin, below `tests/`."""


class Recorder:
    """A plugin that counts, for each part, the tests that passed and those that were skipped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped or (report.when == "call" and report.passed):
            test = report.nodeid.removeprefix("tests/")
            for part, beginnings in PARTS.items():
                if test.startswith(beginnings) or (part.startswith("conformance") and "::test_conformance" in test):
                    self.counts[f"{part}: {'skipped' if report.skipped else 'passed'}"] += 1

    def pytest_sessionfinish(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{os.getpid()}.json").write_text(json.dumps(self.counts))


def pytest_configure(config: pytest.Config) -> None:
    """Count where the variable names a folder for it, in the process that hears of all tests."""
    folder = os.environ.get("CHORALE_TEST_PARTS")
    if folder and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Recorder(Path(folder)))


def main() -> None:
    total: Counter[str] = Counter()
    for path in Path(os.environ["CHORALE_TEST_PARTS"]).glob("*.json"):
        total.update(json.loads(path.read_text()))
    lines = ["What ran for real:"]
    for part in PARTS:
        passed, skipped = total[f"{part}: passed"], total[f"{part}: skipped"]
        tests = f"{passed} tests" if passed else "NONE"
        lines.append(f"  {part:46} {tests:>10}{f', {skipped} skipped' if skipped else ''}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
