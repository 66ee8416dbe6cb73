"""Records of trials, who reaches the final, and what to run at which size."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from chorale.runners.api.base import FailureKind
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings, library_call_text
from chorale.synth.targets.lift import lift
from chorale.synth.targets.registry import target_named
from chorale.tuner.trials.records import (
    MAX_FINALISTS,
    Candidate,
    CompleteTrial,
    FailedTrial,
    FinalComparison,
    PrunedTrial,
    RankedTrial,
    SizeClass,
    SizeResult,
    finalists,
    ranked_trials,
    table_programs,
    table_ranges,
    trial_codec,
    trial_id,
    tuning_table,
)
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


def test_winners_by_size_or_of_all_sizes_and_who_reaches_the_final():
    chosen = tuning_table([standing(1, 0.5, 0.9, 2.0, 1.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    assert [one.trial.number if one.trial else one.baseline for one in chosen] == ["library:best", "library:best", 1, 2]
    assert [one.speedup for one in chosen] == [1.0, 1.0, 2.0, 1.6]
    assert [one.time_s for one in chosen] == [1.0, 1.0, 0.5, 1 / 1.6]
    chosen = tuning_table([standing(1, 3.0, 1.0, 1.0, 1.0), standing(2, 1.5, 1.5, 1.5, 0.9)], together=True)
    assert [one.trial.number if one.trial else one.baseline for one in chosen] == [2, 2, 2, "library:best"]
    ranges = table_ranges(
        tuning_table([standing(1, 0.5, 0.9, 2.0, 2.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    )
    assert [(one.first_bytes, one.last_bytes) for one in ranges] == [(1, 16383), (16384, None)]
    assert [one.entry.trial.number if one.entry.trial else None for one in ranges] == [None, 1]
    high_speedup = trial(1, (5.0, 50.0), (9.0, 9.0))
    low_time = trial(2, (1.0, 2.0), (9.5, 9.0))
    good_at_large = trial(3, (6.0, 6.0), (2.0, 9.0))
    nowhere = [trial(number, (7.0 + number, 7.0), (20.0 + number, 9.0)) for number in range(4, 12)]
    chosen = finalists([*nowhere, high_speedup, low_time, good_at_large])
    assert all(leader in chosen for leader in (high_speedup, low_time, good_at_large))
    assert len(chosen) <= MAX_FINALISTS
    first = trial(1, (1.0, 2.0), (1.0, 2.0))
    twin = complete(Candidate("bfb", channels=9), sizes=first.sizes, same_program_as=first.trial_id)
    assert finalists([first, twin]) == [first]
    lucky, steady = trial(1, (1.0, 9.0), (1.0, 9.0)), trial(2, (2.0, 9.0), (2.0, 9.0))
    results = {lucky.trial_id: steady.sizes, steady.trial_id: lucky.sizes}
    assert [place.sizes for place in ranked_trials([lucky, steady], None)] == [lucky.sizes, steady.sizes]
    ranked = ranked_trials([lucky, steady, trial(3, (3.0, 9.0), (3.0, 9.0))], FinalComparison(results, 3))
    assert [(place.trial, place.sizes) for place in ranked] == [(lucky, steady.sizes), (steady, lucky.sizes)]


@given(st.integers(1, 2**40))
def test_every_size_lies_in_its_class(size_bytes):
    size_class = SizeClass.of(size_bytes)
    assert size_class.min_bytes <= size_bytes <= size_class.max_bytes
    assert size_class.max_bytes + 1 == SizeClass(size_class.exponent + 1).min_bytes


@pytest.mark.parametrize("target", ["msccl-xml", "msccl-executor-xml", "oneccl-xml"])
def test_every_program_serves_the_sizes_that_it_was_best_at(target):
    program = replace(ring_allreduce(range(4)), target=target, name="ring")
    asked, text = list[str](), target_named(target).emit(program).encode()
    chosen = tuning_table([standing(1, 2.0, 0.5, 2.0, 1.5), standing(2, 0.9, 1.0, 1.1, 1.6)], together=False)
    files = table_programs(chosen, lambda name: asked.append(name) or text)
    assert list(files) == ["01-1024-4095.xml", "03-16384-65535.xml", "04-65536-65536.xml"]
    assert asked == [one.trial.program_id for one in chosen if one.trial]
    for name, text in files.items():
        _, first, last = name.removesuffix(".xml").split("-")
        assert lift(text) == replace(program, min_bytes=int(first), max_bytes=int(last))


def test_programs_and_settings_serve_their_sizes_and_what_was_rounded_up():
    chosen = tuning_table([standing(1, 2.0, 2.0, 0.5, 1.5), standing(2, 0.9, 1.0, 3.0, 0.9)], together=False)
    settings = LibraryCall(Collective(CollectiveName.ALLREDUCE), 4, True, LibrarySettings("ring", "LL128", ctas=8))
    program = target_named("msccl-xml").emit(replace(ring_allreduce(range(4)), target="msccl-xml", name="ring"))
    texts = {one.trial.program_id: library_call_text(settings) for one in chosen if one.trial and one.trial.number == 1}
    files = table_programs(chosen, lambda name: texts.get(name, program).encode())
    assert list(files) == ["02-16384-65535.xml", "nccl-tuner.csv"]
    rows = files["nccl-tuner.csv"].decode().splitlines()[1:]
    assert rows == [f"allreduce,{sizes},ring,ll128,8,-1,4,-1,-1" for sizes in ("1024,16383", "65536,65536")]
    [choice] = tuning_table([standing(1, *[2.0] * 4)], together=False)[-1:]
    rounded = replace(choice, result=replace(choice.result, measured_bytes=65600))
    assert list(table_programs([rounded], lambda name: program.encode())) == ["01-65536-65600.xml"]


def trial(channels: int, small: tuple[float, float], large: tuple[float, float]) -> CompleteTrial:
    """Return a trial with (time, baseline time) at two sizes."""
    pairs = ((4096, small), (65536, large))
    sizes = tuple(SizeResult(size, size, (mine,), {"ring": (ring,)}) for size, (mine, ring) in pairs)
    return complete(Candidate("bfb", channels=channels), sizes=sizes)


candidates = st.builds(
    Candidate,
    method=st.sampled_from(["bfb", "ring"]),
    k=st.none() | st.integers(1, 9),
    chunks=st.none() | st.integers(1, 9),
    channels=st.integers(1, 9),
    instances=st.integers(1, 9),
    protocol=st.sampled_from(["Simple", "LL", "LL128"]),
)
messages = st.text(max_size=20)
records = st.one_of(
    st.builds(complete, candidates, st.floats(1e-6, 10.0)),
    st.builds(FailedTrial, st.just("a"), st.integers(1, 99), candidates, st.just(1.0), st.just(2.0),
              st.sampled_from(FailureKind), messages),
    st.builds(PrunedTrial, st.just("a"), st.integers(1, 99), candidates, st.just(1.0), st.just(2.0), messages),
)  # fmt: skip


@given(records)
def test_a_record_survives_json(record):
    line = trial_codec.dump_json(record)
    assert b"\n" not in line
    assert trial_codec.validate_json(line) == record


def test_speedups_ids_and_names_of_trials():
    times = {"slow": (9.0, 9.0, 9.0), "fast": (8.0, 2.0, 4.0)}
    sizes = (SizeResult(100, 120, (1.0, 2.0, 1.0), times), SizeResult(200, 200, (16.0,), times))
    record = complete(Candidate("bfb"), sizes=sizes)
    assert [size.speedup for size in sizes] == [4.0, 0.25]
    assert record.speedup == pytest.approx(1.0)
    assert sizes[0].algbw_gb_per_s == pytest.approx(120e-9)
    plain = Candidate("bfb")
    others = [Candidate("ring"), Candidate("bfb", k=1), Candidate("bfb", chunks=1), Candidate("bfb", channels=2),
              Candidate("bfb", instances=2), Candidate("bfb", protocol="LL")]  # fmt: skip
    ids = [trial_id("one", plain), trial_id("two", plain), *(trial_id("one", other) for other in others)]
    assert len(set(ids)) == len(ids)
    assert str(Candidate("bfb", chunks=2, channels=4)) == "bfb chunks=2 channels=4"
    assert str(Candidate("bfb")) == "bfb"
