"""How a group moves the bytes of a program: the engine for tensors in the processor's memory."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from chorale.job.group import GroupEngine
from chorale.job.table.model import JobEntry
from chorale.runners.engine.library import DataType, ReduceOp

DTYPES = {
    torch.float32: DataType.FLOAT32,
    torch.float64: DataType.FLOAT64,
    torch.float16: DataType.FLOAT16,
    torch.bfloat16: DataType.BFLOAT16,
    torch.int32: DataType.INT32,
    torch.int64: DataType.INT64,
    torch.int8: DataType.INT8,
    torch.uint8: DataType.UINT8,
}
"""Types of elements that programs run on; their names in tables are those of DataType in small letters."""

_MOVED = (
    *("bool", "int16", "uint16", "uint32", "uint64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float8_e4m3fnuz", "float8_e5m2fnuz"),
)
MOVED_DTYPES = frozenset(getattr(torch, name) for name in _MOVED if hasattr(torch, name))
"""Types of elements that programs move as bytes, and do not add."""


class Transport(Protocol):
    """What runs programs for one group on one type of device. Called by one thread at a time, in the same order on all
    ranks.

    is_connected: whether runs need nothing any more that a CUDA graph cannot hold
    """

    @property
    def is_connected(self) -> bool: ...

    def run(
        self, entry: JobEntry, collective: str, source: Any, target: Any, operation: ReduceOp, limit_s: float
    ) -> None:
        """Run the program of `entry` and return when `target` is complete; raise within about `limit_s`. On an
        accelerator: when all of it is enqueued on the current stream; what stalls there is the inner group's to end.

        source, target: input and output tensors, contiguous, on the device; the same one for a call in place. Both
        are the whole vector, but for the input of an allgather and the output of a reduce_scatter.
        """

    def close(self) -> None:
        """End connections. Safe to call twice."""


class EngineTransport:
    """Programs run by the engine, on tensors in the processor's memory."""

    is_connected = True

    def __init__(self, engine: GroupEngine) -> None:
        self._engine = engine

    def run(
        self, entry: JobEntry, collective: str, source: Any, target: Any, operation: ReduceOp, limit_s: float
    ) -> None:
        """See Transport. EngineError if it does not end well."""
        elements = max(source.numel(), target.numel())
        addresses = source.data_ptr(), target.data_ptr()
        self._engine.execute(entry, addresses, elements, DTYPES[source.dtype], operation, limit_s)

    def close(self) -> None:
        """End the connections. Safe to call twice."""
        self._engine.close()
