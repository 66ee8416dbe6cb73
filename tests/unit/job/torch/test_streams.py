"""Where runs are enqueued on an accelerator: told by a stand-in for torch's functions, for want of one."""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="THE STREAMS OF THE BACKEND FOR TORCH ARE NOT TESTED: torch is not installed")

from chorale.job.torch import transport as streams
from chorale.job.torch.transport import StreamOrder, require_capturable
from chorale.synth.errors import InvalidInput


@dataclass(frozen=True)
class Device:
    """What is looked at of torch's."""

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
    """Knows which streams it is used on."""

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


def here(run: Callable[[], None]) -> None:
    run()


def in_another_thread(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("is_awaited", "in_thread"), [(False, here), (False, in_another_thread), (True, in_another_thread)]
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


def test_nothing_is_ordered_in_the_processors_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(streams.torch, "get_device_module")
    turn = StreamOrder(Device("cpu"), False)
    with turn.on_stream({}, [None]):
        turn.end()
    turn.join()
    assert not turn.has_streams
    assert turn.is_over()


def test_what_goes_into_a_graph_stays_on_the_stream_that_is_captured(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(streams.torch.cuda, "is_current_stream_capturing", lambda: True)
    turn = StreamOrder(DEVICE, False)
    with turn.on_stream({}, []):
        turn.end()
    turn.join()
    assert not turn.has_streams
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
