"""The cores that affinity and control groups leave a process."""

import os
from pathlib import Path

import pytest

from chorale.synth import processors


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/pod/job\n", {"pod/cpu.max": "150000 100000", "pod/job/cpu.max": "max 100000"}, 1),
        ("0::/\n", {"cpu.max": "300000 100000"}, 3),
        ("4:cpu,cpuacct:/docker/x\n", {"cpu,cpuacct/docker/x/cpu.cfs_quota_us": "200000"}, 2),
        ("4:cpu,cpuacct:/docker/x\n", {"cpu,cpuacct/docker/x/cpu.cfs_quota_us": "-1"}, 4),
        ("3:memory:/a\n", {"memory/a/cpu.max": "100000 100000"}, 4),
        ("0::/a\n", {"a/cpu.max": "1000 100000"}, 1),
    ],
)
def test_quotas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, membership: str, files: dict[str, str], cores: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        if name.endswith("quota_us"):
            (tmp_path / name).with_name("cpu.cfs_period_us").write_text("100000")
    (tmp_path / "membership").write_text(membership)
    monkeypatch.setattr(processors, "_CGROUPS", tmp_path)
    monkeypatch.setattr(processors, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)))
    assert processors.core_count() == cores


def test_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert processors.core_count() == 1
    assert processors.core_limits().startswith("CPU affinity allows 1 of 8")
