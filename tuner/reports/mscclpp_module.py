"""Plans of a tuning table for MSCCL++, loaded into a job; written by `chorale table export`.

    import chorale_plans
    chorale_plans.install(rank)      # before torch.distributed.init_process_group("nccl")
    chorale_plans.guard(torch.distributed)

The job runs under `LD_PRELOAD=libmscclpp_nccl.so` (or `LD_AUDIT=libmscclpp_audit_nccl.so`), with the library that
serves the rest in MSCCLPP_NCCL_LIB_PATH. This file needs nothing of Chorale; the plans and choices.json lie beside it.

Names of MSCCL++ are those of its sources of release 0.10: ExecutionPlan(file, rank), Algorithm and its Constraint in
python/mscclpp/_core/algorithm.py, the builder in python/mscclpp/ext/algorithm_collection_builder.py, the arguments of
a selector in examples/torch-integration/dsl_with_nccl_api.py, and the fields of a request in
python/csrc/algorithm.cpp.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_tensor")
"""Functions of torch.distributed that take an `op`."""

_calls = threading.local()


def choices() -> dict[str, Any]:
    """Return what choices.json says: ranks, and sizes of the whole vector with the plan for each."""
    return dict(json.loads((HERE / "choices.json").read_text()))


def install(rank: int, ranks_per_node: int = 0) -> Any:
    """Add a plan for each range of sizes, and who chooses among them; return the builder, which must stay alive.

    rank: of this process; ranks_per_node: how many ranks a node must have, 0 for any
    """
    mscclpp, ext = import_module("mscclpp"), import_module("mscclpp.ext")
    document = choices()
    builder = ext.AlgorithmCollectionBuilder()
    for choice in document["choices"]:
        plan = mscclpp.ExecutionPlan(str(HERE / choice["file"]), rank)
        constraint = mscclpp.Algorithm.Constraint(document["ranks"], ranks_per_node)
        builder.add_algorithm_builder(mscclpp.Algorithm(choice["name"], execution_plan=plan, constraint=constraint))
    builder.set_algorithm_selector(selector(document))
    return builder


def selector(document: dict[str, Any]) -> Callable[[Any, Any], Any]:
    """Return what MSCCL++ asks for each call: the algorithm that runs, or None for the library that serves the rest."""

    def select(algorithms: Any, request: Any) -> Any:
        # A plan has no operation, its kernels sum; a request does not say the operation either.
        if getattr(_calls, "other_than_sum", 0) or request.world_size != document["ranks"]:
            return None
        in_place = request.input_buffer == request.output_buffer
        for choice in document["choices"]:
            fits = choice["min_bytes"] <= request.message_size <= choice["max_bytes"]
            if fits and choice["collective"] == request.collective and choice["in_place"] == in_place:
                return algorithms.get(choice["collective"], {}).get(choice["name"])
        return None

    return select


def guard(distributed: Any) -> None:
    """Keep plans away from anything but sums: wrap the functions of torch.distributed that take an `op`.

    Calls that do not go through these functions (C++ of other libraries) are not seen. DDP's own are sums.
    """
    total = distributed.ReduceOp.SUM
    for name in REDUCING:
        if hasattr(distributed, name):
            setattr(distributed, name, _guarded(getattr(distributed, name), total))


def _guarded(call: Callable[..., Any], total: Any) -> Callable[..., Any]:
    position = {"reduce": 2, "reduce_scatter": 2, "reduce_scatter_tensor": 2}.get(call.__name__, 1)

    @functools.wraps(call)
    def guarded(*arguments: Any, **named: Any) -> Any:
        operation = arguments[position] if len(arguments) > position else named.get("op", total)
        if operation == total:
            return call(*arguments, **named)
        _calls.other_than_sum = getattr(_calls, "other_than_sum", 0) + 1
        try:
            return call(*arguments, **named)
        finally:
            _calls.other_than_sum -= 1

    return guarded
