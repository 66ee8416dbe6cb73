"""Rings over boxes of GPUs use all network ports."""

from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.methods.rings.rings import box_ring, count_boxes
from chorale.synth.topology.spec import parse_topology
from tests.patterns import verified_with_traffic


@pytest.mark.parametrize(
    ("spec", "boxes"),
    [
        ("a100:2", 2),
        ("h100:4", 4),
        ("mi250:2", 2),
        ("a100:1", 1),
        ("switch:8,10", 1),
        ("torus:4x4", 1),
        ("fattree:4", 8),
    ],
)
def test_boxes(spec, boxes):
    assert count_boxes(parse_topology(spec)) == boxes


@pytest.mark.parametrize("collective", [ALLREDUCE, ALLGATHER, REDUCE_SCATTER], ids=str)
@pytest.mark.parametrize("spec", ["a100:2", "a100:3", "h100:4", "mi250:2", "mi300x:2", "mi250half:4"])
def test_rings_are_right_on_gpu_fabrics(spec, collective):
    topology = parse_topology(spec)
    verified = verified_with_traffic(box_ring(topology, collective))
    phases = 2 if collective == ALLREDUCE else 1
    assert verified.schedule.steps == phases * (topology.compute_count - 1)


@pytest.mark.parametrize(("spec", "nic_gb_per_s"), [("a100:2", 25), ("a100:4", 25), ("h100:2", 50), ("h100:8", 50)])
def test_all_network_ports_are_busy_all_the_time(spec, nic_gb_per_s):
    """An eighth of the vector crosses each network port, in every step a 1 / N of it."""
    topology = parse_topology(spec)
    verified = verified_with_traffic(box_ring(topology, ALLREDUCE))
    nodes = topology.compute_count
    assert verified.cost.time_per_byte == Fraction(2 * (nodes - 1), nodes * 8 * nic_gb_per_s)


def test_boxes_with_links_inside_are_crossed_along_them():
    topology = parse_topology("mi250:2")
    pattern = box_ring(topology, ALLGATHER)
    links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    src, dst, _ = pattern.subcollectives[3][0].messages()
    inside = src // 16 == dst // 16
    assert np.count_nonzero(~inside) == 2
    assert set(zip(src[inside].tolist(), dst[inside].tolist(), strict=True)) <= links
