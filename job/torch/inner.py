"""Creates and wraps the inner group, an ordinary torch group that handles all calls without a program."""

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, wraps
from ipaddress import ip_address
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed import distributed_c10d

from chorale.job.torch.programs import reduce_operation
from chorale.job.torch.work import ProgramWork
from chorale.runners.engine.library import ReduceOp
from chorale.synth.errors import InvalidInput, Unavailable


@dataclass(frozen=True, slots=True)
class InnerGroup:
    """The group for calls without a program: an ordinary torch process group, and its backend for each device type."""

    group: Any
    backends: dict[str, tuple[Any, Any]]


def inner_group(options: Any, name: str | None, purpose: str = "inner") -> InnerGroup:
    """Create the inner group for the process group that torch creates with `options`.

    name:    torch backend; by default gloo for CPUs and the accelerator's own backend for an accelerator
    purpose: name that distinguishes groups that are created with identical options
    """
    names = _names(name)
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    made = {inner: _backend(inner, options, purpose) for inner in dict.fromkeys(names.values())}
    backends = {device: made[inner] for device, inner in names.items()}
    register_backends(group, backends)
    return InnerGroup(group, backends)


def register_backends(group: Any, backends: dict[str, tuple[Any, Any]]) -> None:
    """Register `backends` (device type -> backend) with `group`; the first backend becomes the default."""
    for device, (kind, backend) in backends.items():
        group._register_backend(torch.device(device), kind, backend)
    group._set_default_backend(next(iter(backends.values()))[0])


def _names(name: str | None) -> dict[str, str]:
    names = {"cpu": "gloo"}
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None and accelerator.type in dist.Backend.default_device_backend_map:
        names[accelerator.type] = dist.Backend.default_device_backend_map[accelerator.type]
    if name is None:
        return names
    if name == "chorale" or name not in dist.Backend.backend_capability:
        known = ", ".join(sorted(set(dist.Backend.backend_capability) - {"chorale"}))
        raise InvalidInput("CHORALE_INNER must be a backend of torch.distributed", name, f"choose from {known}")
    return names | {device: name for device in dist.Backend.backend_capability[name] if device in names}


def _backend(name: str, options: Any, purpose: str) -> tuple[Any, Any]:
    kind = dist.Backend.backend_type_map[name]
    store = dist.PrefixStore(f"chorale-{purpose}-{name}", options.store)
    where = store, options.group_rank, options.group_size
    if name == "gloo":
        settings = dist.ProcessGroupGloo._Options()
        settings._timeout = options.timeout
        settings._devices = _gloo_devices(
            os.environ.get("GLOO_SOCKET_IFNAME", ""), meeting_host(options.store), os.getpid()
        )
        return kind, _numbered(dist.ProcessGroupGloo(*where, settings))
    if name in ("nccl", "xccl"):
        backend = getattr(dist, f"ProcessGroup{name.upper()}")
        settings = backend.Options()
        settings._timeout = options.timeout
        settings.global_ranks_in_group = options.global_ranks_in_group
        settings.group_name = options.group_id
        return kind, _numbered(backend(*where, settings))
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None or plugin.extended_api:
        raise Unavailable("the inner backend '{}' cannot be created here", name, "set CHORALE_INNER to another")
    return kind, plugin.creator_fn(*where, options.timeout)


def meeting_host(store: Any) -> str | None:
    """Return the host of the store through which the ranks find each other, or None if the store is a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return os.environ.get("MASTER_ADDR") or getattr(store, "host", None)


@cache
def _gloo_devices(names: str, toward: str | None, _: int) -> list[Any]:
    """Return Gloo's devices, which all groups of this process share. Each device has a thread and open files.

    names:  network interfaces, separated by commas; if empty, the interface that leads to the host `toward` is used.
            Gloo's default would be the address to which this host's name resolves, which other hosts often cannot reach
    """
    make = dist.ProcessGroupGloo
    if names:
        return [make.create_device(interface=name) for name in names.split(",") if name]
    own = _address_toward(toward) if toward else None
    return [make.create_device(hostname=own) if own else make.create_default_device()]


def _address_toward(host: str) -> str | None:
    """Return the address from which this host sends to `host`; None if there is no route or only the loopback."""
    try:
        family, kind, *_, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(address)  # a UDP socket, so this sends nothing
            own = str(way.getsockname()[0])
    except OSError:
        return None
    return None if ip_address(own.partition("%")[0]).is_loopback else own


def _numbered(backend: Any) -> Any:
    backend._set_sequence_number_for_group()
    return backend


_COPIED = {
    **dict.fromkeys(("allreduce", "allreduce_coalesced", "broadcast", "reduce", "scatter"), 1),
    **dict.fromkeys(("reduce_scatter", "_reduce_scatter_base"), 1),
    "alltoall_base": 2,
}
"""Maps each method to its number of leading arguments that may be non-contiguous. The first one gets the results."""


class InnerCalls:
    """Wraps an ordinary torch process group so that the collectives in `_COPIED` also accept non-contiguous tensors in
    CPU memory and can average integers. All other methods are passed on unchanged.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name) if name in _COPIED else getattr(self._group, name)

    def _call(self, name: str, *arguments: Any, **more: Any) -> Any:
        """Call the group's method `name`, with contiguous copies of tensors if necessary. Return a `Work` that ends
        when the results have been copied back. An average of integers is computed as a sum, followed by a division.
        """
        method, count = getattr(self._group, name), _COPIED[name]
        options: Any = next((o for o in (*arguments[count:], *more.values()) if hasattr(o, "asyncOp")), None)
        outputs = [arguments[0]] if isinstance(arguments[0], torch.Tensor) else list(arguments[0])
        given = getattr(options, "reduceOp", None)
        divides = given is not None and reduce_operation(given) is ReduceOp.AVG and all(map(_is_integer, outputs))
        dense = [each if isinstance(each, torch.Tensor) else list(each) for each in arguments[:count]]
        dense = [_dense(each) if isinstance(each, torch.Tensor) else [*map(_dense, each)] for each in dense]
        copies = dense[0] if isinstance(dense[0], list) else [dense[0]]
        if divides:
            options.reduceOp = c10d.ReduceOp(c10d.ReduceOp.SUM)
        try:
            work = method(*dense, *arguments[count:], **more)
        finally:
            if divides:
                options.reduceOp = given
        if name == "reduce" and options.rootRank != self._group.rank():  # the other ranks' tensors do not change
            return work
        changed = [pair for pair in zip(outputs, copies, strict=True) if divides or pair[1] is not pair[0]]
        if not changed:
            return work
        whole = ProgramWork(outputs)

        def end() -> None:
            try:
                work.wait()
                with torch.no_grad():
                    for tensor, copy in changed:
                        result = torch.div(copy, self._group.size(), rounding_mode="trunc") if divides else copy
                        tensor.detach().copy_(result)
            except Exception as error:  # raised to callers that wait for the work
                whole.finish(error)
            else:
                whole.finish()

        if getattr(options, "asyncOp", True):
            threading.Thread(target=end, name="chorale-copy-back").start()
        else:
            end()
        return whole


