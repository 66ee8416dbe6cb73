"""Where runs are enqueued on an accelerator, how messages are waited for, and why no plan runs; stand-ins for torch."""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="THE BACKEND FOR TORCH IS NOT TESTED: pip install torch")

import torch

from chorale.job.settings import JobSettings
from chorale.job.table.layout import ANY_DTYPE, Fallback, JobEntry
from chorale.job.torch import programs, transport as streams
from chorale.job.torch.creation import device_transport
from chorale.job.torch.programs import GroupPrograms
from chorale.job.torch.transport import BatchedTransport, LoadedTable, StreamOrder, require_capturable
from chorale.job.torch.work import WorkQueue
from chorale.runners.engine.library import ReduceOp
from chorale.synth.errors import InvalidInput
from tests.live.job.torch.tables import program_for


@dataclass(frozen=True)
class Device:
    type: str


DEVICE = Device("cuda")


@dataclass
class Accelerator:
    """Writes down what is asked of streams, `said`; a stream of each thread is its current one."""

    said: list[str] = field(default_factory=list)
    current: dict[int, Any] = field(default_factory=dict)
    made: int = 0

    def Stream(self, device: Any, name: str = "own") -> Any:
        self.made += 1
        record = lambda: SimpleNamespace(of=name, query=lambda: True)  # noqa: E731
        wait = lambda event: self.said.append(f"{name} waits for {event.of}")  # noqa: E731
        return SimpleNamespace(name=name, record_event=record, wait_event=wait)

    def current_stream(self, device: Any) -> Any:
        me = threading.get_ident()
        if me not in self.current:
            self.current[me] = self.Stream(device, f"stream {len(self.current)}")
        return self.current[me]

    @contextmanager
    def stream(self, stream: Any) -> Any:
        before = self.current
        self.current = before | {threading.get_ident(): stream}
        yield
        self.current = before


class Tensor:
    def __init__(self) -> None:
        self.streams: list[str] = []

    def record_stream(self, stream: Any) -> None:
        self.streams.append(stream.name)


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    made = Accelerator()
    monkeypatch.setattr(streams.torch, "get_device_module", lambda device: made)
    monkeypatch.setattr(streams.torch.cuda, "is_current_stream_capturing", lambda: False)
    return made


def in_another_thread(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("is_awaited", "in_thread"), [(False, lambda run: run()), (False, in_another_thread), (True, in_another_thread)]
)
def test_a_stream_of_the_groups_own_runs_behind_the_call_and_before_who_waits(
    accelerator: Accelerator, is_awaited: bool, in_thread: Callable[[Callable[[], None]], None]
):
    turn, own, tensor, seen = StreamOrder(DEVICE, is_awaited), {}, Tensor(), []

    def run() -> None:
        with turn.on_stream(own, [tensor]):
            seen.append(accelerator.current_stream(DEVICE).name)
            turn.end()

    in_thread(run)
    turn.join()
    assert seen == ["own"]
    assert tensor.streams == ["own"]
    assert accelerator.said == ["own waits for stream 0", "stream 0 waits for own"]
    assert turn.is_over()


def test_a_caller_that_waits_enqueues_where_it_is(accelerator: Accelerator):
    turn, tensor = StreamOrder(DEVICE, True), Tensor()
    with turn.on_stream({}, [tensor]):
        assert accelerator.current_stream(DEVICE).name == "stream 0"
        turn.end()
    turn.join()
    assert (tensor.streams, accelerator.said) == ([], [])
    assert turn.is_over()


def test_a_group_has_one_stream_of_its_own(accelerator: Accelerator):
    own: dict[Any, Any] = {}

    def run(turn: StreamOrder) -> None:
        with turn.on_stream(own, []):
            turn.end()

    for turn in (StreamOrder(DEVICE, False), StreamOrder(DEVICE, True)):
        in_another_thread(lambda turn=turn: run(turn))
    assert accelerator.made == 2  # with the caller's


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nothing_is_ordered_in_the_processors_memory_or_in_what_is_captured(
    device: str, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams.torch.cuda, "is_current_stream_capturing", lambda: True)
    if device == "cpu":
        monkeypatch.delattr(streams.torch, "get_device_module")
    turn = StreamOrder(Device(device), False)
    with turn.on_stream({}, [None]):
        turn.end()
    turn.join()
    assert not turn.has_streams
    assert turn.is_over()
    assert accelerator.made == 0


