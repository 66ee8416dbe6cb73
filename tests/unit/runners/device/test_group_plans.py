"""Plans on tensors: every element of results against torch's own arithmetic, sizes in turns, memory, failures."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="THE DEVICE RUNNER IS NOT TESTED: pip install torch")

import torch
from torch._C import _distributed_c10d as c10d

from chorale.runners.device.memory import DTYPES, Exchange, ProcessorDevice, registered_group
from chorale.runners.device.plans import GroupPlans
from chorale.runners.engine.library import ReduceOp
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.switches import switch_plan
from chorale.synth.programs.additions import order_of_additions
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.translate import plan_of
from chorale.synth.targets.mscclpp_text import parse_plan, plan_text
from tests.conformance.plan_cases import CASES, plan_case
from tests.live.job.threads import on_threads
from tests.unit.synth.lowering.programs import lowered, stars


@cache
def made(spec: str, collective: str, **options: object) -> ExecutionPlan:
    return plan_of(lowered(spec, collective, "mscclpp-json", **options))


def data(rank: int, elements: int, dtype: object, seed: int = 0) -> object:
    """Small integers: every order of additions gives the same."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(-4, 5, (elements,), generator=generator).to(dtype)


def call(group: GroupPlans, name: str, rank: int, ranks: int, elements: int, dtype: object, seed: int, **more: object):
    """Run a plan on fresh tensors; return what is there and what should be."""
    collective = name.rsplit(maxsplit=1)[-1]
    vectors = [data(each, elements, dtype, seed) for each in range(ranks)]
    shard = elements // ranks
    own = slice(rank * shard, (rank + 1) * shard)
    source = vectors[rank][own].clone() if collective == "allgather" else vectors[rank].clone()
    total = torch.stack(vectors).sum(0, dtype=dtype)
    expected = {
        "allreduce": total,
        "reduce_scatter": total[own],
        "allgather": torch.cat([each[peer * shard : (peer + 1) * shard] for peer, each in enumerate(vectors)]),
        "broadcast": vectors[0],
        "alltoall": torch.cat([each[own] for each in vectors]),
    }[collective]
    target = torch.full_like(expected, 77)
    group.run(name, source, target, **more)
    return target, expected


@pytest.mark.parametrize("name", CASES)
def test_cases_of_every_operation(name: str) -> None:
    plan = plan_case(name)
    label = f"plan {plan.collective.name}"

    def work(group: GroupPlans, rank: int) -> list[bool]:
        sizes = (4096, 64, 4096, 1000)  # the memory of one size is that of another
        pairs = [call(group, label, rank, 2, size, torch.float32, turn) for turn, size in enumerate(sizes)]
        return [bool(found.equal(expected)) for found, expected in pairs]

    assert on_all_ranks({label: plan}, work) == [[True] * 4] * 2


def test_types_and_sizes_of_several_plans_in_turns() -> None:
    plans = {
        "two-shot allreduce": made("complete:4", "allreduce"),
        "packed allreduce": made("complete:4", "allreduce", protocol="LL"),
        "one-shot allreduce": made("complete:4", "allreduce", method="one-shot", protocol="LL"),
        "grouped allgather": made("hypercube:2", "allgather", block_group=2, in_place=False),
        "reading reduce_scatter": made("complete:4", "reduce_scatter", reads=True),
        "piped allgather": made("ring:4", "allgather", pipeline_bytes=64),
    }

    def work(group: GroupPlans, rank: int) -> list[str]:
        wrong = []
        for turn, dtype in enumerate(DTYPES):
            for name in plans:
                found, expected = call(group, name, rank, 4, 4 * (5 + 13 * turn), dtype, turn)
                wrong += [] if found.equal(expected) else [f"{name} {dtype}"]
        return wrong

    assert on_all_ranks(plans, work, 20) == [[]] * 4


@pytest.mark.parametrize(
    ("operation", "expected"), [("MIN", "amin"), ("MAX", "amax"), ("PROD", "prod"), ("AVG", "mean")]
)
def test_operations(operation: str, expected: str) -> None:
    plans = {"allreduce": made("complete:4", "allreduce", protocol="LL")}

    def work(group: GroupPlans, rank: int) -> bool:
        vectors = torch.stack([data(each, 100, torch.float32) for each in range(4)])
        target = torch.empty(100)
        group.run("allreduce", vectors[rank], target, ReduceOp[operation])
        return bool(target.equal(getattr(vectors, expected)(0)))

    assert on_all_ranks(plans, work) == [True] * 4


def test_sums_that_stay_wide_are_rounded_once() -> None:
    plan = switch_plan(stars("h100:1"), LoweringOptions("mscclpp-json"))  # one operation adds what all eight have

    def sums(keeps_wide: bool) -> set[float]:
        def work(group: GroupPlans, rank: int) -> float:
            tensor = torch.full((256,), 1.0 if rank else 256.0, dtype=torch.bfloat16)
            group.run("allreduce", tensor, tensor)
            return float(tensor[0])

        return set(on_all_ranks({"allreduce": plan}, work, keeps_wide=keeps_wide))

    assert sums(False) == {256.0}  # 257 is rounded to it, seven times
    assert sums(True) == {264.0}  # what is next to 263, and even