def _is_integer(tensor: Any) -> bool:
    is_other = tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool
    return not is_other and tensor.device.type == "cpu"


def _dense(tensor: Any) -> Any:
    if tensor.layout is not torch.strided or tensor.is_contiguous() or tensor.device.type != "cpu":
        return tensor
    return tensor.detach().contiguous()


class DelegatingGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group in Python that forwards messages, barriers, gather and scatter to the inner group."""

    def __init__(self, rank: int, ranks: int, inner: InnerGroup) -> None:
        super().__init__(rank, ranks)
        register_backends(self, inner.backends)
        self._at = rank
        self._ranks = ranks
        self._inner = InnerCalls(inner.group)

    def getBackendName(self) -> str:  # noqa: N802 - as torch spells it
        return "chorale"

    def getRank(self) -> int:  # noqa: N802
        return self._at

    def getSize(self) -> int:  # noqa: N802
        return self._ranks


def _delegated(name: str) -> Callable[..., Any]:
    def call(self: DelegatingGroup, *arguments: Any, **more: Any) -> Any:
        return getattr(self._inner, name)(*arguments, **more)

    return call


for _name in ("gather", "scatter", "send", "recv", "recv_anysource", "barrier", "monitored_barrier"):
    setattr(DelegatingGroup, _name, _delegated(_name))
DelegatingGroup.recvAnysource = _delegated("recv_anysource")  # the name that torch 2.15 uses


@cache
def extend_torch() -> None:
    """Make torch's `split_group` and `monitored_barrier` work for groups of this backend too."""
    for function in (_split_group, _monitored_barrier):
        _extend(function.__name__.removeprefix("_"), function)


def _extend(name: str, function: Callable[..., Any]) -> None:
    given = getattr(distributed_c10d, name)

    @wraps(given)
    def call(group: Any = None, *arguments: Any, **more: Any) -> Any:
        group = more.pop("parent_pg", more.pop("group", group)) or dist.group.WORLD
        chosen = function if isinstance(group, DelegatingGroup) else given
        return chosen(group, *arguments, **more)

    for module in (dist, distributed_c10d):
        setattr(module, name, call)


def _split_group(
    parent: Any,
    split_ranks: list[list[int]] | None = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: str | None = None,
    **_: Any,
) -> Any:
    """Create the groups in `split_ranks` (positions in `parent`, no rank in two lists). Return this rank's group, or
    None if it is in no list.
    """
    positions = [rank for ranks in split_ranks or () for rank in ranks]
    members = dist.get_process_group_ranks(parent)
    if not positions or len(set(positions)) < len(positions) or not set(positions) <= set(range(len(members))):
        rule = f"split_ranks must be lists of ranks below {len(members)}, each rank in at most one of them"
        raise ValueError(f"{rule}; got {split_ranks}")
    chosen = [ranks for ranks in split_ranks or () if parent.getRank() in ranks]
    if not chosen:
        return None
    ranks = [members[rank] for rank in chosen[0]]
    more = {"group_desc": group_desc, "use_local_synchronization": True}
    return dist.new_group(ranks, timeout, "chorale", pg_options, **more)


def _monitored_barrier(group: Any, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
    timeout = timeout or distributed_c10d._get_default_timeout("gloo")
    return group.monitored_barrier(timeout, wait_all_ranks=wait_all_ranks)