@pytest.mark.parametrize(
    ("is_connected", "is_idle", "way_out"),
    [
        (False, True, "allreduce of 4 bytes cannot be captured in a CUDA graph"),
        (True, False, "wait for all asynchronous collectives"),
        (False, False, "wait for all asynchronous collectives"),
    ],
)
def test_what_cannot_go_into_a_graph_is_refused_with_the_way_out(is_connected: bool, is_idle: bool, way_out: str):
    require_capturable(True, True, "allreduce", 4)
    with pytest.raises(InvalidInput, match=way_out) as error:
        require_capturable(is_connected, is_idle, "allreduce", 4)
    assert "allreduce of 4 bytes" in str(error.value)


ENTRY = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, "program")


@pytest.mark.parametrize(("device", "is_caller"), [("cpu", False), ("cuda", True)])
def test_a_call_that_does_not_wait(device: str, is_caller: bool, monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []
    is_over = threading.Event()
    transport: Any = SimpleNamespace(is_connected=True, run=lambda *call: threads.append(threading.get_ident()))
    stream = SimpleNamespace(record_event=lambda: None, wait_event=lambda event: None)
    module = SimpleNamespace(
        current_stream=lambda device: stream, Stream=lambda device: stream, stream=lambda stream: monkeypatch.context()
    )
    monkeypatch.setattr(streams.torch, "get_device_module", lambda device: module)
    monkeypatch.setattr(streams.torch.cuda, "is_current_stream_capturing", lambda: False)
    finished = SimpleNamespace(finish=lambda *error: is_over.set())
    monkeypatch.setattr(programs, "ProgramWork", lambda results, order: finished)
    queue = WorkQueue("test")
    group = GroupPrograms(LoadedTable("", None, {device: transport}), False, 1.0, queue)
    source = SimpleNamespace(device=Device(device), dtype=streams.torch.float32)
    call: Any = SimpleNamespace(
        source=source, target=source, tensors=[], results=[], collective="allreduce", size_bytes=4, finish=None
    )
    call.operation = ReduceOp.SUM
    group._start(transport, ENTRY, call, None)
    assert is_over.wait(10)
    queue.end()
    assert (threads == [threading.get_ident()]) == is_caller
    assert len(threads) == 1


class Group:
    """A process group whose messages are there at once; `waits` has what each was waited for with."""

    def __init__(self) -> None:
        self.waits: list[tuple[Any, ...]] = []

    def _get_backend(self, device: Any) -> Any:
        return SimpleNamespace(supports_coalescing=False)

    def send(self, *message: Any) -> Any:
        return SimpleNamespace(wait=lambda *limit: self.waits.append(limit))

    recv = send


@pytest.mark.parametrize(("device", "limits"), [("cpu", {1}), ("meta", {0})])
def test_only_messages_of_the_processor_are_waited_for_with_a_limit(device: str, limits: set[int]):
    program = program_for("allreduce")
    entry = JobEntry("allreduce", ANY_DTYPE, None, None, 0, None, program.digest)
    group = Group()
    transport = BatchedTransport(group, 0, {program.digest: program})
    assert not transport.is_connected
    tensor = torch.zeros(16, device=device)
    transport.run(entry, "allreduce", tensor, tensor, ReduceOp.SUM, 60.0)
    assert group.waits
    assert {len(limit) for limit in group.waits} == limits
    assert transport.is_connected


@pytest.mark.parametrize(
    ("facts", "reason", "told"),
    [
        ([["a", "GPU-0", "132"], ["b", "GPU-1", "132"]], Fallback.HOSTS, "its ranks are on 2 hosts"),
        ([["a", "GPU-0", "132"], []], Fallback.PLAN, "no NVIDIA GPU that can access its host's others at ranks 1"),
        ([["a", "GPU-0", "132"]] * 2, Fallback.PLAN, "ranks share a GPU"),
    ],
)
def test_why_no_plan_runs(
    facts: list[list[str]], reason: Fallback, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    member = SimpleNamespace(rank=0, exchange=lambda _: lambda _: facts)
    assert device_transport(member, "table", {}, JobSettings()) is reason  # type: ignore[arg-type]
    assert told in capsys.readouterr().err
