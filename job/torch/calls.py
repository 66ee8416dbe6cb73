"""A call of a collective as programs want it: one tensor in, one out, contiguous, and what is to do afterwards.

What ranks decide here they decide alike: by shapes and types, which a collective has in common, never by strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from chorale.runners.engine.library import ReduceOp

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
