"""The library of kernels: how arguments and results get there and back, and what happens without it."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from chorale.synth.bounds.residual_graph import residual_graph
from chorale.synth.kernels import library
from chorale.synth.kernels.compiled import KERNELS, Kernel, in_python
from chorale.synth.kernels.sources import kernel_modules, source_files
from chorale.synth.topology.distance import search_from
from chorale.synth.topology.spec import parse_topology

RING = (np.arange(9, dtype=np.int64), np.roll(np.arange(8), -1).astype(np.int32))


def hops(starts: np.ndarray, distances: np.ndarray) -> np.ndarray:
    search_from(*RING, starts, 65535, distances)
    return distances


def test_the_library_has_every_kernel():
    for module in kernel_modules():
        __import__(module)
    assert library.library_state() == "ready"
    assert [kernel.__qualname__ for kernel in KERNELS if kernel._load() is None] == []


def test_arrays_with_gaps_are_copied_there_and_back():
    room = np.full((2, 16), 65535, dtype=np.uint16)
    assert hops(np.array([0, 3]), room[:, ::2]).tolist()[0] == list(range(8))
    assert np.all(room[:, 1::2] == 65535)


def test_rows_may_be_further_apart_than_they_are_long():
    room = np.full((2, 16), 65535, dtype=np.uint16)
    assert hops(np.array([0, 3]), room[:, :8])[1].tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    assert np.all(room[:, 8:] == 65535)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros((1, 8), np.int64), "distances is int64.2 axes., not uint32.2 axes."),
        (np.zeros(8, np.uint16), "distances is uint16.1 axes., not"),
        (None, "NoneType"),
    ],
)
def test_wrong_arguments_are_refused(wrong, message):
    with pytest.raises((TypeError, AttributeError), match=message):
        hops(np.array([0]), wrong)


def test_threads_that_run_kernels_as_python_leave_machine_code_behind():
    first, second = in_python(), in_python()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # before the second one, as another thread may
    room = np.full((1, 8), 65535, dtype=np.int64)
    assert hops(np.array([0]), room).tolist() == [list(range(8))]  # the text takes any integers
    second.__exit__(None, None, None)
    with pytest.raises(TypeError, match="distances is int64"):
        hops(np.array([0]), room)


def test_results_live_as_long_as_they_are_used_and_no_longer():
    topology = parse_topology("torus:32x32")
    arguments = (topology.node_count, topology.links.src, topology.links.dst)
    first = residual_graph(*arguments)[0].tails
    wanted = first.copy()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        residual_graph(*arguments)
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # in KiB; each call makes 100
    assert np.array_equal(first, wanted)


def test_other_threads_run_beside_a_kernel():
    topology = parse_topology("torus:64x64")
    offsets = topology.links.incoming_offsets(topology.node_count)
    distances = np.full((400, topology.node_count), 65535, dtype=np.uint16)
    worker = threading.Thread(
        target=lambda: search_from(offsets, topology.links.src, np.arange(400), 65535, distances), daemon=True
    )
    worker.start()
    steps = 0
    while worker.is_alive():
        steps += 1
        time.sleep(0.0005)
    assert steps > 3


WITHOUT = """
import sys, warnings
from pathlib import Path
from chorale.synth.kernels import library
library.LIBRARY = Path("nowhere.so")
import chorale as ch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    schedule = ch.synthesize("torus:3x3", "allreduce", method=sys.argv[1])
print(schedule.schedule.id)
print(*(str(one.message) for one in caught), sep="\\n")
"""


@pytest.mark.parametrize("method", ["bfb", "forest"])
def test_without_the_library_the_text_gives_the_same_schedule(method):
    import chorale as ch  # noqa: PLC0415 - what users import

    result = subprocess.run([sys.executable, "-c", WITHOUT, method], capture_output=True, text=True, check=True)
    schedule, *warned = result.stdout.splitlines()
    assert schedule == ch.synthesize("torus:3x3", "allreduce", method=method).schedule.id
    [warning] = warned
    assert warning.startswith("there is no machine code of the kernels: they run in Python")
    assert "python -m chorale.runners.engine.kernels" in warning


def test_a_library_of_other_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(library, "digest", lambda files: "another")
    assert library.library_state() == "the machine code of the kernels is older than their sources"


def test_all_files_of_kernels_and_of_their_translation_count():
    files = source_files()
    assert {"kernels/native/array.hpp", "kernels/translation/program.py", "kernels/types.py"} <= set(files)
    assert "topology/distance.py" in files


def test_kernels_are_pickled_by_name():
    assert isinstance(search_from, Kernel)
    assert search_from.__reduce__() == "search_from"
