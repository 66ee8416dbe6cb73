"""What many candidates have in common is built once, and is what would be built alone."""

from contextlib import nullcontext
from dataclasses import replace

from chorale.synth.build.build import CachingBuilder, build, build_program, verified_schedule
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildRequest, BuildResult, ScheduleRequest
from chorale.synth.collective import ALLGATHER, ALLREDUCE
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology

SOURCE = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "bfb", Options(chunks=2))
REQUEST = BuildRequest(SOURCE, LoweringOptions("oneccl-xml"))
LOWERINGS = [LoweringOptions("oneccl-xml", channels=channels) for channels in (1, 2, 3)]


def test_lowering_in_other_ways_synthesizes_once():
    builder = CachingBuilder()
    for lowering in (*LOWERINGS, *LOWERINGS):
        request = replace(REQUEST, lowering=lowering)
        built = builder.build(request)
        assert isinstance(built, BuildResult)
        assert built == build(request)
    assert (builder.synthesized, builder.lowered) == (1, 3)
    for source in (
        replace(SOURCE, options=Options(chunks=4)),
        replace(SOURCE, depth=2),
        replace(SOURCE, topology=parse_topology("ring:5")),
    ):
        builder.build(replace(REQUEST, source=source))
    assert builder.synthesized == 4
    failure = builder.build(replace(REQUEST, source=replace(SOURCE, options=Options(k=1))))
    assert isinstance(failure, BuildFailure)
    assert failure.kind == BuildFailureKind.INVALID


def test_what_was_not_used_for_longest_is_forgotten():
    builder = CachingBuilder(largest_units=1)
    ring = replace(REQUEST, source=replace(SOURCE, method="ring", options=Options()))
    for request in (REQUEST, REQUEST, ring, REQUEST):
        assert isinstance(builder.build(request), BuildResult)
    assert builder.synthesized == 3


def test_requests_have_content_ids():
    """Everything that decides the result counts, a schedule to start from by its own id."""
    warm = verified_schedule(replace(SOURCE, method="forest", options=Options())).schedule
    others = (
        SOURCE,
        replace(SOURCE, depth=2),
        replace(SOURCE, method="ring"),
        replace(SOURCE, collective=ALLGATHER),
        replace(SOURCE, options=Options(chunks=3)),
        replace(SOURCE, options=Options(warm_start=warm)),
        replace(SOURCE, topology=parse_topology("ring:5")),
    )
    requests = [replace(REQUEST, source=source) for source in others]
    requests += [replace(REQUEST, lowering=lowering) for lowering in LOWERINGS[1:]]
    assert len({request.id for request in requests}) == len(requests)
    again = ScheduleRequest(parse_topology("ring:4"), ALLREDUCE, "bfb", Options(chunks=2))
    assert again.id == SOURCE.id


def test_stages_can_be_observed():
    stages: list[str] = []

    def observe(stage: str) -> nullcontext[None]:
        stages.append(stage)
        return nullcontext()

    build_program(verified_schedule(SOURCE, observe=observe), REQUEST.lowering, observe)
    assert stages == ["synthesis", "verification", "lowering", "check"]
