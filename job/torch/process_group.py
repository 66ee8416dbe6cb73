"""The process group: what torch calls, sorted into runs of programs and calls of the inner group.

torch reaches a group in Python through a C++ class that calls a method of its own while it holds Python's lock where
Python has none, so all methods of that class are here, for the functions of torch.distributed of nearly
the same names. Some have two names: torch renamed them in 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._C import _distributed_c10d as c10d

from chorale.job.table.lookup import Fallback
from chorale.job.torch.inner import DelegatingGroup, InnerGroup
from chorale.job.torch.programs import (
    GroupPrograms,
    ProgramCall,
    gather_list,
    in_place,
    into,
    reduce_operation,
    reduce_to,
    same_sizes,
    scatter_list,
)
from chorale.job.torch.work import SeveralWorks
from chorale.runners.engine.library import ReduceOp


class ChoraleGroup(DelegatingGroup):
    """A process group that runs the programs of a table, and leaves all else to an inner group."""

    def __init__(
        self, rank: int, ranks: int, inner: InnerGroup, programs: GroupPrograms, at_end: Callable[[], None]
    ) -> None:
        """at_end: called when the group is shut down."""
        super().__init__(rank, ranks, inner)
        self._programs = programs
        self._at_end = at_end

    def allreduce(self, tensors: Any, opts: Any = None, **more: Any) -> Any:
        tensors, options = _usual(tensors, opts, more, c10d.AllreduceOptions, "reduceOp")
        operation = reduce_operation(options.reduceOp)
        if len(tensors) == 1:
            work = self._one("allreduce", None, tensors[0], operation, options)
            if work is not None:
                return work
        return self._inner.allreduce(tensors, options)

    def broadcast(self, tensors: Any, opts: Any = None, **more: Any) -> Any:
        tensors, options = _usual(tensors, opts, more, c10d.BroadcastOptions, "rootRank")
        if len(tensors) == 1:
            work = self._one("broadcast", options.rootRank, tensors[0], ReduceOp.SUM, options)
            if work is not None:
                return work
        return self._inner.broadcast(tensors, options)

    def reduce(self, tensors: Any, opts: Any = None, **more: Any) -> Any:
        tensors, options = _usual(tensors, opts, more, c10d.ReduceOptions, "rootRank")
        operation, root = reduce_operation(options.reduceOp), options.rootRank
        if len(tensors) == 1:
            tensor = tensors[0]
            make = lambda: reduce_to(tensor, operation, root, root == self._at)  # noqa: E731
            work = self._start("reduce", root, tensor, operation, options, make)
            if work is not None:
                return work
        return self._inner.reduce(tensors, options)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> Any:
        if _plain(outputs, inputs) and len(inputs) == 1 and len(outputs[0]) == self._ranks:
            parts, source = outputs[0], inputs[0]
            if not same_sizes(parts, source):
                self._refuse(Fallback.SHAPE, "allgather", source, sum(part.nbytes for part in parts))
            elif (work := self._gather(lambda: gather_list(parts, source), source, opts)) is not None:
                return work
        return self._inner.allgather(outputs, inputs, *_given(opts), **more)

    def all_gather_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        if output.numel() != source.numel() * self._ranks or output.dtype != source.dtype:
            self._refuse(Fallback.SHAPE, "allgather", output, output.nbytes)
        elif (work := self._gather(lambda: into("allgather", output, source), source, opts)) is not None:
            return work
        return self._inner._allgather_base(output, source, *_given(opts))

    def _allgather_base(self, output: Any, source: Any, opts: Any = None) -> Any:
        return self.all_gather_single(output, source, opts)

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None, **more: Any) -> Any:
        if _plain(inputs, outputs) and len(outputs) == 1 and len(inputs[0]) == self._ranks and not more:
            output, parts = outputs[0], inputs[0]
            operation = _operation(opts)
            if not same_sizes(parts, output):
                self._refuse(Fallback.SHAPE, "reduce_scatter", output, sum(part.nbytes for part in parts))
            else:
                make = lambda: scatter_list(output, parts, operation)  # noqa: E731
                if (work := self._scatter(make, output, operation, opts)) is not None:
                    return work
        return self._inner.reduce_scatter(outputs, inputs, *_given(opts), **more)

    def reduce_scatter_single(self, output: Any, source: Any, opts: Any = None) -> Any:
        operation = _operation(opts)
        if output.numel() * self._ranks != source.numel() or output.dtype != source.dtype:
            self._refuse(Fallback.SHAPE, "reduce_scatter", source, source.nbytes)
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
        """See torch.distributed.all_to_all_single. A call with splits is the inner group's: that all of them are equal
        is not to be seen from one rank."""
        even = not output_splits and not input_splits and output.numel() == source.numel()
        if not even or output.dtype != source.dtype or (source.dim() and source.shape[0] % self._ranks):
            self._refuse(Fallback.SHAPE, "alltoall", source, source.nbytes)
        else:
            make = lambda: into("alltoall", output, source)  # noqa: E731
            if (work := self._start("alltoall", None, source, ReduceOp.SUM, opts, make)) is not None:
                return work
        return self._inner.alltoall_base(output, source, output_splits, input_splits, *_given(opts), **more)

    def alltoall_base(self, *arguments: Any, **more: Any) -> Any:
        return self.all_to_all_single(*arguments, **more)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        options = opts or c10d.AllreduceCoalescedOptions()
        operation = reduce_operation(options.reduceOp)
        works = [self._one("allreduce", None, tensor, operation) for tensor in tensors]
        rest = [tensor for work, tensor in zip(works, tensors, strict=True) if work is None]
        return _together(works, rest and self._inner.allreduce_coalesced(rest, options), tensors)

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._each(self.all_gather_single, outputs, inputs, opts)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._each(self.all_gather_single, outputs, inputs, opts)

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """See torch.distributed.all_gather_coalesced: a list of a tensor for each input from each rank."""
        lists = [[of_rank[index] for of_rank in outputs] for index in range(len(inputs))]
        works = [self.allgather([parts], [source], opts) for parts, source in zip(lists, inputs, strict=True)]
        return SeveralWorks(works, outputs)

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._each(self.reduce_scatter_single, outputs, inputs, opts)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        return self._each(self.reduce_scatter_single, outputs, inputs, opts)

    def shutdown(self) -> None:
        """Finish what was begun, and end threads and connections."""
        self._programs.end()
        self._at_end()
        self._inner.shutdown()

    def abort(self) -> None:
        """End threads and connections; work that did not begin fails."""
        self._programs.stop("the group was aborted")
        self._programs.end()
        self._at_end()
        self._inner.abort()

    def set_timeout(self, timeout: Any) -> None:
        """Set how long a call may take from now on."""
        self._programs.limit_s = timeout.total_seconds()
        if self._programs.reload is not None:
            self._programs.reload.set_limit(timeout.total_seconds())
        self._inner.set_timeout(timeout)

    def _one(
        self, collective: str, root: int | None, tensor: Any, operation: ReduceOp | None, options: Any = None
    ) -> Any:
        make = lambda: in_place(collective, tensor, operation, root)  # noqa: E731
        return self._start(collective, root, tensor, operation, options, make)

    def _gather(self, make: Callable[[], ProgramCall], source: Any, options: Any) -> Any:
        size_bytes = source.nbytes * self._ranks
        return self._start("allgather", None, source, ReduceOp.SUM, options, make, size_bytes)

    def _scatter(self, make: Callable[[], ProgramCall], output: Any, operation: ReduceOp | None, options: Any) -> Any:
        size_bytes = output.nbytes * self._ranks
        return self._start("reduce_scatter", None, output, operation, options, make, size_bytes)

    def _start(
        self,
        collective: str,
        root: int | None,
        tensor: Any,
        operation: ReduceOp | None,
        options: Any,
        make: Callable[[], ProgramCall],
        size_bytes: int | None = None,
    ) -> Any:
        """Return the work of a program, None if the inner group is to do it."""
        size_bytes = tensor.nbytes if size_bytes is None else size_bytes
        timeout = getattr(options, "timeout", None)
        limit_s = timeout.total_seconds() if timeout else 0.0  # below 0 where none is set
        wait = not getattr(options, "asyncOp", True)
        most_s = limit_s if limit_s > 0 else None
        return self._programs.serve(collective, root, tensor, size_bytes, operation, make, wait, most_s)

    def _refuse(self, reason: Fallback, collective: str, tensor: Any, size_bytes: int) -> None:
        self._programs.fall_back(reason, collective, tensor.dtype, size_bytes)

    def _each(self, call: Callable[..., Any], outputs: Any, inputs: Any, options: Any) -> Any:
        works = [call(output, source, options) for output, source in zip(outputs, inputs, strict=True)]
        return works[0] if len(works) == 1 else SeveralWorks(works, outputs)


def _plain(lists: Any, tensors: Any) -> bool:
    """Return whether the arguments are a list of lists and a list, as torch's own functions give them."""
    return isinstance(tensors, list) and isinstance(lists, list) and len(lists) == 1 and isinstance(lists[0], list)


def _given(options: Any) -> tuple[Any, ...]:
    return () if options is None else (options,)


def _operation(options: Any) -> ReduceOp | None:
    return ReduceOp.SUM if options is None else reduce_operation(options.reduceOp)


def _usual(tensors: Any, options: Any, more: dict[str, Any], kind: Any, second: str) -> tuple[Any, Any]:
    """Return a list of tensors and options of `kind`, from what the short forms of a method take: a tensor, what
    options call `second`, and options by their names."""
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


def _together(works: Sequence[Any], inner: Any, results: Any) -> Any:
    """Return the one work there is, or one for all."""
    all_works = [work for work in works if work is not None] + ([inner] if inner else [])
    return all_works[0] if len(all_works) == 1 else SeveralWorks(all_works, results)
