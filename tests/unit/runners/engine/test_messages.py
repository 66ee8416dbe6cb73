"""The engine over somebody else's messages: programs in turn, limits, messages that do not come."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chorale.runners.engine.library import Engine, EngineError, Status, Work, encode_rank, engine_library
from chorale.synth.programs.program import Program
from tests.conformance.example_programs import ring_allreduce
from tests.unit.runners.engine.message_table import Mailboxes, MessageTable

RING = ring_allreduce(range(4))


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    engine_library()  # else each thread would build it


def _words(program: Program, rank: int, depth: int) -> object:
    return encode_rank(program.collective, 4, program.chunks, program.in_place, depth, program.ranks[rank])


def test_programs_with_shorter_queues_follow_those_with_longer_ones() -> None:
    """What a connection remembers of a run must fit the next: six messages of eight, then queues of two."""
    mailboxes = Mailboxes()

    def rank_sums(rank: int) -> list[np.ndarray]:
        table, engine = MessageTable(rank, mailboxes), Engine(rank, 4)
        engine.use_messages(table.address)
        results = []
        for depth in (8, 2, 8, 1):
            program = engine.load(_words(RING, rank, depth))
            data = np.arange(1003, dtype=np.float32) + rank
            engine.execute(Work(program, data.ctypes.data, data.ctypes.data, data.size, limit_s=20.0))
            assert table.open_requests == 0
            results.append(data)
        engine.close()
        return results

    with ThreadPoolExecutor(4) as threads:
        for results in threads.map(rank_sums, range(4)):
            for result in results:
                np.testing.assert_array_equal(result, 4 * np.arange(1003, dtype=np.float32) + 6)


def test_a_rank_that_never_sends_is_waited_for_until_the_limit() -> None:
    table, engine = MessageTable(0, Mailboxes()), Engine(0, 4)
    engine.use_messages(table.address)
    program = engine.load(_words(RING, 0, 2))
    data = np.zeros(8, np.float32)
    with pytest.raises(EngineError) as stuck:
        engine.execute(Work(program, data.ctypes.data, data.ctypes.data, data.size, limit_s=0.1))
    engine.close()
    assert stuck.value.status is Status.TIMEOUT
    assert "waits for a message from rank 3" in stuck.value.blocked
