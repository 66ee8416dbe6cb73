"""The library of a group: what serves calls that no program serves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from chorale.job.torch.work import ProgramWork
from chorale.runners.engine.library import ReduceOp
from chorale.synth.errors import InvalidInput, Unavailable


@dataclass(frozen=True, slots=True)
class InnerGroup:
    """group: an ordinary process group of torch; backends: what it has for each type of device."""

    group: Any
    backends: dict[str, tuple[Any, Any]]


def inner_group(options: Any, name: str | None, purpose: str = "inner") -> InnerGroup:
    """Return the inner group of a group that is made with `options`.

    purpose: tells apart groups that are made with the same options
    name: of a backend of torch, by default gloo for the processor and the accelerator's own for an accelerator
    """
    names = _names(name)
    group = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
    made = {inner: _backend(inner, options, purpose) for inner in dict.fromkeys(names.values())}
    backends = {device: made[inner] for device, inner in names.items()}
    register_backends(group, backends)
    return InnerGroup(group, backends)


def register_backends(group: Any, backends: dict[str, tuple[Any, Any]]) -> None:
    """Let `group` use `backends`."""
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
        return kind, _numbered(dist.ProcessGroupGloo(*where, timeout=options.timeout))
    if name in ("nccl", "xccl"):
        backend = getattr(dist, f"ProcessGroup{name.upper()}")
        settings = backend.Options()
        settings._timeout = options.timeout
        settings.global_ranks_in_group = options.global_ranks_in_group
        settings.group_name = options.group_id
        return kind, _numbered(backend(*where, settings))
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None or plugin.extended_api:
        raise Unavailable("the inner backend must be one that can be made here", name, "set CHORALE_INNER to another")
    return kind, plugin.creator_fn(*where, options.timeout)


def _numbered(backend: Any) -> Any:
    backend._set_sequence_number_for_group()
    return backend


_KINDS = c10d.ReduceOp.RedOpType
_OPERATIONS = {
    _KINDS.SUM: ReduceOp.SUM,
    _KINDS.AVG: ReduceOp.AVG,
    _KINDS.MIN: ReduceOp.MIN,
    _KINDS.MAX: ReduceOp.MAX,
    _KINDS.PRODUCT: ReduceOp.PROD,
}
"""By torch's; a look-up that costs little, since calls of the library do it too."""


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """collective: as tables name it; root: of broadcast and reduce

    source, target: as `Transport.run` wants them
    operation:      what is done to elements; None for what programs do not have
    results:        what the work's future gives
    finish:         to be called after the run, where the output must be copied
    """

    collective: str
    root: int | None
    source: Any
    target: Any
    operation: ReduceOp | None
    results: Any
    finish: Callable[[], None] | None = None

    @property
    def tensors(self) -> list[Any]:
        """All that a run reads or writes for its caller."""
        lists = [result if isinstance(result, list) else [result] for result in self.results]
        return [self.source, self.target, *(tensor for tensors in lists for tensor in tensors)]

    @property
    def size_bytes(self) -> int:
        """Size of the whole vector."""
        return int(max(self.source.nbytes, self.target.nbytes))


def reduce_operation(operation: Any) -> ReduceOp | None:
    """Return torch's `operation` as the engine has it, None if it does not."""
    return _OPERATIONS.get(operation.op)


def in_place(collective: str, tensor: Any, operation: ReduceOp | None, root: int | None = None) -> ProgramCall:
    """Return the call of allreduce or broadcast on `tensor`."""
    whole = tensor.detach().contiguous()
    return ProgramCall(collective, root, whole, whole, operation, [tensor], _copy_back(tensor, whole))


def reduce_to(tensor: Any, operation: ReduceOp | None, root: int, is_root: bool) -> ProgramCall:
    """Return the call of reduce; what lies in `tensor` stays as it is elsewhere than at the root."""
    whole = tensor.detach().contiguous()
    target = whole if is_root else torch.empty_like(whole)
    return ProgramCall(
        "reduce", root, whole, target, operation, [tensor], _copy_back(tensor, whole) if is_root else None
    )


def into(collective: str, output: Any, source: Any, operation: ReduceOp | None = ReduceOp.SUM) -> ProgramCall:
    """Return the call of a collective that has an input and an output of its own."""
    target = output.detach().contiguous() if output.is_contiguous() else _like(output)
    return ProgramCall(
        collective, None, source.detach().contiguous(), target, operation, [output], _copy_back(output, target)
    )


def gather_list(outputs: Sequence[Any], source: Any) -> ProgramCall:
    """Return the call of allgather into a list of tensors of one size."""
    target = source.new_empty(len(outputs) * source.numel())

    def finish() -> None:
        for output, part in zip(outputs, target.chunk(len(outputs)), strict=True):
            output.copy_(part.view(output.shape))

    return ProgramCall("allgather", None, source.detach().contiguous(), target, ReduceOp.SUM, [list(outputs)], finish)


def scatter_list(output: Any, sources: Sequence[Any], operation: ReduceOp | None) -> ProgramCall:
    """Return the call of reduce_scatter of a list of tensors of one size."""
    source = torch.cat([each.detach().reshape(-1) for each in sources])
    return into("reduce_scatter", output, source, operation)


def as_bytes(call: ProgramCall) -> ProgramCall:
    """Return `call` on the bytes of its elements, for a collective that adds nothing."""
    return replace(call, source=_bytes(call.source), target=_bytes(call.target))


def same_sizes(tensors: Sequence[Any], like: Any) -> bool:
    """Return whether all have as many elements as `like`, of its type."""
    return all(tensor.numel() == like.numel() and tensor.dtype == like.dtype for tensor in tensors)


def _bytes(tensor: Any) -> Any:
    return tensor.view(-1).view(torch.uint8)


