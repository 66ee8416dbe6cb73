"""NCCL's algorithms by bounds and latencies, against what they are published to reach."""

from __future__ import annotations

import pytest

from chorale.synth.topology.spec import parse_topology
from chorale.tuner.costs.nccl_model import PUBLISHED, PublishedRate, nccl_algorithms, nccl_choices
from tests.command import chorale

SIZES = [2**power for power in range(10, 35)]


@pytest.mark.parametrize("published", PUBLISHED, ids=str)
def test_large_sizes_are_near_what_is_published(published: PublishedRate) -> None:
    size = 2**33
    [best] = {each.seconds(size) for each in nccl_algorithms(parse_topology(published.spec))
              if (each.name, each.protocol) == (published.algorithm, "simple")}  # fmt: skip
    assert size / best / 1e9 == pytest.approx(published.algbw, rel=0.06)


def test_switches_are_chosen_where_the_bound_says_that_they_win() -> None:
    """Not on A100, whose switches only pass on, nor from five boxes on, where InfiniBand does."""
    chosen = {spec: nccl_choices(parse_topology(spec), SIZES) for spec in ("h100:1", "h100:2", "h100:5", "a100:1")}
    assert chosen["h100:1"][-1][1].name == "nvls"
    assert chosen["h100:2"][-1][1].name == "nvls_tree"
    assert chosen["h100:5"][-1][1].name == chosen["a100:1"][-1][1].name == "ring"
    assert all(choices[0][1].protocol == "ll" for choices in chosen.values())


def test_the_table_is_written(capsys, tmp_path) -> None:  # type: ignore[no-untyped-def]
    table = tmp_path / "nccl.csv"
    done = chorale(capsys, "bound", "h100:1", "--collective", "allreduce", "--nccl-tuner-csv", table)
    assert done.code == 0
    rows = table.read_text().splitlines()[1:]
    assert rows[-1].startswith("allreduce,")
    assert ",nvls,simple,0,-1,8,-1,-1" in rows[-1]
    refused = chorale(capsys, "bound", "h100:1", "--nccl-tuner-csv", table)
    assert refused.code == 2
