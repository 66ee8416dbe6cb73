"""The table of algorithms with a closed form: what each says it makes, it makes."""

import pytest

from chorale.synth.collective import STANDARD, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import METHODS, synthesize
from chorale.synth.methods.closed_forms import ALGORITHMS, pattern_of
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology

SERIAL = SerialExecutor()


def collective_of(name: CollectiveName) -> Collective:
    collective = Collective(name)
    return Collective(name, 4) if collective.is_rooted else collective


@pytest.mark.parametrize("name", list(STANDARD))
@pytest.mark.parametrize("method", list(ALGORITHMS))
def test_methods_make_what_they_say_and_refuse_the_rest(method, name):
    topology = parse_topology("torus:3x3")
    if name in METHODS[method].collectives:
        verified = synthesize(method, topology, collective_of(name), Options(chunks=8), SERIAL)
        assert verified.schedule.collective.name == name
        assert verified.schedule.chunks_per_shard == 8
        return
    with pytest.raises(InvalidInput, match=f"{method} makes"):
        synthesize(method, topology, collective_of(name), None, SERIAL)
    with pytest.raises(InvalidInput, match="makes"):
        ALGORITHMS[method].pattern(topology, collective_of(name))


@pytest.mark.parametrize("name", [CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLREDUCE])
def test_ring_goes_over_boxes_by_all_network_ports(name):
    topology = parse_topology("a100:2")
    pattern = pattern_of("ring", topology, Collective(name))
    verified = synthesize("ring", topology, Collective(name), None, SERIAL)
    assert pattern is not None
    assert len(pattern.subcollectives) == 8
    assert len(verified.schedule.transfers) == len(pattern.schedule().transfers)


@pytest.mark.parametrize(("method", "spec"), [("ring", "torus:3x3"), ("ring", "a100:1"), ("bfb", "torus:3x3")])
def test_other_methods_have_no_closed_form(method, spec):
    assert pattern_of(method, parse_topology(spec), Collective(CollectiveName.ALLREDUCE)) is None
