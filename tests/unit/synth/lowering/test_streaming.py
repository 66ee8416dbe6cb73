"""Programs written rank by rank are those that are written whole."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import islice

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.lowering import streaming
from chorale.synth.lowering.lower import lower
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.streaming import streamed_text
from chorale.synth.programs.program import EMPTY_RANK, ProgramStream, RankProgram
from chorale.synth.targets.registry import XML_TARGETS, target_named
from tests.unit.synth.lowering.programs import verified

NAMES = [target.name for target in XML_TARGETS]


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "allreduce"])
@pytest.mark.parametrize(("spec", "method"), [("torus:3x4", "bfb"), ("a100:1", "forest"), ("hypercube:3", "swing")])
def test_the_text_is_the_same(spec, method, collective, target):
    schedule = verified(spec, collective, method)
    for in_place in (True, False):
        options = LoweringOptions(target, 2, 2, in_place=in_place)
        text = target_named(target).emit(lower(schedule, options))
        assert b"".join(streamed_text(schedule, options)) == text.encode()


def test_ranks_are_made_when_they_are_asked_for():
    parts = streamed_text(verified("hypercube:7", "allgather"), LoweringOptions("oneccl-xml"))
    assert sum(part.count(b"<gpu ") for part in islice(parts, 4)) == 3


def test_what_is_held_does_not_grow_with_the_text():
    """Two thirds of the ranks are written while the first third is long gone."""
    parts = streamed_text(verified("hypercube:8", "allgather"), LoweringOptions("oneccl-xml"))
    for _ in islice(parts, 80):
        pass
    tracemalloc.start()
    written = sum(len(part) for part in parts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < written / 4


def test_a_rank_that_breaks_a_limit_ends_the_writing():
    schedule = verified("ring:80", "allgather", "ring")
    with pytest.raises(InvalidInput, match=r"limit.*steps of a thread block"):
        list(streamed_text(schedule, LoweringOptions("msccl-executor-xml")))
    with pytest.raises(InvalidInput, match="thread blocks must run at once"):
        list(streamed_text(verified("ring:8", "allgather"), LoweringOptions("msccl-xml", sm_count=1, channels=2)))


def test_ends_that_do_not_meet_are_found_at_the_end(monkeypatch):
    made = lower(verified("ring:4", "allgather"), LoweringOptions("oneccl-xml"))

    empty = replace(made, ranks=(EMPTY_RANK,) * 4)

    def damaged(rank: int) -> RankProgram:
        body = made.ranks[rank]
        return body if rank else replace(body, blocks=body.blocks[1:])

    monkeypatch.setattr(streaming, "lowered_stream", lambda *_: ProgramStream(empty, damaged))
    with pytest.raises(InvalidInput, match="connection"):
        list(streamed_text(verified("ring:4", "allgather"), LoweringOptions("oneccl-xml")))


def test_what_cannot_be_written_so_is_refused():
    schedule = verified("ring:4", "allgather")
    with pytest.raises(InvalidInput, match="must be XML"):
        streamed_text(schedule, LoweringOptions("mscclpp-json"))
    with pytest.raises(InvalidInput, match="not fused"):
        streamed_text(schedule, LoweringOptions("oneccl-xml", fuse=True))
    with pytest.raises(InvalidInput, match="largest chunk offset"):
        streamed_text(verified("ring:40", "allgather"), LoweringOptions("msccl-xml", instances=1000))
