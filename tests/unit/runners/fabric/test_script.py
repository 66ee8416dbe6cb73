"""The texts that set fabrics up, word for word for small ones."""

from fractions import Fraction
from pathlib import Path

import pytest

from chorale.runners.fabric.fabric import thread_count, wire_lines
from chorale.runners.fabric.links import LinkOptions, LinkOverride
from chorale.runners.fabric.plan import namespaces_script, nodes_script, plan_fabric
from chorale.synth.topology.spec import parse_topology

GOLDEN = Path(__file__).parents[3] / "golden"


def script(spec: str, link_mbps: str) -> str:
    """Return all that the shell is told."""
    plan = plan_fabric(parse_topology(spec), Fraction(link_mbps), "x")
    return namespaces_script(plan) + nodes_script(plan)


@pytest.mark.parametrize(
    ("spec", "link_mbps", "file"),
    [("uniring:1,3", "50", "fabric-one-way-ring.sh"), ("switch:2,25", "200", "fabric-switch.sh")],
)
def test_the_whole_text(spec: str, link_mbps: str, file: str) -> None:
    assert script(spec, link_mbps) == (GOLDEN / file).read_text()


def test_what_the_process_of_the_links_is_told() -> None:
    lossy = LinkOverride(0, 1, mbps=Fraction(5), loss=Fraction(1, 4))
    options = LinkOptions(latency_us=Fraction(3, 2), overrides=(lossy,))
    plan = plan_fabric(parse_topology("uniring:1,3"), Fraction(50), "x", options)
    lines = list(wire_lines(plan, "/ns", 2, seed=1))
    assert lines[:7] == [
        "threads 2",
        "namespace /ns/chorale-x-0", "device 0 to1 0", "device 1 to2 1",
        "namespace /ns/chorale-x-1", "device 2 to0 0", "device 3 to2 1",
    ]  # fmt: skip
    links = [line.rpartition(" ")[0] for line in lines if line.startswith("link")]
    assert links == [
        "link 0 2 5000000 1500 1073741824 2097152 0 0",  # the overridden one
        "link 2 0 5000000 1500 1073741824 2097152 1 1",  # its way back, for acknowledgements
        "link 1 4 50000000 1500 0 12500009 1 0",
        "link 4 1 50000000 1500 0 12500009 0 1",
        "link 3 5 50000000 1500 0 12500009 0 0",
        "link 5 3 50000000 1500 0 12500009 1 1",
    ]
    assert lines[-1] == "go"
    assert lines == list(wire_lines(plan, "/ns", 2, seed=1)) != list(wire_lines(plan, "/ns", 2, seed=2))


def test_threads_are_one_for_what_it_carries_and_at_most_one_for_each_core() -> None:
    assert [thread_count(bits, 2) for bits in (10**6, 300_000_000, 300_000_001, 10**11)] == [1, 1, 2, 2]


def test_wires_have_no_bucket() -> None:
    assert "tbf" not in script("ring:3", "50")


HEADER_SIZES = 11  # of TCP, 20 to 60 bytes


def test_only_links_that_go_one_way_have_detours() -> None:
    assert "mirred" not in script("ring:5", "50")
    assert "mirred" not in script("a100:2", "50")
    assert script("uniring:1,5", "50").count("mirred") == 5 * HEADER_SIZES


def test_a_rank_detours_for_every_rank_that_only_sends_to_it() -> None:
    text = script("kautz:2,2", "50")
    topology = parse_topology("kautz:2,2")
    links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    assert text.count("mirred") == HEADER_SIZES * sum((dst, src) not in links for src, dst in links)
