"""Defines Chorale's process group for torch, which turns each call into a program run or a call of the inner group.

torch calls a Python group through a C++ class. If the Python class does not define a method, the C++ class runs its own
version of the method, which does not release the GIL. So all methods of the C++ class are defined here; their names
resemble those of the functions in torch.distributed. Some methods have two names because torch 2.13 renamed them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from chorale.job import current_report
from chorale.job.table.layout import Fallback
from chorale.job.torch.inner import DelegatingGroup, InnerGroup
from chorale.job.torch.programs import (
    GroupPrograms,
    ProgramCall,
    gather_list,
    in_place,
    into,
    padded,
    reduce_operation,
    reduce_to,
    same_sizes,
    scatter_list,
    size_of,
)
from chorale.job.torch.rails import planned_exchange
from chorale.job.torch.transport import is_captured
from chorale.job.torch.work import SeveralWorks
from chorale.runners.engine.library import ReduceOp

_MOST_PADDING = 2
"""Shards of different sizes are padded to run a program only if padding increases the bytes by at most this factor."""


class ChoraleGroup(DelegatingGroup):
    """A process group that runs a table's programs and passes all other calls to an inner group."""

    def __init__(
        self, rank: int, ranks: int, inner: InnerGroup, programs: GroupPrograms, at_end: Callable[[], None]
    ) -> None:
        super().__init__(rank, ranks, inner)
        self._programs = programs
        self._at_end = at_end

    def plan_tensor(self, elements: int, dtype: Any) -> Any:
        """Return a tensor of zeros that plans access directly, without copies. All ranks must call this together. If
        the group runs no plans, return an ordinary tensor, on the accelerator if there is one."""
        plans = self._programs.loaded.plans
        if not isinstance(plans, Fallback):
            return plans.empty(elements, dtype)
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return torch.zeros(elements, dtype=dtype, device=device)

    def allreduce(self, tensors: Any, opts: Any = None, **more: Any) -> Any:
        tensors, options = _usual(tensors, opts, more, c10d.AllreduceOptions, "reduceOp")
        tensors, options, operation = _with_operation(tensors, options, in_place=True)
        if len(tensors) == 1 and (work := self._one("allreduce", None, tensors[0], operation, options)) is not None:
            return work
        return self._inner.allreduce(tensors, options)

    def broadcast(self, tensors: Any, opts: Any = None, **more: Any) -> Any:
        tensors, options = _usual(tensors, opts, more, c10d.BroadcastOptions, "rootRank")
        root = options.rootRank
        if len(tensors) == 1 and (work := self._one("broadcast", root, tensors[0], ReduceOp.SUM, options)) is not None:
            return work
        return self._inner.broadcast(tensors, options)

    def reduce(self, tensors: Any, opts: Any = None, **more: Any) -> Any:
        tensors, options = _usual(tensors, opts, more, c10d.ReduceOptions, "rootRank")
        root = options.rootRank
        tensors, options, operation = _with_operation(tensors, options, in_place=root == self._at)
        if len(tensors) == 1:
            tensor = tensors[0]
            make = lambda: reduce_to(tensor, operation, root, root == self._at)  # noqa: E731
            if (work := self._programs.serve("reduce", root, tensor, None, operation, make, options)) is not None:
                return work
        return self._inner.reduce(tensors, options)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> Any:
        if _plain(outputs, inputs) and len(inputs) == 1 and len(outputs[0]) == self._ranks:
            parts, source = outputs[0], inputs[0]
            if not same_sizes(parts, source):
                if (work := self._gather_uneven(parts, source, opts)) is not None:
                    return work
            elif (work := self._gather(lambda: gather_list(parts, source), source, opts)) is not None:
                return work
        return self._inner.allgather(outputs, inputs, *([opts] if opts else []), **more)

    def _gather_uneven(self, parts: Sequence[Any], source: Any, options: Any) -> Any:
        """Start an allgather of tensors of different sizes (all ranks know the sizes): run a program with padded shards
        or, if that is not possible, one broadcast of the inner group per rank. Return the `Work`; None if both fail.
        """
        sizes = [part.numel() for part in parts]
        size_bytes, largest = sum(map(size_of, parts)), max(sizes)
        is_right = bool(all(part.dtype == source.dtype for part in parts)) and sizes[self._at] == source.numel()
        if is_right and self._programs.has("allgather") and largest * self._ranks <= _MOST_PADDING * sum(sizes):
            make = lambda: padded("allgather", source, [source.numel()], parts, [list(parts)], largest)  # noqa: E731
            whole_bytes = largest * self._ranks * source.element_size()
            work = self._programs.serve("allgather", None, source, whole_bytes, ReduceOp.SUM, make, options)
            if work is not None:
                return work
        else:
            self._refuse(Fallback.SHAPE, "allgather", source, size_bytes)
        if not is_right or source.device.type != "cpu":
            return None
        parts[self._at].detach().copy_(source.view(parts[self._at].shape))
        works = []
        for root, part in enumerate(parts):
            given = c10d.BroadcastOptions()
            given.rootRank = root
            given.asyncOp = getattr(options, "asyncOp", True)
            if part.numel():
                works.append(self._inner.broadcast([part], given))
        return SeveralWorks(works, [list(parts)])

    def all_gather_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        if output.numel() != source.numel() * self._ranks or output.dtype != source.dtype:
            self._refuse(Fallback.SHAPE, "allgather", output)
        elif (work := self._gather(lambda: into("allgather", output, source), source, opts)) is not None:
            return work
        return self._inner._allgather_base(output, source, *([opts] if opts else []))

    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self.all_gather_single(output, source, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> Any:
        if _plain(inputs, outputs) and len(outputs) == 1 and len(inputs[0]) == self._ranks and not more:
            (parts,), opts, operation = _with_operation([inputs[0]], opts)
            output, inputs = outputs[0], [parts]
            if not same_sizes(parts, output):
                self._refuse(Fallback.SHAPE, "reduce_scatter", output, sum(map(size_of, parts)))
            else:
                make = lambda: scatter_list(output, parts, operation)  # noqa: E731
                if (work := self._scatter(make, output, operation, opts)) is not None:
                    return work
        return self._inner.reduce_scatter(outputs, inputs, *([opts] if opts else []), **more)

    def reduce_scatter_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        (source,), opts, operation = _with_operation([source], opts)
        if output.numel() * self._ranks != source.numel() or output.dtype != source.dtype:
            self._refuse(Fallback.SHAPE, "reduce_scatter", source)
        else:
            make = lambda: into("reduce_scatter", output, source, operation)  # noqa: E731
            if (work := self._scatter(make, output, operation, opts)) is not None:
                return work
        return self._inner._reduce_scatter_base(output, source, opts or c10d.ReduceScatterOptions())

    def _reduce_scatter_base(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self.reduce_scatter_single(output, source, opts)

    def all_to_all_single(
        self, output: Any, source: Any, output_splits: Any, input_splits: Any, opts: Any = None, **more: Any
    ) -> Any:
        """See torch.distributed.all_to_all_single. Shards may differ in size if the call passes split sizes."""
        even = not output_splits and not input_splits and output.numel() == source.numel()
        if output_splits or input_splits:
            work = self._alltoall_uneven(output, source, output_splits, input_splits, opts)
        elif not even or output.dtype != source.dtype or (source.dim() and source.shape[0] % self._ranks):
            work = self._refuse(Fallback.SHAPE, "alltoall", source)
        else:
            make = lambda: into("alltoall", output, source)  # noqa: E731
            work = self._programs.serve("alltoall", None, source, None, ReduceOp.SUM, make, opts)
        if work is not None:
            return work
        return self._inner.alltoall_base(output, source, output_splits, input_splits, *([opts] if opts else []), **more)

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """See torch.distributed.all_to_all. The shards are separate tensors; gloo alone cannot handle them."""
        if inputs[0].device.type != "cpu" and not self._programs.has("alltoall"):
            return self._inner.alltoall(outputs, inputs, *([opts] if opts else []))
        source = torch.cat([part.detach().reshape(-1) for part in inputs])
        output = source.new_empty(sum(part.numel() for part in outputs))
        receives = [part.numel() for part in outputs]
        self.all_to_all_single(output, source, receives, [part.numel() for part in inputs], opts).wait()
        with torch.no_grad():
            for part, come in zip(outputs, output.split(receives), strict=True):
                part.copy_(come.view(part.shape))
        return SeveralWorks([], list(outputs))

    def _alltoall_uneven(self, output: Any, source: Any, receives: Any, sends: Any, options: Any) -> Any:
        """Start an all-to-all of shards with different sizes: with a rail plan for these sizes, or with a program and
        padded shards. Return its `Work`, or None if the inner group must handle the call.

        If a rail plan or a program might handle the call, all ranks first exchange the sizes of their shards.
        """
        network = self._programs.loaded.network
        if (
            (network is None and not self._programs.has("alltoall"))
            or is_captured(source.device)
            or output.dtype != source.dtype
        ):
            return self._refuse(Fallback.SHAPE, "alltoall", source)
        given, wanted = _shard_sizes(source, sends, self._ranks), _shard_sizes(output, receives, self._ranks)
        start = perf_counter()
        rows = torch.empty(2 * self._ranks * self._ranks, dtype=torch.int64)
        mine = torch.tensor([*given, *wanted], dtype=torch.int64)
        self._inner._allgather_base(rows, mine, c10d.AllgatherOptions()).wait()
        current_report().count_exchange(rows.nbytes, perf_counter() - start)
        sizes, expected = rows.view(self._ranks, 2, self._ranks).unbind(1)
        sizes, do_agree = sizes.contiguous(), torch.equal(sizes, expected.T)
        whole = output.detach().contiguous()
        if network is not None and do_agree and source.layout is torch.strided:
            start = perf_counter()
            plan = planned_exchange(network, sizes.numpy(), source.element_size())
            if plan is not None:
                flat = source.detach().reshape(-1)
                with torch.no_grad():
                    plan.run(self._inner, self._at, self._ranks, flat, whole.view(-1), options)
                    output.detach().copy_(whole)
                seconds = perf_counter() - start
                current_report().count_program("plan for given sizes", "alltoall", source.nbytes, seconds, "library")
                return SeveralWorks([], [output])
        largest, total = int(sizes.max()), int(sizes.sum())
        if not do_agree or not self._programs.has("alltoall") or largest * self._ranks**2 > _MOST_PADDING * total:
            return self._refuse(Fallback.SHAPE, "alltoall", source)

        def make() -> ProgramCall:
            call = padded("alltoall", source, given, whole.view(-1).split(wanted), [output], largest)
            return call if whole.data_ptr() == output.data_ptr() else replace(call, finish=lambda: copied(call))

        def copied(call: ProgramCall) -> None:
            assert call.finish is not None
            call.finish()
            output.detach().copy_(whole)

        size_bytes = largest * self._ranks * source.element_size()
        return self._programs.serve("alltoall", None, source, size_bytes, ReduceOp.SUM, make, options)

    def alltoall_base(self, *arguments: Any, **more: Any) -> Any:
        return self.all_to_all_single(*arguments, **more)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        options = opts or c10d.AllreduceCoalescedOptions()
        tensors, options, operation = _with_operation(tensors, options, in_place=True)
        works = [self._one("allreduce", None, tensor, operation) for tensor in tensors]
        if rest := [tensor for work, tensor in zip(works, tensors, strict=True) if work is None]:
            works.append(self._inner.allreduce_coalesced(rest, options))
        works = [work for work in works if work is not None]
        return works[0] if len(works) == 1 else SeveralWorks(works, tensors)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._each(self.all_gather_single, outputs, inputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """See torch.distributed.all_gather_coalesced. `outputs` has a list for each rank, with one tensor per input."""
        lists = [[of_rank[index] for of_rank in outputs] for index in range(len(inputs))]
        works = [self.allgather([parts], [source], opts) for parts, source in zip(lists, inputs, strict=True)]
        return SeveralWorks(works, outputs)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._each(self.reduce_scatter_single, outputs, inputs, opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def shutdown(self) -> None:
        """Finish all started calls, stop the threads and close the connections."""
        self._programs.end()
        self._at_end()
        self._inner.shutdown()

    def abort(self) -> None:
        """Stop the threads and close the connections; calls that have not started fail."""
        self._programs.stop("the group was aborted")
        self._programs.end()
        self._at_end()
        self._inner.abort()

    def set_timeout(self, timeout: Any) -> None:
        self._programs.limit_s = timeout.total_seconds()
        if self._programs.reload is not None:
            self._programs.reload.set_limit(timeout.total_seconds())
        self._inner.set_timeout(timeout)

    def _one(
        self, collective: str, root: int | None, tensor: Any, operation: ReduceOp | None, options: Any = None
    ) -> Any:
        make = lambda: in_place(collective, tensor, operation, root)  # noqa: E731
        return self._programs.serve(collective, root, tensor, None, operation, make, options)

    def _gather(self, make: Callable[[], ProgramCall], source: Any, options: Any) -> Any:
        size_bytes = size_of(source) * self._ranks
        return self._programs.serve("allgather", None, source, size_bytes, ReduceOp.SUM, make, options)

    def _scatter(self, make: Callable[[], ProgramCall], output: Any, operation: ReduceOp | None, options: Any) -> Any:
        size_bytes = size_of(output) * self._ranks
        return self._programs.serve("reduce_scatter", None, output, size_bytes, operation, make, options)

    def _refuse(self, reason: Fallback, collective: str, tensor: Any, size_bytes: int | None = None) -> Any:
        """Count a call that the inner group must handle; return None. `size_bytes` defaults to the size of `tensor`."""
        self._programs.fall_back(
            reason, collective, tensor.dtype, size_of(tensor) if size_bytes is None else size_bytes
        )
        return None

    def _each(self, call: Callable[..., Any], outputs: Any, inputs: Any, options: Any) -> Any:
        works = [call(output, source, options) for output, source in zip(outputs, inputs, strict=True)]
        return works[0] if len(works) == 1 else SeveralWorks(works, outputs)


def _plain(lists: Any, tensors: Any) -> bool:
    """Return whether `tensors` is a list and `lists` a list of exactly one list, as torch's functions pass them."""
    return isinstance(tensors, list) and isinstance(lists, list) and len(lists) == 1 and isinstance(lists[0], list)


def _with_operation(tensors: Any, options: Any, in_place: bool = False) -> tuple[Any, Any, ReduceOp | None]:
    """Return the tensors to reduce, the options, and the operation that `options` names (by default a sum).

    For PREMUL_SUM, the tensors are multiplied by its factor, and the operation becomes a sum.
    """
    operation = ReduceOp.SUM if options is None else reduce_operation(options.reduceOp)
    if operation is not None or options.reduceOp.op != c10d.ReduceOp.RedOpType.PREMUL_SUM:
        return tensors, options, operation
    factor = options.reduceOp.__getstate__()[1]
    factor = factor.view(()) if isinstance(factor, torch.Tensor) else factor
    plain = type(options)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(options, name):
            setattr(plain, name, getattr(options, name))
    plain.reduceOp = c10d.ReduceOp(c10d.ReduceOp.SUM)

    def times(tensor: Any) -> Any:
        if isinstance(tensor, list | tuple):
            return [times(each) for each in tensor]
        with torch.no_grad():
            return tensor.mul_(factor) if in_place else tensor * factor

    return times(tensors), plain, ReduceOp.SUM


def _shard_sizes(whole: Any, splits: Any, ranks: int) -> list[int]:
    """Return each shard's number of elements. `splits` lists the shards' row counts; if empty, shards are equal."""
    rows = whole.shape[0] if whole.dim() else 1
    each = whole.numel() // rows if rows else 0
    return [count * each for count in (splits or [rows // ranks] * ranks)]


def _usual(tensors: Any, options: Any, more: dict[str, Any], kind: Any, second: str) -> tuple[Any, Any]:
    """Return the tensors of a call as a list, and its options as an object. Both may be passed in torch's short forms.

    options: an options object of class `kind`, or only the value of its field `second`
    more:    values of further fields, by field name
    """
    tensors = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    if isinstance(options, kind) and not more:
        return tensors, options
    made = options if isinstance(options, kind) else kind()
    if options is not None and options is not made:
        setattr(made, second, options)
    names = {"op": "reduceOp", "root": "rootRank"}
    for name, value in more.items():
        if name != "opts" and value is not None:
            setattr(made, names.get(name, name), value)
    return tensors, made
