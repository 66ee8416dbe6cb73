"""Calls that make no sense, and words that are no programs."""

from __future__ import annotations

import ctypes
import random
from array import array
from collections.abc import Callable, Iterator

import pytest

from chorale.runners.engine.library import Engine, EngineError, Status, Work, encode_rank, engine_library, load_library
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.programs.program import Program
from tests.live.engine.job import exchange, one_way
from tests.unit.synth.lowering.programs import block, lowered, program, step

TOKEN = bytes(16)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(0, 2)
    yield made
    made.close()


def words(made: Program, rank: int = 0) -> array[int]:
    return encode_rank(made.collective, len(made.ranks), made.chunks, made.in_place, 2, made.ranks[rank])


@pytest.mark.parametrize(("rank", "ranks"), [(-1, 2), (2, 2), (0, 0), (0, -1)])
def test_a_rank_is_one_of_the_ranks(rank: int, ranks: int) -> None:
    with pytest.raises(InvalidInput, match="there is no rank"):
        Engine(rank, ranks)


CALLS: dict[str, Callable[[Engine], object]] = {
    "there is no option colour": lambda engine: engine.set("colour", 1),
    "an option cannot be negative": lambda engine: engine.set("piece_bytes", -1),
    "there is no such program": lambda engine: engine.execute(Work(0, 0, 0, 1)),
    "there is no such program ": lambda engine: engine.unload(-1),
    "an address begins with": lambda engine: engine.listen("udp:127.0.0.1"),
    "no address of a host": lambda engine: engine.listen("tcp:localhost"),
    "no such name": lambda engine: engine.listen("unix:"),
    "no such name ": lambda engine: engine.listen("shm:" + "x" * 300),
    "no room for the address": lambda engine: engine.listen("unix:" + "x" * 100) and _listen_without_room(engine),
}


def _listen_without_room(engine: Engine) -> None:
    bound = ctypes.create_string_buffer(4)
    engine._check(load_library(engine_library()).chorale_listen(engine._engine, b"tcp:127.0.0.1", bound, 4))


@pytest.mark.parametrize("message", CALLS)
def test_calls_that_make_no_sense_do_no_harm(engine: Engine, message: str) -> None:
    with pytest.raises(EngineError, match=message.strip()) as failure:
        CALLS[message](engine)
    assert failure.value.status == Status.INVALID
    assert engine.load(words(one_way())) == 0


@pytest.mark.parametrize("change", [{"type": 8}, {"type": -1}, {"operation": 5}, {"elements": 2**62}])
def test_calls_of_a_program_that_make_no_sense(engine: Engine, change: dict[str, int]) -> None:
    number = engine.load(words(exchange()))
    with pytest.raises(EngineError) as failure:
        engine.execute(Work(number, 0, 0, **{"elements": 4} | change))  # type: ignore[arg-type]
    assert failure.value.status == Status.INVALID


@pytest.mark.parametrize("limit_s", [float("nan"), -1.0, -1e300, 0.0, 0.01])
def test_an_execution_needs_connections_which_need_time(engine: Engine, limit_s: float) -> None:
    number = engine.load(words(exchange()))
    with pytest.raises(EngineError, match="load programs before connecting") as failure:
        engine.execute(Work(number, 0, 0, 4))
    assert failure.value.status == Status.INVALID
    with pytest.raises(EngineError) as failure:
        engine.connect(["unix:nobody", "unix:nobody"], TOKEN, limit_s)
    assert failure.value.status == Status.TIMEOUT
    with pytest.raises(EngineError) as failure:
        engine.execute(Work(number, 0, 0, 4))
    assert failure.value.status == Status.INVALID


def test_an_engine_that_was_closed_does_nothing_more(engine: Engine) -> None:
    engine.close()
    engine.close()
    for call, given in ((engine.set, ("piece_bytes", 64)), (engine.load, (words(one_way()),)), (engine.unload, (0,))):
        with pytest.raises(InvalidInput, match="closed"):
            call(*given)


def test_peers_that_nothing_is_exchanged_with_need_no_connection(engine: Engine) -> None:
    idle = block(1, 1, step("cpy", "i0", "s0"))
    made = program(CollectiveName.ALLREDUCE, 1, [idle], [block(None, None, step("cpy", "i0", "s0"))], scratch=1)
    number = engine.load(words(made))
    engine.connect(["unix:nobody", "unix:nobody"], TOKEN, 0.01)
    data = array("f", [1.0, 2.0])
    address = data.buffer_info()[0]
    engine.execute(Work(number, address, address, 2))
    assert list(data) == [1.0, 2.0]


# Header: version, collective, root, ranks, chunks, in place, scratch, depth, blocks; then send, receive, channel,
# steps; then operation, source, destination (buffer and offset each), count, waits.
WRONG = {
    0: 2, 1: 6, 2: 2, 3: 3, 4: 0, 5: 2, 6: -1, 7: 0, 8: 2, 9: 0, 11: -1, 12: 2, 13: 8, 14: 3, 15: 1, 18: 0, 19: 1,
}  # fmt: skip


@pytest.mark.parametrize("position", WRONG)
def test_each_word_is_checked(engine: Engine, position: int) -> None:
    good = words(one_way())
    engine.load(good)
    good[position] = WRONG[position]
    with pytest.raises(EngineError, match="the program") as failure:
        engine.load(good)
    assert failure.value.status == Status.INVALID


def test_words_that_are_cut_or_go_on_and_connections_of_two_blocks_are_no_program(engine: Engine) -> None:
    good = words(one_way())
    for wrong in (*(good[:length] for length in range(len(good))), array("q", [*good, 0])):
        with pytest.raises(EngineError):
            engine.load(wrong)
    twice = [block(1, None, step("s", "i0")), block(1, None, step("s", "i0"))]
    with pytest.raises(EngineError, match="from two blocks"):
        engine.load(words(program(CollectiveName.ALLREDUCE, 1, twice, [])))


def test_random_words_do_no_harm() -> None:
    """What mutants do when they run is a matter of tests/native."""
    made, draw, loaded, refusals = lowered("ring:4", "allreduce"), random.Random(8), 0, set()
    engine = Engine(1, 4)
    for _ in range(3000):
        changed = words(made, 1)
        for _ in range(draw.randrange(1, 4)):
            values = (-1, 0, 1, 2, 5, 2**40, 2**63 - 1, -(2**63))
            changed[draw.randrange(len(changed))] = draw.choice(values)
        try:
            engine.unload(engine.load(changed))
            loaded += 1
        except EngineError as error:
            refusals.add(error.status)
    engine.close()
    assert 0 < loaded < 3000
    assert refusals == {Status.INVALID}
