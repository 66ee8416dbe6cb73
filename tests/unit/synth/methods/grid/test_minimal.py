"""Minimal paths where pairs are linked directly."""

import numpy as np

from chorale.synth.methods.grid.pattern import minimal_paths
from chorale.synth.topology.spec import parse_topology


def paths(spec, src, dst):
    topology = parse_topology(spec)
    tables = minimal_paths(topology, np.array(src), np.array(dst))
    links = topology.links
    return [
        [[(int(links.src[link]), int(links.dst[link])) for link in table.path(route)] for route in range(len(src))]
        for table in tables
    ], tables


def test_one_link_is_the_only_path():
    """All pairs of a row of a HyperX; the same as when a pair among them makes every one be searched for."""
    src, dst = zip(*((a, b) for a in range(4) for b in range(4) if a != b), strict=True)
    (first, second), _ = paths("hyperx:3x4", src, dst)
    assert first == second == [[pair] for pair in zip(src, dst, strict=True)]
    (searched, _), _ = paths("hyperx:3x4", [*src, 0], [*dst, 5])
    assert searched[:-1] == first
    assert len(searched[-1]) == 2


def test_parallel_links_are_two_paths():
    (first, second), tables = paths("biring:4,4", [0, 1], [1, 2])
    assert first == second == [[(0, 1)], [(1, 2)]]
    assert all(one != other for one, other in zip(tables[0].link_ids, tables[1].link_ids, strict=True))


def test_ends_that_are_linked_only_backwards_are_searched():
    (first, _), _ = paths("uniring:1,4", [0, 1], [1, 0])
    assert first == [[(0, 1)], [(1, 2), (2, 3), (3, 0)]]
