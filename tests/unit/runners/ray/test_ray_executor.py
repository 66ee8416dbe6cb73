"""The Ray executor keeps the contract of executors, and synthesis gives the same bytes on it."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from chorale.runners.ray.cluster import ray
from chorale.runners.ray.executor import RayExecutor
from chorale.synth.errors import Unavailable
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.schedule.codec import to_parquet
from chorale.synth.topology.spec import parse_topology
from tests.conformance.executor_kit import CHECKS, WORKER_CHECKS, Factory, sleep_s

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def make() -> RayExecutor:
    return RayExecutor(workers=2)


def write_into(shared: np.ndarray, task: int) -> bool:
    return bool(shared.flags.writeable)


def always_die(_: None, task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def mark_and_sleep(folder: str, task: int) -> int:
    (Path(folder) / str(task)).touch()
    time.sleep(1.0)
    return task


@pytest.mark.parametrize("check", [*CHECKS, *WORKER_CHECKS], ids=lambda check: check.__name__)
def test_conformance(check: Callable[[Factory], None]) -> None:
    check(make)


def test_synthesis_gives_the_same_bytes() -> None:
    topology = parse_topology("torus:3x4")
    with closing(make()) as executor:
        on_ray = bfb_allgather(topology, executor)
    serial = bfb_allgather(topology, SerialExecutor())
    assert on_ray.id == serial.id
    assert to_parquet(on_ray) == to_parquet(serial)


def test_a_signal_in_the_middle_ends_the_map_and_the_executor_works_on(tmp_path: Path) -> None:
    with closing(make()) as executor:
        executor.map(sleep_s, [0.0, 0.0])
        threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            executor.map(mark_and_sleep, range(60), str(tmp_path))
        assert executor.map(sleep_s, [0.0, 0.1]) == [0.0, 0.1]  # after it, the workers of before are gone
        begun = len(list(tmp_path.iterdir()))
        assert 0 < begun < 12
        time.sleep(1.5)
        assert len(list(tmp_path.iterdir())) == begun  # what was queued did not start later


@pytest.mark.slow
def test_a_task_that_always_kills_its_worker_is_given_up() -> None:
    with closing(make()) as executor:
        with pytest.raises(Unavailable, match="must survive its task within 4 attempts"):
            executor.map(always_die, [1])
        assert executor.map(sleep_s, [0.0]) == [0.0]


def test_shared_arrays_are_read_only_and_closing_leaves_a_cluster_that_was_there_before() -> None:
    with closing(make()) as executor:
        assert executor.map(write_into, [1, 2], np.zeros(10**6)) == [False, False]
    assert ray.is_initialized()
