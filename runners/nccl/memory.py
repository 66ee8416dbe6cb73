"""Provides memory for a rank's vectors, and operations that do not need NCCL: copies, sums and timing.

On a GPU, these operations call the CUDA or HIP runtime, which have the same interface; sums use torch's kernels. CPU
memory is for libraries that replace NCCL on machines without a GPU.
"""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np

from chorale.runners.api.elements import ELEMENT_TYPES, Vector

Pointer = ctypes.c_void_p
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_THREAD_LOCAL = 1  # capture mode in which other threads, such as PyTorch's, may call the runtime during a capture
_POLL_S = 0.0002


class HostDevice:
    """Provides vectors in CPU memory, which are identified by address. All calls are complete when they return.

    stream: stream on which all calls run; always 0 on CPUs
    adds:   whether the device can add vectors
    """

    stream = 0
    adds = True

    def __init__(self) -> None:
        self._vectors: dict[int, Vector] = {}

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory, filled with zeros."""
        vector = np.zeros(size_bytes, np.uint8)
        self._vectors[vector.ctypes.data] = vector
        return int(vector.ctypes.data)

    def free(self, address: int) -> None:
        del self._vectors[address]

    def upload(self, address: int, vector: Vector) -> None:
        ctypes.memmove(address, vector.ctypes.data, vector.nbytes)

    def download(self, vector: Vector, address: int) -> None:
        ctypes.memmove(vector.ctypes.data, address, vector.nbytes)

    def copy(self, target: int, source: int, elements: int, dtype: str) -> None:
        """Copy `elements` elements from `source` to `target`, on the stream."""
        ctypes.memmove(target, source, elements * ELEMENT_TYPES[dtype].dtype.itemsize)

    def add(self, target: int, first: int, second: int, elements: int, dtype: str) -> None:
        """Add the vectors `first` and `second` on the stream; store the sum in `target`. `adds` must be true."""
        np.add(_view(first, elements, dtype), _view(second, elements, dtype), out=_view(target, elements, dtype))

    def timed(self, work: Callable[[], None], limit_s: float) -> float | None:
        """Return the seconds that `work` takes on the stream, or None if it takes longer than `limit_s`."""
        began_s = time.perf_counter()
        work()
        return time.perf_counter() - began_s

    @contextmanager
    def captured(self, work: Callable[[], None]) -> Iterator[Callable[[], None]]:
        """Yield a function that repeats the calls in `work`. On a GPU, it launches one CUDA graph with these calls."""
        yield work

    def torch_stream(self) -> AbstractContextManager[Any]:
        """Return a context manager; PyTorch calls in its block use the stream."""
        return nullcontext()

    def tensor(self, address: int, elements: int, dtype: str) -> Any:
        """Return the vector at `address` as a PyTorch tensor."""
        import torch  # noqa: PLC0415 - takes seconds

        words = np.dtype(f"i{ELEMENT_TYPES[dtype].dtype.itemsize}")
        return torch.from_numpy(_view(address, elements, dtype).view(words)).view(getattr(torch, dtype))


def _view(address: int, elements: int, dtype: str) -> Vector:
    kind = ELEMENT_TYPES[dtype].dtype
    memory = (ctypes.c_uint8 * (elements * kind.itemsize)).from_address(address)
    vector: Vector = np.ctypeslib.as_array(memory).view(kind)
    return vector


class GpuDevice:
    """The counterpart of `HostDevice` for a GPU. Function names of its runtime begin with `prefix`: cuda or hip."""

    def __init__(self, library: ctypes.CDLL, prefix: str, index: int) -> None:
        self._library, self._prefix = library, prefix
        self._do("SetDevice", index)
        stream = Pointer()
        self._do("StreamCreate", ctypes.byref(stream))
        self.stream = stream.value or 0
        self._events = (Pointer(), Pointer())
        for event in self._events:
            self._do("EventCreate", ctypes.byref(event))
        self._index = index
        self._torch: Any = None
        with suppress(ImportError):
            import torch  # noqa: PLC0415 - takes seconds and is not needed for a library's own algorithms

            if torch.cuda.is_available():
                torch.cuda.set_device(index)
                self._torch = torch
        self.adds = self._torch is not None

    def allocate(self, size_bytes: int) -> int:
        address = Pointer()
        self._do("Malloc", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        self._do("Memset", address, 0, ctypes.c_size_t(size_bytes))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        self._do("Free", Pointer(address))

    def upload(self, address: int, vector: Vector) -> None:
        self._do("Memcpy", Pointer(address), Pointer(vector.ctypes.data), ctypes.c_size_t(vector.nbytes), _TO_DEVICE)

    def download(self, vector: Vector, address: int) -> None:
        self._do("StreamSynchronize", Pointer(self.stream))
        self._do("Memcpy", Pointer(vector.ctypes.data), Pointer(address), ctypes.c_size_t(vector.nbytes), _TO_HOST)

    def copy(self, target: int, source: int, elements: int, dtype: str) -> None:
        size = ctypes.c_size_t(elements * ELEMENT_TYPES[dtype].dtype.itemsize)
        self._do("MemcpyAsync", Pointer(target), Pointer(source), size, _ON_DEVICE, Pointer(self.stream))

    def add(self, target: int, first: int, second: int, elements: int, dtype: str) -> None:
        torch = self._torch
        with self.torch_stream():
            tensors = [self.tensor(address, elements, dtype) for address in (first, second, target)]
            torch.add(tensors[0], tensors[1], out=tensors[2])

    def timed(self, work: Callable[[], None], limit_s: float) -> float | None:
        start, end = self._events
        self._do("EventRecord", start, Pointer(self.stream))
        work()
        self._do("EventRecord", end, Pointer(self.stream))
        deadline = time.monotonic() + limit_s
        while getattr(self._library, f"{self._prefix}StreamQuery")(Pointer(self.stream)) != 0:
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        milliseconds = ctypes.c_float()
        self._do("EventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    @contextmanager
    def captured(self, work: Callable[[], None]) -> Iterator[Callable[[], None]]:
        graph, executable, stream = Pointer(), Pointer(), Pointer(self.stream)
        self._do("StreamBeginCapture", stream, _THREAD_LOCAL)
        try:
            work()
        finally:
            getattr(self._library, f"{self._prefix}StreamEndCapture")(stream, ctypes.byref(graph))
        self._do("GraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        self._do("GraphDestroy", graph)
        try:
            self._do("GraphUpload", executable, stream)
            yield lambda: self._do("GraphLaunch", executable, stream)
        finally:
            self._do("GraphExecDestroy", executable)

    def torch_stream(self) -> AbstractContextManager[Any]:
        stream: AbstractContextManager[Any] = self._torch.cuda.stream(
            self._torch.cuda.ExternalStream(self.stream, self._index)
        )
        return stream

    def tensor(self, address: int, elements: int, dtype: str) -> Any:
        kind = ELEMENT_TYPES[dtype].dtype
        words = np.dtype(f"i{kind.itemsize}")  # the interface lacks names for some types
        tensor = self._torch.as_tensor(_CudaArray(address, elements, words.str), device=f"cuda:{self._index}")
        return tensor.view(getattr(self._torch, dtype))

    def _do(self, name: str, *arguments: Any) -> None:
        answer = getattr(self._library, self._prefix + name)(*arguments)
        if answer:
            raise RuntimeError(f"{self._prefix}{name} answers {answer}")


RankDevice = HostDevice | GpuDevice


class _CudaArray:
    """Describes GPU memory in the attribute `__cuda_array_interface__`, from which torch creates a tensor."""

    def __init__(self, address: int, elements: int, kind: str) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,), "typestr": kind, "data": (address, False), "version": 3
        }  # fmt: skip
