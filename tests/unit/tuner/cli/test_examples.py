"""Every campaign of `examples` is valid, and plans what it says."""

from pathlib import Path

import pytest

from tests.command import chorale

EXAMPLES = Path(__file__).parents[4] / "examples"
TARGETS = {
    "quickstart.yaml": ("oneccl-xml", "1 CPU"),
    "cpu-cluster-oneccl.yaml": ("oneccl-xml", "1 CPU"),
    "gpu-cluster-msccl.yaml": ("msccl-executor-xml", "1 CPU, 8 GPU"),
    "stock-nccl.yaml": ("oneccl-xml", "1 CPU, 8 GPU"),
    "plans-as-kernels.yaml": ("mscclpp-json", "1 CPU, 8 GPU"),
    "switch-processes.yaml": ("oneccl-xml", "1 CPU"),
}


def test_every_example_is_looked_at() -> None:
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_an_example_is_a_campaign(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = chorale(capsys, "tune", EXAMPLES / name, "--dry-run", "--json")
    assert done.code == 0, done.stderr
    plan = done.document
    assert (plan["target"], plan["node_to_measure_on"]) == TARGETS[name]
    # LL and NVLS do not go together, nor do pipelines and groups
    assert plan["pruned_beforehand"] == {"stock-nccl.yaml": 28, "plans-as-kernels.yaml": 56}.get(name, 0)
    assert 0 < plan["trials"] <= plan["points"]
    assert sorted(first["method"] for first in plan["first"]) == sorted(plan["resolved"]["search"]["methods"])
