"""Where a search may begin: champions of similar networks, and of no others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.tracking.mlflow_store import ModelVersion
from chorale.tuner.tracking.registry import MANIFEST_FILE, SIZE_CLASS, degree, family, similar_champions
from chorale.tuner.trials.records import Candidate
from tests.campaigns import small_campaign

WINNER = Candidate("bfb", chunks=2)


@dataclass
class FakeRegistry:
    """Models of (spec, exponent of the size class, manifest)."""

    models_by_name: dict[str, tuple[str, int, dict[str, Any]]]

    def models(self, tags: dict[str, str]) -> dict[str, dict[str, str]]:
        assert tags == {"chorale.collective": "allreduce"}
        return {
            name: {"chorale.topology": spec, SIZE_CLASS: str(exponent)}
            for name, (spec, exponent, _) in self.models_by_name.items()
        }

    def aliased(self, name: str, alias: str) -> ModelVersion | None:
        return None if name == "nobody" else ModelVersion(name, "1", {}, "run")

    def download(self, version: ModelVersion) -> dict[str, bytes]:
        return {MANIFEST_FILE: json.dumps(self.models_by_name[version.name][2]).encode()}


def model(spec: str, exponent: int, candidate: Candidate = WINNER) -> tuple[str, int, dict[str, Any]]:
    return spec, exponent, {"topology": {"spec": spec}, "parameters": candidate.parameters}


def found(**models: tuple[str, int, dict[str, Any]]) -> list[Candidate]:
    registry: Any = FakeRegistry(models)
    return similar_champions(registry, small_campaign(), load_topology("ring:4"))  # at 2^12 and 2^16 bytes


def test_the_same_family_and_degree_at_near_sizes_are_similar() -> None:
    near, exact = Candidate("ring"), Candidate("bfb")
    assert found(a=model("ring:8", 17, near), b=model("ring:16", 12, exact)) == [exact, near]
    assert found(a=model("ring:8", 12), b=model("ring:16", 16)) == [WINNER]


@pytest.mark.parametrize(
    "other",
    [model("hypercube:2", 12), model("ring:8", 14), model("biring:4,8", 12), ("ring:8", 12, {"no": "manifest"})],
)
def test_other_networks_sizes_and_what_cannot_be_read_are_not(other: tuple[str, int, dict[str, Any]]) -> None:
    assert found(a=other) == []


def test_models_without_a_champion_say_nothing() -> None:
    assert found(nobody=model("ring:8", 12)) == []


def test_families_and_degrees() -> None:
    assert [family(spec) for spec in ("torus:4x4", "line(ring:4)", "diamond")] == ["torus", "line", "diamond"]
    assert family("without(scaled(torus:4x4;link=0-1;factor=1/2);node=3)") == "torus"
    assert [degree(load_topology(spec)) for spec in ("ring:5", "torus:3x3", "hypercube:4")] == [2, 4, 4]
