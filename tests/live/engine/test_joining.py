"""Ranks that join while strangers come, while liars answer, or without one another."""

import array
import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from chorale.runners.engine.library import Engine, EngineError, Status, Work, encode_rank
from tests.live.engine.conftest import MakeJob
from tests.live.engine.job import TOKEN, broadcast_once, one_way

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
RING_HEADER_BYTES = 128


def hello(token: bytes = TOKEN, sender: int = 1, receiver: int = 0, channel: int = 0) -> bytes:
    return b"chorale1" + token + struct.pack("<iiii", sender, receiver, channel, 0)


def call(address: str) -> socket.socket:
    kind, _, where = address.partition(":")
    if kind == "tcp":
        host, _, port = where.rpartition(":")
        return socket.create_connection((host, int(port)))
    made = socket.socket(socket.AF_UNIX)
    made.connect(f"\0{where}")
    return made


STRANGERS = {
    "says nothing": b"",
    "sends garbage": os.urandom(4096),
    "has another token": hello(b"x" * 16),
    "is no rank": hello(sender=77),
    "is not awaited": hello(channel=5),
    "wants another": hello(receiver=1),
    "stops half-way": hello()[:20],
}


@pytest.mark.parametrize(
    ("transport", "words"),
    [(transport, list(STRANGERS.values())) for transport in ("tcp", "unix", "shm")] + [("unix", [b""] * 400)],
    ids=["tcp", "unix", "shm", "a silent crowd"],
)
def test_strangers_are_turned_away_and_ranks_join(make_job: MakeJob, transport: str, words: list[bytes]) -> None:
    job = make_job(2, transport)
    number = job.load(one_way())
    strangers = [call(job._addresses[0][transport]) for _ in words]
    for stranger, said in zip(strangers, words, strict=True):
        stranger.sendall(said)
    call(job._addresses[0][transport]).close()
    job.connect(5.0)
    broadcast_once(job, number, 1000)
    for stranger in strangers:
        stranger.close()


def test_files_that_strangers_send_are_closed(make_job: MakeJob) -> None:
    job = make_job(2, "shm")
    job.load(one_way())
    strangers = [call(job._addresses[0]["shm"]) for _ in range(5)]
    before = len(os.listdir("/proc/self/fd"))
    for stranger in strangers:
        for part in (b"a", b"b", os.urandom(38)):
            socket.send_fds(stranger, [part], [0, 1, 2])
    job.connect(5.0)
    connected = len(os.listdir("/proc/self/fd")) - before
    for engine in job.engines:
        engine.close()
    for stranger in strangers:
        stranger.close()
    assert connected <= 2 + 2  # sockets of the two ranks and the memory of each; those of strangers are gone


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"])
def test_a_rank_that_never_comes_is_named_in_time(make_job: MakeJob, transport: str) -> None:
    job = make_job(2, transport)
    job.load(one_way())
    for rank in range(2):
        started_s = time.monotonic()
        with pytest.raises(EngineError, match=f"rank {1 - rank} could not be connected in time") as failure:
            job.engines[rank].connect(job.addresses(rank), TOKEN, 0.3)
        assert failure.value.status == Status.TIMEOUT
        assert time.monotonic() - started_s < 1.3


def test_somebody_who_answers_without_a_welcome_is_no_rank(make_job: MakeJob) -> None:
    job = make_job(2, "tcp")
    job.load(one_way())
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            caller, _ = server.accept()
            caller.sendall(b"go away!")
            caller.recv(1000)
            caller.close()

        thread = threading.Thread(target=answer)
        thread.start()
        addresses = [f"tcp:127.0.0.1:{server.getsockname()[1]}", "tcp:127.0.0.1:1"]
        with pytest.raises(EngineError) as failure:
            job.engines[1].connect(addresses, TOKEN, 5.0)
        job.engines[1].close()
        thread.join()
    assert failure.value.status == Status.GARBAGE


