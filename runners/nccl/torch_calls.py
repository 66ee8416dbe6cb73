"""Calls NCCL through PyTorch: torch.distributed's collectives, with a process group for each setting."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from chorale.runners.execution.torch_collectives import run_collective
from chorale.runners.nccl.calls import Nccl
from chorale.runners.nccl.memory import RankDevice
from chorale.runners.nccl.parameters import CTA_POLICIES
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.library_call import LibrarySettings


class TorchNccl(Nccl):
    """Implements the calls of `Nccl` with the torch.distributed backend `backend`, such as nccl.

    path:    path of the library that the backend uses; here, only its version is read
    address: address at which the other ranks reach rank 0
    """

    def __init__(self, path: str, backend: str, device: RankDevice, address: str) -> None:
        super().__init__(path)
        self._backend, self._device, self._address = backend, device, address
        self._store: Any = None
        self._groups: list[Any] = []
        self._messages: list[Any] = []

    def unique_id(self) -> bytes:
        """Return the address of the TCP store through which the ranks form all groups."""
        if self._store is None:
            self._store = dist.TCPStore(self._address, 0, is_master=True, wait_for_workers=False)
        return f"{self._address} {self._store.port}".encode()

    def communicator(self, unique_id: bytes, rank: int, ranks: int, settings: LibrarySettings | None) -> int:
        if not dist.is_initialized():
            host, port = unique_id.decode().split()
            store = self._store or dist.TCPStore(host, int(port), is_master=False)
            dist.init_process_group(self._backend, store=store, rank=rank, world_size=ranks)
        self._groups.append(dist.new_group(backend=self._backend, pg_options=self._options(settings)))
        number = len(self._groups) - 1
        address = self._device.allocate(4)
        with self._device.torch_stream():  # the first call creates the communicator
            dist.all_reduce(self._device.tensor(address, 1, "int32"), group=self._groups[number])
        return number

    def _options(self, settings: LibrarySettings | None) -> Any:
        if settings is None or self._backend != "nccl":
            return None
        options = dist.ProcessGroupNCCL.Options()
        if settings.ctas is not None:
            options.config.min_ctas = options.config.max_ctas = settings.ctas
        if settings.cta_policy is not None:
            options.config.cta_policy = CTA_POLICIES[settings.cta_policy]
        return options

    def collective(
        self, communicator: int, collective: Collective, source: int, target: int, elements: int, ranks: int,
        dtype: str, stream: int, config: Any = None,
    ) -> None:  # fmt: skip
        name, share = collective.name, elements // ranks
        ends = (
            self._device.tensor(source, share if name is CollectiveName.ALLGATHER else elements, dtype),
            self._device.tensor(target, share if name is CollectiveName.REDUCE_SCATTER else elements, dtype),
        )
        with self._device.torch_stream():
            run_collective(collective, *ends, self._groups[communicator])

    @contextmanager
    def group(self) -> Iterator[None]:
        self._messages = []
        yield
        with self._device.torch_stream():
            for work in dist.batch_isend_irecv(self._messages):
                work.wait()

    def send(self, communicator: int, address: int, elements: int, dtype: str, peer: int, stream: int) -> None:
        tensor = self._device.tensor(address, elements, dtype)
        self._messages.append(dist.P2POp(dist.isend, tensor, peer, self._groups[communicator]))

    def receive(self, communicator: int, address: int, elements: int, dtype: str, peer: int, stream: int) -> None:
        tensor = self._device.tensor(address, elements, dtype)
        self._messages.append(dist.P2POp(dist.irecv, tensor, peer, self._groups[communicator]))