ORDERED = {
    "puts": ("complete:4", {}),
    "packets": ("complete:4", {"protocol": "LL", "fuse": True}),
    "reads": ("complete:4", {"reads": True}),
    "groups": ("hypercube:2", {"block_group": 2}),
    "pipeline": ("ring:4", {"pipeline_bytes": 64}),
    "short vectors": ("complete:4", {"vector_bytes": 8}),
}


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter"])
def test_results_are_the_bits_of_the_order_of_additions_that_is_stated(name: str, collective: str) -> None:
    spec, options = ORDERED[name]
    plan = made(spec, collective, **options)
    order = order_of_additions(plan)
    assert order == order_of_additions(parse_plan(plan_text(plan).encode()))
    values = [torch.rand(4 * 96, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    for left, right in order.sums:
        values.append(values[left] + values[right])

    def work(group: GroupPlans, rank: int) -> bool:
        target = torch.empty(4 * 96 if collective == "allreduce" else 96)
        group.run("plan", values[rank], target)
        pairs = list(zip(order.results[rank], order.chunk_of[rank], strict=True))
        return bool(
            target.equal(torch.cat([values[sum_].view(-1, len(target) // len(pairs))[at] for sum_, at in pairs]))
        )

    assert on_all_ranks({"plan": plan}, work) == [True] * 4


def test_tensors_in_symmetric_memory_are_used_where_they_are() -> None:
    plans = {"allreduce": made("complete:4", "allreduce"), "gathered allgather": made("complete:4", "allgather")}

    def work(group: GroupPlans, rank: int) -> tuple[bool, ...]:
        tensor = group.empty(1024, torch.float32)
        tensor[:256] = rank + 1
        group.run("allreduce", tensor[:256], tensor[:256])
        was_copied = bool(group._memory.own.view(torch.float32)[:256].any())
        tensor[512 + rank * 64 : 512 + (rank + 1) * 64] = rank
        whole = tensor[512:768]
        group.run("gathered allgather", whole[rank * 64 : (rank + 1) * 64], whole)
        gathered = torch.arange(4.0).repeat_interleave(64)
        return not was_copied, bool((tensor[:256] == 10).all()), bool(whole.equal(gathered))

    assert on_all_ranks(plans, work) == [(True, True, True)] * 4


def test_symmetric_memory_finds_the_ranks_by_the_name_of_a_group(tmp_path: Path) -> None:
    """Since torch 2.11, `rendezvous` resolves the name of a process group; group info alone is not enough."""
    group = registered_group(torch.distributed.FileStore(str(tmp_path / "store"), 3), "of plans", 1, 3)
    found = c10d._resolve_process_group("of plans")
    assert (found is group, found.rank(), found.size()) == (True, 1, 3)


def test_what_is_too_large_does_not_fit() -> None:
    def work(group: GroupPlans, rank: int) -> tuple[bool, ...]:
        large = torch.ones(1 << 15)
        with pytest.raises(InvalidInput, match="memory for pieces of at most"):
            group.run("allreduce", large, large)
        return tuple(group.fits("allreduce", elements, torch.float32) for elements in (1, 1 << 14, 1 << 15))

    assert on_all_ranks({"allreduce": made("complete:2", "allreduce")}, work) == [(True, True, False)] * 2


def test_a_peer_that_does_not_come_is_named_and_nothing_runs_after_it() -> None:
    plans = {"allreduce": made("complete:2", "allreduce"), "packed": made("complete:2", "allreduce", protocol="LL")}

    def work(group: GroupPlans, rank: int) -> tuple[object, ...]:
        before, tensor = group.failure(), torch.ones(64)
        group.run("allreduce", tensor, tensor)
        group.run("packed", tensor, tensor)
        return before, group.failure()

    alone = on_all_ranks(plans, work, 0.2, who=(0,))[0]
    assert alone[0] is None
    assert "block 0 step 0 waits for rank 1 to begin" in alone[1]


@pytest.mark.parametrize(
    ("protocol", "told"), [("Simple", r"waits for signal \d+ of rank 2"), ("LL", "waits for packets of rank 2")]
)
def test_a_peer_that_stops_between_calls_is_named_with_its_signal(protocol: str, told: str) -> None:
    def work(group: GroupPlans, rank: int) -> str | None:
        tensor = torch.ones(64)
        group.run("allreduce", tensor, tensor)
        if rank != 2:
            group.run("allreduce", tensor, tensor)
        return group.failure()

    plans = {"allreduce": made("complete:4", "allreduce", protocol=protocol)}
    failures = on_all_ranks(plans, work, 0.5)
    for rank in (0, 1, 3):
        assert re.search(
            rf"plan allreduce on rank {rank} of the group timed out: .*block \d+ step \d+ {told}", failures[rank]
        )
    assert failures[2] is None


LARGEST = 1 << 16


def on_all_ranks(
    plans: dict[str, ExecutionPlan],
    work: Callable[[GroupPlans, int], Any],
    limit_s: float = 60.0,
    keeps_wide: bool = False,
    who: Sequence[int] | None = None,
) -> list[Any]:
    """Return what `work` gives on each rank of a group that has loaded `plans`; only `who` does it."""
    ranks = len(next(iter(plans.values())).ranks)

    def be(rank: int, exchange: Exchange) -> Any:
        device = ProcessorDevice(rank, exchange)
        requests = {name: (plan, LARGEST) for name, plan in plans.items()}
        group = GroupPlans(device, rank, ranks, requests, limit_s, keeps_wide)
        return work(group, rank) if who is None or rank in who else None

    return on_threads(ranks, be)
