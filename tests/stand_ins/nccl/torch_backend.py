"""A process group of PyTorch on CPU tensors that calls the stand-in library as ProcessGroupNCCL calls NCCL."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from chorale.runners.nccl.calls import Nccl
from chorale.synth.collective import Collective, CollectiveName


class _Done(dist.Work):  # type: ignore[misc]
    """Work that is over when `wait` has called `last`: messages move together then."""

    def __init__(self, tensors: Any, last: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._last, self._future = last, torch.futures.Future()
        self._future.set_result(tensors)

    def wait(self, timeout: Any = None) -> bool:
        self._last()
        return True

    def get_future(self) -> Any:
        return self._future


class StandInGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The first call makes the communicator, which reads the variables of that time."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._store, self._nccl, self._made = store, Nccl(os.environ["STAND_IN_LIBRARY"]), 0
        self._open: list[Any] = []

    def getBackendName(self) -> str:
        return "stand_in"

    def _communicator(self) -> int:
        if not self._made:
            if self.rank() == 0:
                self._store.set("id", self._nccl.unique_id().hex())
            common = bytes.fromhex(self._store.get("id").decode())
            self._made = self._nccl.communicator(common, self.rank(), self.size(), None)
        return self._made

    def _call(self, name: CollectiveName, source: Any, target: Any, root: int | None = None) -> Any:
        dtype, whole = str(target.dtype).removeprefix("torch."), max(source.numel(), target.numel())
        ends = source.data_ptr(), target.data_ptr(), whole, self.size(), dtype, 0
        self._nccl.collective(self._communicator(), Collective(name, root), *ends)
        return _Done([target])

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._call(CollectiveName.ALLREDUCE, tensors[0], tensors[0])

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._call(CollectiveName.BROADCAST, tensors[0], tensors[0], opts.rootRank)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._call(CollectiveName.REDUCE, tensors[0], tensors[0], opts.rootRank)

    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self._call(CollectiveName.ALLGATHER, source, output)

    def _reduce_scatter_base(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self._call(CollectiveName.REDUCE_SCATTER, source, output)

    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base

    def alltoall_base(self, output: Any, source: Any, *splits: Any) -> Any:
        return self._call(CollectiveName.ALLTOALL, source, output)

    def send(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._message(self._nccl.send, tensors, peer)

    def recv(self, tensors: Any, peer: int, tag: int = 0) -> Any:
        return self._message(self._nccl.receive, tensors, peer)

    def _message(self, call: Any, tensors: Any, peer: int) -> Any:
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        self._open.append((call, (self._communicator(), tensors[0].data_ptr(), tensors[0].numel(), dtype, peer, 0)))
        return _Done(tensors, self._move)

    def _move(self) -> None:
        messages, self._open = self._open, []
        with self._nccl.group():
            for call, arguments in messages:
                call(*arguments)