def memory(size: int, seals: int = SEALS, content: bytes = b"") -> int:
    file = os.memfd_create("chorale-test", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    os.pwrite(file, content, 0)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


RING = 4096
WHOLE = 2 * (RING_HEADER_BYTES + RING)
WRITTEN_TOO_MUCH = struct.pack("<Q", RING + 1)
READ_TOO_MUCH = struct.pack("<Q", 0) + bytes(56) + struct.pack("<Q", 1)
GARBAGE_INSIDE = struct.pack("<Q", RING) + bytes(120) + os.urandom(RING)
LIES: dict[str, Callable[[], int]] = {
    "not sealed": lambda: memory(WHOLE, 0),
    "sealed in part": lambda: memory(WHOLE, fcntl.F_SEAL_SHRINK),
    "too short": lambda: memory(128),
    "empty": lambda: memory(0),
    "of an odd size": lambda: memory(WHOLE + 34),
    "no memory": lambda: os.open("/dev/null", os.O_RDWR),
    "more written than fits": lambda: memory(WHOLE, content=WRITTEN_TOO_MUCH),
    "more read than written": lambda: memory(WHOLE, content=READ_TOO_MUCH),
    "garbage inside": lambda: memory(WHOLE, content=GARBAGE_INSIDE),
}


@pytest.fixture
def receiver() -> Iterator[tuple[Engine, str]]:
    """Rank 0 of two, that receives from rank 1, and where it listens."""
    engine = Engine(0, 2)
    made = one_way()
    swapped = encode_rank(made.collective, 2, 1, True, 2, made.ranks[1])
    assert list(swapped[9:11]) == [-1, 0]  # whom the block sends to, and whom it receives from
    swapped[10] = 1
    engine.load(swapped)
    yield engine, engine.listen(f"shm:chorale-lies-{os.getpid()}-{time.monotonic_ns()}")
    engine.close()


def execute(engine: Engine, elements: int = 250, limit_s: float = 0.5) -> EngineError:
    data = array.array("b", bytes(4 * elements))
    address = data.buffer_info()[0]
    with pytest.raises(EngineError) as failure:
        engine.execute(Work(0, address, address, elements, limit_s=limit_s))
    return failure.value


@pytest.mark.parametrize("lie", LIES)
def test_memory_that_no_rank_would_offer_is_garbage(receiver: tuple[Engine, str], lie: str) -> None:
    engine, address = receiver
    file = LIES[lie]()
    with call(address) as liar:
        socket.send_fds(liar, [hello()], [file])
        os.close(file)
        assert _status_of_joining(engine, address) == Status.GARBAGE


def _status_of_joining(engine: Engine, address: str) -> Status:
    """Return how joining ended, or the execution after it."""
    try:
        engine.connect([address, address], TOKEN, 2.0)
    except EngineError as error:
        return error.status
    return execute(engine).status


def test_a_bell_that_rings_without_end_ends_in_a_timeout(receiver: tuple[Engine, str]) -> None:
    engine, address = receiver
    is_over = threading.Event()
    file = memory(WHOLE)

    def ring(liar: socket.socket) -> None:
        while not is_over.is_set():
            try:
                liar.send(bytes(4096), socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                return

    with call(address) as liar:
        socket.send_fds(liar, [hello()], [file])
        os.close(file)
        engine.connect([address, address], TOKEN, 2.0)
        thread = threading.Thread(target=ring, args=(liar,))
        thread.start()
        started_s = time.monotonic()
        assert execute(engine).status == Status.TIMEOUT
        assert time.monotonic() - started_s < 2.0
        is_over.set()
        thread.join()


@pytest.mark.parametrize("transport", ["tcp", "unix", "shm"])
@pytest.mark.parametrize("leaver", [0, 1], ids=["sender", "receiver"])
def test_a_rank_that_closes_is_lost_and_named(make_job: MakeJob, transport: str, leaver: int) -> None:
    """A sender notices it, too, if its message is too long for the memory in between."""
    job = make_job(2, transport)
    number = job.load(one_way())
    job.connect()
    broadcast_once(job, number, 10)
    job.engines[leaver].close()
    lost = execute(job.engines[1 - leaver], 5_000_000, 20.0)
    assert lost.status == Status.PEER_LOST
    assert f"rank {leaver} is gone" in str(lost)
