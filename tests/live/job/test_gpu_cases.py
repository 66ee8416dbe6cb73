"""Streams, CUDA graphs, types and training by programs: on a GPU where there is one, as far as they go on a processor.

Ranks of one GPU take turns, so that results are looked at and no times.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from tests.live.job.gpu_cases import CASES, LIBRARIES, on_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # eight processes each that import torch

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="GPUS ARE NOT TESTED: run where CUDA has a GPU")
DEVICES = ("cpu", pytest.param("cuda", marks=NEEDS_GPU))


def by_programs(case: str, device: str) -> list[Mapping[str, Any]]:
    return on_ranks(CASES[case], device, "chorale")


def by_library(case: str, device: str) -> list[Mapping[str, Any]]:
    return on_ranks(CASES[case], device, LIBRARIES[device])


def said(ranks: list[Mapping[str, Any]]) -> list[Any]:
    errors = [rank["error"] for rank in ranks if "error" in rank]
    assert not errors, errors
    return [rank["said"] for rank in ranks]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", ["behind_a_stream", "several_at_once", "gaps"])
def test_results_are_right_whatever_runs_beside_them(case: str, device: str):
    ranks = by_programs(case, device)
    assert said(ranks) == [[], [], [], []]
    assert ranks[0]["fallbacks"] == []


@NEEDS_GPU
@pytest.mark.parametrize("case", ["graph", "graph_after_one", "graph_async", "graph_behind"])
def test_programs_replay_in_a_graph(case: str):
    ranks = by_programs(case, "cuda")
    assert said(ranks) == [[], [], [], []]
    assert {entry["collective"] for entry in ranks[0]["programs"]} == {
        *("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce")
    }


@NEEDS_GPU
def test_a_graph_before_ranks_are_connected_is_refused():
    for rank in by_programs("graph_cold", "cuda"):
        assert "InvalidInput: ranks must be connected" in rank["error"]
        assert "before the capture" in rank["error"]


def test_a_rank_that_stalls_is_an_error_on_the_others():
    for rank in by_programs("stalled", "cpu")[:-1]:
        assert "allreduce of 262144 bytes" in rank["error"]


@pytest.mark.parametrize("device", DEVICES)
def test_all_types_give_the_bits_of_the_library(device: str):
    by_type = said(by_programs("types", device))
    assert by_type == said(by_library("types", device))
    assert len(by_type[0]) > 400


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", ["ddp", "fsdp"])
def test_models_learn_as_with_the_library(case: str, device: str):
    ranks = by_programs(case, device)
    losses, expected = said(ranks), said(by_library(case, device))
    called = {entry["collective"] for entry in ranks[0]["programs"]}
    assert called >= {"ddp": {"allreduce", "broadcast"}, "fsdp": {"allgather", "reduce_scatter"}}[case]
    for by_rank, wanted in zip(losses, expected, strict=True):
        assert by_rank == pytest.approx(wanted, rel=1e-5)
