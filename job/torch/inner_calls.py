"""The collectives of an inner group on tensors in the processor's memory, where Gloo does less than torch promises.

Gloo takes the memory of tensors that have gaps between their elements, or of which the strides differ between ranks, as
if they were dense: it gets copies of those, and what comes out is copied back. It has no averages of integers: they are
sums that are divided and cut off, as programs and NCCL have them. So a call gives the same whoever serves it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from chorale.job.torch.calls import reduce_operation
from chorale.job.torch.work import ProgramWork
from chorale.runners.engine.library import ReduceOp


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
        is_average = options is not None and _are_integers(tensors) and _is_average(options)
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


def _is_average(options: Any) -> bool:
    return reduce_operation(options.reduceOp) is ReduceOp.AVG


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
