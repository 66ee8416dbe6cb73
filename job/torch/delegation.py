"""The part of a process group that an inner group serves: what no program is made for."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from chorale.job.torch.inner import InnerGroup, register_backends
from chorale.job.torch.inner_calls import InnerCalls


class DelegatingGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of Python that hands on messages, barriers, and collectives of one rank's lists of tensors."""

    def __init__(self, rank: int, ranks: int, inner: InnerGroup) -> None:
        super().__init__(rank, ranks)
        register_backends(self, inner.backends)
        self._at = rank
        self._ranks = ranks
        self._inner = InnerCalls(inner.group)

    def getBackendName(self) -> str:  # noqa: N802 - as torch spells it
        """Return what `init_process_group` calls it."""
        return "chorale"

    def getRank(self) -> int:  # noqa: N802
        """Return this rank's position in the group."""
        return self._at

    def getSize(self) -> int:  # noqa: N802
        """Return the number of ranks."""
        return self._ranks

    def alltoall(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.all_to_all."""
        return self._inner.alltoall(*arguments, **more)

    def gather(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.gather."""
        return self._inner.gather(*arguments, **more)

    def scatter(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.scatter."""
        return self._inner.scatter(*arguments, **more)

    def send(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.send."""
        return self._inner.send(*arguments, **more)

    def recv(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.recv."""
        return self._inner.recv(*arguments, **more)

    def recv_anysource(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.recv without a source."""
        return self._inner.recv_anysource(*arguments, **more)

    def recvAnysource(self, *arguments: Any, **more: Any) -> Any:  # noqa: N802 - the name that torch 2.15 looks for
        """See recv_anysource."""
        return self._inner.recv_anysource(*arguments, **more)

    def barrier(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.barrier."""
        return self._inner.barrier(*arguments, **more)

    def monitored_barrier(self, *arguments: Any, **more: Any) -> Any:
        """See torch.distributed.monitored_barrier."""
        return self._inner.monitored_barrier(*arguments, **more)
