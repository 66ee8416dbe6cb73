"""The pace of links."""

import pytest

from chorale.runners.local.ranks import seconds_per_byte
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology


def test_links_keep_their_proportions_and_the_fastest_gets_the_rate() -> None:
    links = Links.build([Link(0, 1, 300), Link(1, 0, 25)])
    gigabytes = Topology("", ("a", "b"), 2, links, "GB/s")
    paces = dict(zip(links.src.tolist(), seconds_per_byte(gigabytes, 8), strict=True))
    assert paces == {0: pytest.approx(1e-6), 1: pytest.approx(12e-6)}
    in_links = Topology("", ("a", "b"), 2, links, "link")
    assert dict(zip(links.src.tolist(), seconds_per_byte(in_links, 8), strict=True))[0] == pytest.approx(1e-6 / 300)
