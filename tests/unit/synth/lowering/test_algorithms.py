"""Schedules of every algorithm become programs that do what they say, exchanges of whole vectors too."""

import pytest

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.grid.algorithms import (
    bucket,
    rabenseifner,
    recursive_doubling,
    swing,
    swing_latency,
    traditional_torus,
)
from chorale.synth.methods.rings.rings import bfb_ring, box_ring, hamiltonian_ring
from chorale.synth.targets.lift import read_checked
from chorale.synth.targets.registry import target_named
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify

SCATTERING = [swing, rabenseifner, bucket, traditional_torus]
EXCHANGING = [swing_latency, recursive_doubling]


def round_trip(method, spec: str, collective, target: str) -> None:
    topology = parse_topology(spec)
    program = lower(verify(method(topology, collective).schedule()), LoweringOptions(target))
    text = target_named(target).emit(program)
    assert read_checked(text.encode(), topology).collective == collective


@pytest.mark.parametrize(
    ("spec", "target"), [("torus:4x4", "oneccl-xml"), ("torus:2x5", "msccl-xml"), ("hypercube:3", "msccl-xml")]
)
@pytest.mark.parametrize("method", [*SCATTERING, *EXCHANGING])
def test_allreduce(method, spec, target):
    round_trip(method, spec, ALLREDUCE, target)


@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER], ids=str)
@pytest.mark.parametrize("method", SCATTERING)
def test_halves(method, collective):
    round_trip(method, "torus:3x4", collective, "oneccl-xml")


@pytest.mark.parametrize("collective", [ALLREDUCE, ALLGATHER, REDUCE_SCATTER], ids=str)
@pytest.mark.parametrize("method", [hamiltonian_ring, bfb_ring])
def test_rings(method, collective):
    round_trip(method, "torus:4x4", collective, "oneccl-xml")


@pytest.mark.parametrize("method", [box_ring, swing, swing_latency, rabenseifner])
def test_gpu_fabrics(method):
    round_trip(method, "a100:2", ALLREDUCE, "msccl-xml")
