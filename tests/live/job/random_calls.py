"""Random collective calls, the same on all ranks: made by a group of the backend under test, then by gloo."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8")
OPERATIONS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT")
FORMS = (
    *("all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor"),
    *("reduce_scatter", "reduce_scatter_tensor", "all_to_all_single"),
)
COUNTS = (0, 1, 2, 3, 5, 7, 8, 13, 31, 64, 127, 1009, 4096, 4099, 20011)
LARGEST = 60_000
"""Elements of a vector that is cut."""
LARGEST_BYTES = 150_000
"""Longer vectors are gloo's."""
_GUARD = 77


@dataclass(frozen=True, slots=True)
class Call:
    """form:     name of a function of torch.distributed
    group:    number of the group
    count:    elements of what each rank gives or gets: of a shard, where the vector is cut
    layout:   "whole", a tensor by itself; "view", inside of another; "strided", every second element of another
    seed:     of the values of all ranks
    """

    form: str
    group: int
    members: tuple[int, ...]
    dtype: str
    operation: str
    count: int
    root: int
    layout: str
    is_async: bool
    seed: int

    @property
    def adds(self) -> bool:
        return "reduce" in self.form


def random_call(draw: random.Random, groups: Sequence[tuple[int, ...]]) -> Call:
    """Return the next call that `draw` gives on one of `groups`."""
    group = draw.randrange(len(groups))
    members, form = groups[group], draw.choice(FORMS)
    count = draw.choice(COUNTS) if draw.random() < 0.5 else int(2 ** draw.uniform(0, 15))
    if form not in ("all_reduce", "broadcast", "reduce"):
        count = min(count, LARGEST // len(members))
    return Call(
        form, group, members, draw.choice(TYPES), draw.choice(OPERATIONS), count, draw.choice(members),
        draw.choice(("whole", "whole", "view", "view", "strided")), draw.random() < 0.6, draw.randrange(1 << 30),
    )  # fmt: skip


class Run:
    """The part of one rank in a call: its tensors, and what it starts. `finish` says what is wrong."""

    def __init__(self, call: Call, rank: int) -> None:
        self._call = call
        self._at = call.members.index(rank)
        self._rank = rank
        self._ranks = len(call.members)
        self._given = _values(call, rank, call.count * (self._ranks if _is_cut(call) else 1))
        outputs = call.count * (self._ranks if "gather" in call.form or "all_to_all" in call.form else 1)
        self._buffer = _Guarded(call, outputs)
        self._source = _Guarded(call, len(self._given))
        self._source.tensor.copy_(self._given)
        self._work: Any = None

    def start(self, group: Any) -> None:
        """Make the call on the group under test; a call that is not asynchronous is over then."""
        operation = getattr(dist.ReduceOp, self._call.operation)
        if _is_in_place(self._call):
            self._buffer.tensor.copy_(self._given)
        self._work = _made(self._call, self._source.tensor, self._buffer.tensor, group, operation, self._call.is_async)

    def wait(self) -> None:
        if self._work is not None:
            self._work.wait()

    def complaints(self, reference: Any) -> list[str]:
        """Return what is wrong, by the results of the group `reference`, with which all ranks make this call."""
        wanted = self._reference(reference)
        found = []
        if wanted is not None and not torch.equal(wanted, self._buffer.tensor):
            places = (wanted != self._buffer.tensor).nonzero().flatten()
            first = int(places[0])
            found.append(
                f"{len(places)} of {len(wanted)} elements differ, the first is {first}: "
                f"{self._buffer.tensor[first]} instead of {wanted[first]}"
            )
        if not torch.equal(self._source.tensor, self._given):
            found.append("the input was changed")
        if not (self._buffer.has_guards() and self._source.has_guards()):
            found.append("something was written around tensors")
        return found

    def _reference(self, group: Any) -> Any:
        call = self._call
        averages = call.operation == "AVG" and call.adds
        source, output = self._given.clone(), torch.zeros(len(self._buffer.tensor), dtype=self._given.dtype)
        if _is_in_place(call):
            output.copy_(self._given)
        operation = dist.ReduceOp.SUM if averages else getattr(dist.ReduceOp, call.operation)
        if call.count:
            _made(call, source, output, group, operation, False)
        if call.form == "reduce" and self._rank != call.root:
            return None
        if averages:
            return torch.div(output, self._ranks, rounding_mode=None if output.is_floating_point() else "trunc")
        return output


class _Guarded:
    """A tensor in memory with guards around and, where it is strided, between its elements."""

    def __init__(self, call: Call, count: int) -> None:
        step = 2 if call.layout == "strided" else 1
        shift = 0 if call.layout == "whole" else 1 + call.seed % 5
        self._raw = torch.full((shift + count * step + shift,), _GUARD, dtype=getattr(torch, call.dtype))
        self.tensor = self._raw[shift : shift + count * step : step]
        self._rest = torch.ones(len(self._raw), dtype=torch.bool)
        self._rest[shift : shift + count * step : step] = False

    def has_guards(self) -> bool:
        return bool((self._raw[self._rest] == _GUARD).all())


def _is_cut(call: Call) -> bool:
    return "scatter" in call.form or "all_to_all" in call.form


def _is_in_place(call: Call) -> bool:
    return call.form in ("all_reduce", "broadcast", "reduce")


def _values(call: Call, rank: int, count: int) -> Any:
    """Return values of which every order of additions gives the same: integers wrap, small floats are exact."""
    generator = torch.Generator().manual_seed(call.seed * 64 + rank)
    dtype = getattr(torch, call.dtype)
    if dtype.is_floating_point and call.operation == "PRODUCT":
        return torch.tensor([-1.0, 1.0, 2.0, 0.5])[torch.randint(0, 4, (count,), generator=generator)].to(dtype)
    low = 0 if call.dtype == "uint8" else -15
    return torch.randint(low, 16, (count,), generator=generator).to(dtype)


def _made(call: Call, source: Any, output: Any, group: Any, operation: Any, is_async: bool) -> Any:
    ranks = len(call.members)
    more = {"group": group, "async_op": is_async}
    forms: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(output, operation, **more),
        "broadcast": lambda: dist.broadcast(output, call.root, **more),
        "reduce": lambda: dist.reduce(output, call.root, operation, **more),
        "all_gather": lambda: dist.all_gather(_shards(output, ranks), source, **more),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(output, source, **more),
        "reduce_scatter": lambda: dist.reduce_scatter(output, _shards(source, ranks), operation, **more),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(output, source, operation, **more),
        "all_to_all_single": lambda: dist.all_to_all_single(output, source, **more),
    }
    return forms[call.form]()


def _shards(tensor: Any, ranks: int) -> list[Any]:
    share = len(tensor) // ranks
    return [tensor[rank * share : (rank + 1) * share] for rank in range(ranks)]
