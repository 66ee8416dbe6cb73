"""A schedule that is more than 1 % behind its own bound says so, whatever made it, for people and in JSON."""

import json
from fractions import Fraction
from typing import Any

import pytest

from tests.command import chorale

CASES = [
    ("ring", "mesh:3x3", "allgather"),
    ("biring", "torus:4x4", "allgather"),
    ("blink", "a100:1", "broadcast"),
    ("blink", "dbt:7", "broadcast"),
    ("auto", "line(mesh:3x3)", "allreduce"),
    ("auto", "hypercube:3", "allgather"),
    ("bfb", "mesh:3x2", "allgather"),
    ("forest", "line(mesh:3x3)", "allreduce"),
    ("recursive-doubling", "hypercube:3", "allreduce"),
    ("swing-latency", "torus:4x4", "allreduce"),
]


@pytest.mark.parametrize(("method", "spec", "collective"), CASES)
def test_the_gap_decides_whether_there_is_a_warning(method: str, spec: str, collective: str, capsys: Any) -> None:
    words = ("synth", method, spec, "--collective", collective)
    document = json.loads(chorale(capsys, *words, "--json").stdout)
    gap = Fraction(document["optimality"]["gap"])
    of_bandwidth = [one for one in document["warnings"] if one["kind"] == "bandwidth"]
    assert [Fraction(one["gap"]) for one in of_bandwidth] == ([gap] if gap > Fraction(1, 100) else [])
    assert all("tried" in one["message"] for one in of_bandwidth)
    printed = chorale(capsys, *words)
    assert ("above its bandwidth bound" in printed.stdout + printed.stderr) == bool(of_bandwidth)
