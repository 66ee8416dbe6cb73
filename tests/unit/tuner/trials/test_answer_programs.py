"""The answer as files: each program for its sizes, none where the library is the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chorale.synth.targets.lift import lift
from chorale.synth.targets.registry import target_named
from chorale.tuner.trials.tuning_table import table_programs, tuning_table
from tests.conformance.example_programs import ring_allreduce
from tests.unit.tuner.trials.test_answer import SIZES, standing

TARGETS = ("msccl-xml", "msccl-executor-xml", "oneccl-xml")


@pytest.mark.parametrize("target", TARGETS)
def test_every_program_serves_the_sizes_that_it_was_best_at(target: str) -> None:
    program = replace(ring_allreduce(range(4)), target=target, name="ring")
    asked = []

    def read(name: str) -> bytes:
        asked.append(name)
        return target_named(target).emit(program).encode()

    chosen = tuning_table([standing(1, 2.0, 0.5, 2.0, 1.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    files = table_programs(chosen, read)
    assert list(files) == ["01-1024-4095.xml", "03-16384-65535.xml", "04-65536-65536.xml"]
    ids = [one.trial.program_id for one in chosen if one.trial]
    assert asked == ids
    for name, text in files.items():
        _, first, last = name.removesuffix(".xml").split("-")
        assert lift(text) == replace(program, min_bytes=int(first), max_bytes=int(last))


def test_a_size_that_was_rounded_up_is_served() -> None:
    program = target_named("msccl-xml").emit(replace(ring_allreduce(range(4)), target="msccl-xml", name="ring"))
    [choice] = tuning_table([standing(1, *[2.0] * 4)], together=False)[-1:]
    rounded = replace(choice, result=replace(choice.result, measured_bytes=65600))
    assert list(table_programs([rounded], lambda name: program.encode())) == ["01-65536-65600.xml"]


def test_where_the_library_always_wins_there_are_no_programs() -> None:
    chosen = tuning_table([standing(1, *[0.5] * len(SIZES))], together=False)
    assert table_programs(chosen, lambda name: b"") == {}
    assert table_programs([], lambda name: b"") == {}
