"""The extension of kernels: arguments, results and errors, and threads on the cores that a process may use."""

import gc
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from chorale.synth import processors
from chorale.synth.kernels import native
from chorale.synth.processors import in_threads
from chorale.synth.topology.spec import parse_topology

RING = (np.arange(9, dtype=np.int64), np.roll(np.arange(8), -1).astype(np.int32))


def hops(starts: np.ndarray, distances: np.ndarray) -> np.ndarray:
    native.search_from(*RING, starts, 65535, distances)
    return distances


def test_rows_may_be_further_apart_than_they_are_long_and_what_is_read_may_be_read_only():
    starts, room = np.array([0, 3]), np.full((2, 16), 65535, dtype=np.uint16)
    starts.flags.writeable = False
    assert hops(starts, room[:, :8])[1].tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    assert np.all(room[:, 8:] == 65535)
    room.flags.writeable = False
    wrong = np.zeros((1, 8), np.int64), np.zeros(8, np.uint16), np.zeros((1, 16), np.uint16)[:, ::2], room[:, :8]
    for each in wrong:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            hops(starts, each)
    nothing = np.zeros(2, dtype=np.int64)
    with pytest.raises(MemoryError):
        native.dependences(nothing, nothing, nothing, 2**60)


def test_results_live_as_long_as_they_are_used_and_no_longer():
    cells, ones = np.arange(2**16), np.ones(2**16, dtype=np.int64)
    offsets, _ = native.dependences(cells, cells, ones, len(cells))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(200):
        native.dependences(cells, cells, ones, len(cells))
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # in KiB; each call makes 512
    assert not offsets.any()


def test_other_threads_run_beside_a_kernel():
    topology = parse_topology("torus:64x64")
    offsets = topology.links.incoming_offsets(topology.node_count)
    distances = np.full((400, topology.node_count), 65535, dtype=np.uint16)
    worker = threading.Thread(
        target=lambda: native.search_from(offsets, topology.links.src, np.arange(400), 65535, distances), daemon=True
    )
    worker.start()
    steps = 0
    while worker.is_alive():
        steps += 1
        time.sleep(0.0005)
    assert steps > 3


WITHOUT = 'sys.modules["chorale.synth.kernels.native"] = None'
STALE = 'import chorale.synth.identity as identity; identity.sources_id = lambda folder: "of other files"'


@pytest.mark.parametrize("state", [WITHOUT, STALE])
def test_without_an_extension_of_these_sources_the_command_says_how_to_build_it(state):
    code = f"import sys\n{state}\nfrom chorale.__main__ import main\nmain()"
    result = subprocess.run(
        [sys.executable, "-c", code, "synth", "ring", "ring:4"], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr.startswith("chorale: Chorale's kernels are ")
    assert "run `python setup.py build_ext --inplace`" in result.stderr


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_results_come_in_the_order_of_the_parts(cores, monkeypatch):
    monkeypatch.setattr(processors, "core_count", lambda: cores)
    assert in_threads(lambda part: part * part, range(50)) == [part * part for part in range(50)]
    assert in_threads(lambda part: part, []) == []
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda part: 1 / (5 - part), range(50))


def in_control_groups(folder: Path, patch: pytest.MonkeyPatch, membership: str, files: dict[str, str]) -> None:
    for name, text in {**files, "membership": membership}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    patch.setattr(processors, "_CGROUPS", folder)
    patch.setattr(processors, "_MEMBERSHIP", folder / "membership")


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
def test_quotas(tmp_path, monkeypatch, membership, files, cores):
    periods = {name.replace("quota", "period"): "100000" for name in files if name.endswith("quota_us")}
    in_control_groups(tmp_path, monkeypatch, membership, files | periods)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(4)))
    assert processors.core_count() == cores


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        ("0::/pod/job\n", {"pod/memory.max": "2147483648\n", "pod/job/memory.max": "max\n"}, 2**31),
        ("4:memory:/x\n", {"memory/x/memory.limit_in_bytes": "1073741824\n", "memory.max": "7"}, 2**30),
        ("0::/\n3:cpu:/\n", {"cpu/memory.max": "7"}, float("inf")),
    ],
)
def test_memory_limit(tmp_path, monkeypatch, membership, files, limit):
    in_control_groups(tmp_path, monkeypatch, membership, files)
    assert processors.memory_limit() == limit


def test_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {1})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert processors.core_count() == 1
    assert processors.core_limits().startswith("CPU affinity allows 1 of 8")
