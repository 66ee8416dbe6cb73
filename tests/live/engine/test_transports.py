"""What transports must get right whatever the programs are."""

import ctypes
import time

import pytest

from chorale.runners.engine.library import EngineError, Status, Work
from tests.live.engine.conftest import MakeJob
from tests.live.engine.job import TRANSPORTS, around_a_corner, broadcast_once, one_way


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("buffer_bytes", [0, 1, 100, 5000])
def test_a_message_larger_than_all_buffers_goes_one_way(make_job: MakeJob, transport: str, buffer_bytes: int) -> None:
    """Nothing comes back that could wake the sender by chance."""
    job = make_job(2, transport, {"buffer_bytes": buffer_bytes})
    number = job.load(one_way())
    job.connect()
    for elements in (3_000_017, 1):
        broadcast_once(job, number, elements if buffer_bytes > 4096 or not buffer_bytes else elements // 10 + 1)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_programs_of_different_queues_take_turns(make_job: MakeJob, transport: str) -> None:
    """A connection that held eight messages in one run holds two in the next."""
    job = make_job(2, transport)
    deep, shallow = job.load(one_way(5, "LL")), job.load(one_way(7))
    job.connect()
    for number in (deep, shallow, deep, deep, shallow):
        broadcast_once(job, number, 7 * 5 * 11)
        assert job.mailbox is None or job.mailbox.open_requests() == 0


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_never_sends_is_waited_for_until_the_limit(make_job: MakeJob, transport: str) -> None:
    job = make_job(2, transport)
    number = job.load(one_way())
    job.connect()
    data = bytearray(8)
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    with pytest.raises(EngineError) as stuck:
        job.engines[1].execute(Work(number, address, address, 2, limit_s=0.1))
    assert stuck.value.status is Status.TIMEOUT
    assert "waits for a message from rank 0" in stuck.value.blocked


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_message_that_nobody_wants_yet_is_taken_in_at_once(make_job: MakeJob, transport: str) -> None:
    """Its sender goes on only when it has left, and all wait for that."""
    job = make_job(3, transport)
    number = job.load(around_a_corner())
    job.connect()
    broadcast_once(job, number, 1)
    seconds = []
    for _ in range(3):  # other processes may take the cores for a while
        started_s = time.monotonic()
        for elements in (5_000_000, 5_000_001):
            broadcast_once(job, number, elements)
        seconds.append(time.monotonic() - started_s)
    assert min(seconds) < 0.9, seconds
