"""Streams of an accelerator: behind what a program runs, and what runs behind it.

A run is enqueued, not waited for, so that its caller's thread can do it: communicators then get their work in one
order on all ranks, and none while a graph is captured elsewhere. What the caller waits for goes to the caller's stream.
All else goes to a stream of the group's own, which waits for what the caller had enqueued before the call; who waits
for the work has its stream wait for that run. So computation goes on beside runs, as with NCCL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from chorale.synth.errors import InvalidInput


def is_captured(device: Any) -> bool:
    """Return whether what is enqueued on `device` now goes into a CUDA graph."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def require_capturable(is_connected: bool, is_idle: bool, collective: str, size_bytes: int) -> None:
    """Raise InvalidInput where a program cannot go into a CUDA graph: it is refused before it spoils the graph."""
    call = f"{collective} of {size_bytes} bytes"
    if not is_idle:
        rule = "a program goes into a CUDA graph by the thread that captures, with none before it in the background"
        raise InvalidInput(rule, call, "wait for all asynchronous collectives before the capture")
    if not is_connected:
        rule = "ranks must be connected before a program goes into a CUDA graph"
        raise InvalidInput(rule, call, "call a collective that a program serves once on this group before the capture")


class StreamOrder:
    """The place of one run among the streams of a device; nothing to order in the processor's memory.

    Made in the thread that calls; `on_stream` is for the thread that runs, `join` for any that waits.
    """

    def __init__(self, device: Any, is_awaited: bool) -> None:
        """is_awaited: whether the caller waits at once."""
        self.device = device
        self._is_awaited = is_awaited
        self._module = None if device.type == "cpu" or is_captured(device) else torch.get_device_module(device)
        self._caller = threading.get_ident()
        self._called = self._module.current_stream(device).record_event() if self._module else None
        self._stream: Any = None
        self._done: Any = None

    @property
    def has_streams(self) -> bool:
        """Whether there is anything to order."""
        return self._module is not None

    @contextmanager
    def on_stream(self, streams: GroupStreams, tensors: Sequence[Any]) -> Iterator[None]:
        """What is enqueued within goes where the run belongs; `tensors` are in use until it is over."""
        if self._module is None or (self._is_awaited and threading.get_ident() == self._caller):
            yield
            return
        stream = streams.of(self._module, self.device)
        stream.wait_event(self._called)
        for tensor in tensors:
            tensor.record_stream(stream)
        with self._module.stream(stream):
            self._stream = stream
            yield

    def end(self) -> None:
        """Say that all of the run is enqueued, before anybody who waits for it is told so."""
        if self._stream is not None:
            self._done = self._stream.record_event()

    def join(self) -> None:
        """Have the current stream wait for the run, which must have been enqueued."""
        if self._done is not None and self._module is not None:
            self._module.current_stream(self.device).wait_event(self._done)

    def is_over(self) -> bool:
        """Return whether a run on the group's stream is over; one on the caller's own is not looked at."""
        return self._done is None or bool(self._done.query())


class GroupStreams:
    """The streams of a group's own, one for each device, made when they are first wanted."""

    def __init__(self) -> None:
        self._streams: dict[Any, Any] = {}

    def of(self, module: Any, device: Any) -> Any:
        """Return the stream for `device`, whose functions torch has in `module`."""
        if device not in self._streams:
            self._streams[device] = module.Stream(device)
        return self._streams[device]
