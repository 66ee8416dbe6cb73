"""The text that sets fabrics up, word for word for small ones."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from chorale.runners.fabric.plan import plan_fabric
from chorale.runners.fabric.setup_script import setup_script
from chorale.synth.topology.spec import parse_topology

GOLDEN = Path(__file__).parents[3] / "golden"


def script(spec: str, link_mbps: str) -> str:
    return setup_script(plan_fabric(parse_topology(spec), Fraction(link_mbps), "x"))


@pytest.mark.parametrize(
    ("spec", "link_mbps", "file"),
    [("uniring:1,3", "50", "fabric-one-way-ring.sh"), ("switch:2,25", "200", "fabric-switch.sh")],
)
def test_the_whole_text(spec: str, link_mbps: str, file: str) -> None:
    assert script(spec, link_mbps) == (GOLDEN / file).read_text()


def queue(spec: str, link_mbps: str) -> dict[str, int]:
    """Return what the first queue of a fabric is told."""
    line = next(line for line in script(spec, link_mbps).splitlines() if "tbf" in line)
    words = line.split()
    return {words[i]: int(words[i + 1].removesuffix("bit")) for i in range(words.index("rate"), len(words), 2)}


@pytest.mark.parametrize(
    ("link_mbps", "rate", "burst"), [("1/2", 500_000, 18_028), ("100", 10**8, 18_028), ("1000", 10**9, 125_000)]
)
def test_a_bucket_holds_two_frames_or_a_millisecond(link_mbps: str, rate: int, burst: int) -> None:
    assert queue("ring:3", link_mbps) == {"rate": rate, "burst": burst, "limit": burst + rate // 40}


def test_only_links_that_go_one_way_have_detours() -> None:
    assert "mirred" not in script("ring:5", "50")
    assert "mirred" not in script("a100:2", "50")
    assert script("uniring:1,5", "50").count("mirred") == 5


def test_a_rank_detours_for_every_rank_that_only_sends_to_it() -> None:
    text = script("kautz:2,2", "50")
    topology = parse_topology("kautz:2,2")
    links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    assert text.count("mirred") == sum((dst, src) not in links for src, dst in links)
