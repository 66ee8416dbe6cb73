"""The inner group, an ordinary torch group that handles all calls for which the table has no program."""

import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, wraps
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
    """The group that handles calls without a program. group: an ordinary torch process group; backends: its backends by
    device type
    """

    group: Any
    backends: dict[str, tuple[Any, Any]]


def inner_group(options: Any, name: str | None, purpose: str = "inner") -> InnerGroup:
    """Create the inner group of the group that is created with `options`.

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
    """Register `backends` (by device type) with `group`; the first one becomes the default."""
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
    """Return the host where all ranks meet, or None if they meet through a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return os.environ.get("MASTER_ADDR") or getattr(store, "host", None)


@cache
def _gloo_devices(names: str, toward: str | None, _: int) -> list[Any]:
    """Return Gloo's devices (each a thread with file descriptors), which all groups of this process share.

    If `names` is empty, the only device is the one from which this host reaches `toward`, where all ranks meet. Gloo's
    default is the address of this host's name, which is often known only on this host.
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
            way.connect(address)  # sends nothing
            own = str(way.getsockname()[0])
    except OSError:
        return None
    return None if ip_address(own.partition("%")[0]).is_loopback else own


def _numbered(backend: Any) -> Any:
    backend._set_sequence_number_for_group()
    return backend


class InnerCalls:
    """Wraps an ordinary torch process group so that its collectives also accept non-contiguous tensors and integer
    averages. Methods that are not defined here are the group's own.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        call = lambda dense: self._group.allreduce(dense, options)  # noqa: E731
        return self._reduced(call, tensors, tensors, options)

    def allreduce_coalesced(self, tensors: Any, options: Any) -> Any:
        call = lambda dense: self._group.allreduce_coalesced(dense, options)  # noqa: E731
        return self._reduced(call, tensors, tensors, options)

    def broadcast(self, tensors: Any, options: Any) -> Any:
        return self._copied(lambda dense: self._group.broadcast(dense, options), tensors, tensors, options)

    def reduce(self, tensors: Any, options: Any) -> Any:
        """See torch.distributed.reduce. Non-contiguous tensors change only on the root."""
        changed = tensors if options.rootRank == self._group.rank() else []
        return self._reduced(lambda dense: self._group.reduce(dense, options), tensors, changed, options)

    def reduce_scatter(self, outputs: Any, inputs: Any, *options: Any, **more: Any) -> Any:
        call = lambda dense: self._group.reduce_scatter(dense, inputs, *options, **more)  # noqa: E731
        return self._reduced(call, outputs, outputs, *options)

    def _reduce_scatter_base(self, output: Any, source: Any, options: Any) -> Any:
        call = lambda dense: self._group._reduce_scatter_base(dense[0], source, options)  # noqa: E731
        return self._reduced(call, [output], [output], options)

    def alltoall_base(self, output: Any, source: Any, *rest: Any, **more: Any) -> Any:
        call = lambda dense: self._group.alltoall_base(*dense, *rest, **more)  # noqa: E731
        return self._copied(call, [output, source], [output], rest[-1] if len(rest) > 2 else None)

    def scatter(self, outputs: Any, inputs: Any, *options: Any, **more: Any) -> Any:
        call = lambda dense: self._group.scatter(dense, inputs, *options, **more)  # noqa: E731
        return self._copied(call, outputs, outputs, *options)

    def _reduced(self, call: Callable[[Any], Any], tensors: Any, changed: Sequence[Any], options: Any = None) -> Any:
        """Call a reduction as `_copied` does. Compute an average of integers as a sum that is divided afterwards."""
        each = tensors if isinstance(tensors, list | tuple) else ()
        is_single = len(each) == 1 and each[0].layout is torch.strided
        if is_single and each[0].is_floating_point() and each[0].is_contiguous():  # the usual case
            return call(tensors)
        given = None if options is None else options.reduceOp
        are_integers = bool(each) and all(
            not (one.is_floating_point() or one.is_complex() or one.dtype is torch.bool) and one.device.type == "cpu"
            for one in each
        )
        if given is None or not are_integers or reduce_operation(given) is not ReduceOp.AVG:
            return self._copied(call, tensors, changed, options)
        options.reduceOp = c10d.ReduceOp(c10d.ReduceOp.SUM)
        try:
            return self._copied(call, tensors, changed, options, divisor=self._group.size())
        finally:
            options.reduceOp = given

    def _copied(
        self, call: Callable[[Any], Any], tensors: Any, changed: Sequence[Any], options: Any = None, divisor: int = 1
    ) -> Any:
        """Call `call` with `tensors`, or with contiguous copies of them; return its work.

        changed: tensors into which results are copied back, after a division by `divisor`
        """
        if not isinstance(tensors, list | tuple):
            return call(tensors)
        dense = [  # only tensors in CPU memory need a contiguous copy
            tensor.detach().contiguous()
            if tensor.layout is torch.strided and not tensor.is_contiguous() and tensor.device.type == "cpu"
            else tensor
            for tensor in tensors
        ]
        outputs = {id(tensor) for tensor in changed}
        copies = [
            (tensor, copy)
            for tensor, copy in zip(tensors, dense, strict=True)
            if id(tensor) in outputs and (copy is not tensor or divisor > 1)
        ]
        work = call(dense)
        if not copies:
            return work

        whole = ProgramWork(list(tensors))

        def end() -> None:
            try:
                work.wait()
                with torch.no_grad():
                    for tensor, copy in copies:
                        result = torch.div(copy, divisor, rounding_mode="trunc") if divisor > 1 else copy
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


class DelegatingGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group in Python that passes messages, barriers, gather and scatter on to the inner group."""

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
    """Make torch's `split_group` and `monitored_barrier` work for groups of this backend; others work as before."""
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
        rule = f"split_ranks must be lists of ranks below {len(members)}, each rank in one of them at most"
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
