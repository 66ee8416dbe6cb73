"""The folder for MSCCL++, loaded into a stand-in for its Python interface."""

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from chorale.synth.errors import CheckFailed
from chorale.synth.targets.judge import check_program
from chorale.synth.targets.mscclpp_reading import parse_plan
from chorale.tuner.reports.library_files import MODULE, mscclpp_files
from tests.unit.tuner.reports.library_files.stand_in import StandInBuilder, StandInRequest, stand_in_modules
from tests.unit.tuner.reports.library_files.tables import own, ring_table, table_of

FIRST, LAST = 1024, 2**20


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of an exported folder, imported from there, beside the stand-in."""
    for name, content in mscclpp_files(ring_table(FIRST, LAST)).items():
        (tmp_path / name).write_bytes(content)
    for name, stand_in in stand_in_modules().items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    spec = importlib.util.spec_from_file_location("chorale_plans", tmp_path / MODULE)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_plans_are_right_and_say_their_sizes() -> None:
    files = mscclpp_files(ring_table(FIRST, LAST))
    [name] = [name for name in files if name.startswith("chorale-")]
    plan = parse_plan(files[name])
    assert check_program(plan) == []
    assert (plan.min_bytes, plan.max_bytes, len(plan.ranks)) == (FIRST, LAST, 4)
    assert parse_plan(next(iter(mscclpp_files(ring_table(0, None)).values()))).max_bytes > 2**30


def test_every_plan_is_added_with_its_rank_and_constraint(module: Any) -> None:
    builder: StandInBuilder = module.install(rank=3, ranks_per_node=2)
    [algorithm] = builder.algorithms
    assert (algorithm.plan.rank, algorithm.constraint.world_size, algorithm.constraint.n_ranks_per_node) == (3, 4, 2)
    assert algorithm.plan.document()["gpus"][3]["id"] == 3


def test_the_selector_answers_with_a_plan_for_the_sizes_of_the_table_only(module: Any) -> None:
    builder: StandInBuilder = module.install(0)
    [algorithm] = builder.algorithms
    for size in (FIRST, 4096, LAST):
        assert builder.answer(StandInRequest(size)) is algorithm
    for request in (
        StandInRequest(FIRST - 1),
        StandInRequest(LAST + 1),
        StandInRequest(FIRST, collective="allgather"),
        StandInRequest(FIRST, world_size=8),
        StandInRequest(FIRST, output_buffer=128),
    ):
        assert builder.answer(request) is None


def test_no_plan_is_given_to_anything_but_a_sum(module: Any) -> None:
    builder: StandInBuilder = module.install(0)
    answers: list[bool] = []

    def all_reduce(tensor: object, op: str = "sum", group: object = None) -> None:
        answers.append(builder.answer(StandInRequest(FIRST)) is not None)
        if op == "broken":
            raise ValueError(op)

    def reduce(tensor: object, dst: int, op: str = "sum") -> None:
        answers.append(builder.answer(StandInRequest(FIRST)) is not None)

    distributed = types.SimpleNamespace(ReduceOp=types.SimpleNamespace(SUM="sum"), all_reduce=all_reduce, reduce=reduce)
    module.guard(distributed)
    distributed.all_reduce(None)
    distributed.all_reduce(None, "max")
    distributed.all_reduce(None, op="min")
    distributed.reduce(None, 0, "avg")
    distributed.reduce(None, 0)
    with pytest.raises(ValueError, match="broken"):
        distributed.all_reduce(None, "broken")
    distributed.all_reduce(None, op="sum")
    assert answers == [True, False, False, False, True, False, True]


def test_tables_without_a_program_for_all_ranks_are_refused() -> None:
    with pytest.raises(CheckFailed, match="allreduce"):
        mscclpp_files(table_of(own("library:ring", 0, None)))
    with pytest.raises(CheckFailed, match="bytes at most"):
        mscclpp_files(ring_table(2**45, None))
