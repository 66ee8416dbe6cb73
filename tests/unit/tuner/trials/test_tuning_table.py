"""What to run at which size: the best trial, or the baseline that nothing beats; classes of sizes, program files."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.targets.lift import lift
from chorale.synth.targets.registry import target_named
from chorale.tuner.trials.records import Candidate, RankedTrial, SizeResult
from chorale.tuner.trials.tuning_table import SizeClass, table_programs, table_ranges, tuning_table
from tests.campaigns import complete
from tests.conformance.example_programs import ring_allreduce

SIZES = (1024, 4096, 16384, 65536)


def standing(number: int, *speedups: float) -> RankedTrial:
    """Return a trial with these speed-ups over the library, which beats the ring."""
    sizes = tuple(
        SizeResult(size, size, (1 / speedup,), {"ring": (2.0,), "library:best": (1.0,)})
        for size, speedup in zip(SIZES, speedups, strict=True)
    )
    return RankedTrial(complete(Candidate("bfb", channels=number), number=number, sizes=sizes), sizes)


def test_each_size_has_its_own_winner_and_the_library_where_it_wins() -> None:
    chosen = tuning_table([standing(1, 0.5, 0.9, 2.0, 1.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    assert [one.trial.number if one.trial else one.baseline for one in chosen] == ["library:best", "library:best", 1, 2]
    assert [one.speedup for one in chosen] == [1.0, 1.0, 2.0, 1.6]
    assert [one.time_s for one in chosen] == [1.0, 1.0, 0.5, 1 / 1.6]


def test_one_trial_for_all_sizes_is_the_best_on_the_whole() -> None:
    chosen = tuning_table([standing(1, 3.0, 1.0, 1.0, 1.0), standing(2, 1.5, 1.5, 1.5, 0.9)], together=True)
    assert [one.trial.number if one.trial else one.baseline for one in chosen] == [2, 2, 2, "library:best"]


def test_ranges_cover_every_size_once() -> None:
    ranges = table_ranges(
        tuning_table([standing(1, 0.5, 0.9, 2.0, 2.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    )
    assert [(one.first_bytes, one.last_bytes) for one in ranges] == [(1, 16383), (16384, None)]
    assert [one.entry.trial.number if one.entry.trial else None for one in ranges] == [None, 1]


@given(st.integers(1, 2**40))
def test_every_size_lies_in_its_class(size_bytes: int) -> None:
    size_class = SizeClass.of(size_bytes)
    assert size_class.min_bytes <= size_bytes <= size_class.max_bytes
    assert size_class.max_bytes + 1 == SizeClass(size_class.exponent + 1).min_bytes


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