def _like(tensor: Any) -> Any:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _copy_back(tensor: Any, whole: Any) -> Callable[[], None] | None:
    if whole.data_ptr() == tensor.data_ptr():
        return None
    return lambda: tensor.detach().copy_(whole.view(tensor.shape))


class InnerCalls:
    """An ordinary process group of torch; what it has no method for here is the group's own."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: Any, options: Any) -> Any:
        """See torch.distributed.all_reduce."""
        call = lambda dense: self._group.allreduce(dense, options)  # noqa: E731
        return self._reduced(call, tensors, tensors, options)

    def allreduce_coalesced(self, tensors: Any, options: Any) -> Any:
        """See torch.distributed.all_reduce_coalesced."""
        call = lambda dense: self._group.allreduce_coalesced(dense, options)  # noqa: E731
        return self._reduced(call, tensors, tensors, options)

    def broadcast(self, tensors: Any, options: Any) -> Any:
        """See torch.distributed.broadcast."""
        return self._copied(lambda dense: self._group.broadcast(dense, options), tensors, tensors, options)

    def reduce(self, tensors: Any, options: Any) -> Any:
        """See torch.distributed.reduce; tensors with gaps stay as they are elsewhere than at the root."""
        changed = tensors if options.rootRank == self._group.rank() else []
        return self._reduced(lambda dense: self._group.reduce(dense, options), tensors, changed, options)

    def reduce_scatter(self, outputs: Any, inputs: Any, *options: Any, **more: Any) -> Any:
        """See torch.distributed.reduce_scatter."""
        call = lambda dense: self._group.reduce_scatter(dense, inputs, *options, **more)  # noqa: E731
        return self._reduced(call, outputs, outputs, *options)

    def _reduce_scatter_base(self, output: Any, source: Any, options: Any) -> Any:
        call = lambda dense: self._group._reduce_scatter_base(dense[0], source, options)  # noqa: E731
        return self._reduced(call, [output], [output], options)

    def alltoall_base(self, output: Any, source: Any, *rest: Any, **more: Any) -> Any:
        """See torch.distributed.all_to_all_single."""
        call = lambda dense: self._group.alltoall_base(*dense, *rest, **more)  # noqa: E731
        return self._copied(call, [output, source], [output], rest[-1] if len(rest) > 2 else None)

    def scatter(self, outputs: Any, inputs: Any, *options: Any, **more: Any) -> Any:
        """See torch.distributed.scatter."""
        call = lambda dense: self._group.scatter(dense, inputs, *options, **more)  # noqa: E731
        return self._copied(call, outputs, outputs, *options)

    def _reduced(self, call: Callable[[Any], Any], tensors: Any, changed: Sequence[Any], options: Any = None) -> Any:
        """Return the work of a reduction; see `_copied`."""
        if _is_usual(tensors):
            return call(tensors)
        is_average = (
            options is not None and _are_integers(tensors) and (reduce_operation(options.reduceOp) is ReduceOp.AVG)
        )
        if not is_average:
            return self._copied(call, tensors, changed, options)
        given = options.reduceOp
        options.reduceOp = c10d.ReduceOp(c10d.ReduceOp.SUM)
        try:
            return self._copied(call, tensors, changed, options, divisor=self._group.size())
        finally:
            options.reduceOp = given

    def _copied(
        self, call: Callable[[Any], Any], tensors: Any, changed: Sequence[Any], options: Any = None, divisor: int = 1
    ) -> Any:
        """Return the work of `call` on dense tensors: `tensors`, or copies of them.

        changed: those into which results are copied, after a division by `divisor`
        """
        if not isinstance(tensors, list | tuple):
            return call(tensors)
        dense = [_dense(tensor) for tensor in tensors]
        outputs = {id(tensor) for tensor in changed}
        copies = [
            (tensor, copy)
            for tensor, copy in zip(tensors, dense, strict=True)
            if id(tensor) in outputs and (copy is not tensor or divisor > 1)
        ]
        work = call(dense)
        if not copies:
            return work

        def finish() -> None:
            for tensor, copy in copies:
                whole = torch.div(copy, divisor, rounding_mode="trunc") if divisor > 1 else copy
                tensor.detach().copy_(whole)

        return _finished(work, finish, tensors, getattr(options, "asyncOp", True))


def _is_usual(tensors: Any) -> bool:
    """Return whether it is one dense tensor of floating point, which every call gets as it is: a look that costs
    little."""
    if not isinstance(tensors, list) or len(tensors) != 1:
        return False
    tensor = tensors[0]
    return tensor.layout is torch.strided and tensor.is_floating_point() and tensor.is_contiguous()


def _are_integers(tensors: Any) -> bool:
    return isinstance(tensors, list | tuple) and all(
        not (tensor.is_floating_point() or tensor.is_complex()) and tensor.device.type == "cpu" for tensor in tensors
    )


def _dense(tensor: Any) -> Any:
    """Return `tensor`, or what has its elements side by side; other groups than those of the processor's memory look
    at that themselves."""
    is_left_alone = tensor.layout is not torch.strided or tensor.is_contiguous() or tensor.device.type != "cpu"
    return tensor if is_left_alone else tensor.detach().contiguous()


def _finished(work: Any, finish: Callable[[], None], results: Any, is_async: bool) -> ProgramWork:
    """Return the work that is over after `work` and then `finish`; it is over now if not `is_async`."""
    whole = ProgramWork(list(results))

    def end() -> None:
        try:
            work.wait()
            with torch.no_grad():
                finish()
        except Exception as error:  # goes to who waits for the work
            whole.finish(error)
        else:
            whole.finish()

    if is_async:
        threading.Thread(target=end, name="chorale-copy-back").start()
    else:
        end()
    return whole


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
