"""The table for NCCL's tuner plug-in, read back as the plug-in reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.nccl.parameters import COLLECTIVES
from chorale.synth.errors import CheckFailed
from chorale.synth.programs.library_call import LibrarySettings
from chorale.tuner.reports.library_files import (
    METHODS,
    NcclTableEntry,
    nccl_table_entries,
    nccl_tuner_csv,
)
from chorale.tuner.trials.records import Candidate, CompleteTrial, FailedTrial, SizeResult

LONGEST_LINE = 254
PROTOCOLS = {"Simple": "simple", "LL": "ll", "LL128": "ll128"}


def entry(size_bytes: int, algorithm: str, protocol: str, ctas: int) -> NcclTableEntry:
    return NcclTableEntry(size_bytes, LibrarySettings(algorithm, protocol, ctas))


def fields_of(choice: NcclTableEntry) -> list[str]:
    settings = choice.settings
    return [settings.algorithm, PROTOCOLS[settings.protocol], str(settings.ctas)]


def trial(number: int, candidate: Candidate, times_us: dict[int, float]) -> CompleteTrial:
    sizes = tuple(SizeResult(size, size, (time,), {"ring": (100.0,)}) for size, time in times_us.items())
    return CompleteTrial(str(number), number, candidate, 0.0, 1.0, "schedule", "program", sizes)


def matching(table: str, collective: str, size_bytes: int, ranks: int) -> list[str] | None:
    """Return algorithm, protocol and channels of the first row that the plug-in would take."""
    for line in table.splitlines():
        assert len(line) <= LONGEST_LINE
        if line.startswith("#"):
            continue
        fields = line.split(",")
        assert len(fields) == 10
        low, high = int(fields[1]), int(fields[2])
        if fields[0] == collective and low <= size_bytes <= high and int(fields[7]) == ranks:
            assert [fields[6], *fields[8:]] == ["-1", "-1", "-1"]
            return fields[3:6]
    return None


def test_the_best_of_what_nccl_has_wins_at_each_size():
    trials = [
        trial(0, Candidate("bfb"), {1024: 1.0, 4096: 1.0}),
        trial(1, Candidate("ring", channels=2, instances=2), {1024: 30.0, 4096: 20.0}),
        trial(2, Candidate("double-binary-tree", protocol="LL128"), {1024: 10.0, 4096: 40.0}),
        trial(3, Candidate("ring", channels=8), {1024: 30.0, 4096: 20.0}),
        FailedTrial("4", 4, Candidate("ring"), 0.0, 1.0, "crash", "broken"),
    ]
    assert nccl_table_entries(trials, "allreduce") == [
        entry(1024, "tree", "LL128", 1),
        entry(4096, "ring", "Simple", 4),
    ]
    assert nccl_tuner_csv(nccl_table_entries(trials, "allreduce"), "allreduce", 8).splitlines()[1:] == [
        "allreduce,1024,2048,tree,ll128,1,-1,8,-1,-1",
        "allreduce,2049,4096,ring,simple,4,-1,8,-1,-1",
    ]


def test_settings_of_the_library_win_with_their_chunks():
    trials = [
        trial(0, Candidate("ring"), {1024: 30.0}),
        trial(1, Candidate("nccl:nvls", ctas=8, chunk_bytes=65536), {1024: 10.0}),
        trial(2, Candidate("nccl:symmetric"), {1024: 1.0}),
    ]
    header, row = nccl_tuner_csv(nccl_table_entries(trials, "allreduce"), "allreduce", 8).splitlines()
    assert header.endswith(",registered,chunk_bytes")
    assert row == "allreduce,1024,1024,nvls,simple,8,-1,8,-1,-1,65536"


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter", "broadcast", "reduce"])
def test_trees_are_not_chosen_where_nccl_has_none(collective):
    tree, ring = Candidate("double-binary-tree"), Candidate("ring")
    trials = [trial(0, tree, {1024: 1.0}), trial(1, ring, {1024: 30.0})]
    assert nccl_table_entries(trials, collective) == [entry(1024, "ring", "Simple", 1)]
    with pytest.raises(CheckFailed, match="that it has: nccl:ring, or ring"):
        nccl_tuner_csv(nccl_table_entries(trials[:1], collective), collective, 4)


chosen = st.lists(
    st.builds(
        entry,
        st.integers(1, 2**40),
        st.sampled_from(sorted(METHODS.values())),
        st.sampled_from(["Simple", "LL"]),
        st.integers(1, 2),
    ),
    min_size=1,
    unique_by=lambda choice: choice.size_bytes,
).map(lambda found: sorted(found, key=lambda choice: choice.size_bytes))


@given(chosen, st.sampled_from(sorted(COLLECTIVES)))
def test_every_measured_size_gets_its_own_choice_and_nothing_else_is_said(found, collective):
    table = nccl_tuner_csv(found, collective, 4)
    name = COLLECTIVES[collective]
    for choice in found:
        assert matching(table, name, choice.size_bytes, 4) == fields_of(choice)
    assert matching(table, name, found[0].size_bytes - 1, 4) is None
    assert matching(table, name, found[-1].size_bytes + 1, 4) is None
    assert matching(table, name, found[0].size_bytes, 5) is None


@given(chosen, st.data())
def test_sizes_between_go_to_a_neighbour_without_gaps(found, data):
    table = nccl_tuner_csv(found, "allreduce", 4)
    size_bytes = data.draw(st.integers(found[0].size_bytes, found[-1].size_bytes))
    below = max((c for c in found if c.size_bytes <= size_bytes), key=lambda c: c.size_bytes)
    above = min((c for c in found if c.size_bytes >= size_bytes), key=lambda c: c.size_bytes)
    near = below if size_bytes**2 <= below.size_bytes * above.size_bytes else above
    assert matching(table, "allreduce", size_bytes, 4) == fields_of(near)


def test_equal_neighbours_are_one_row():
    found = [entry(size, "ring", "Simple", 2) for size in (1, 4, 16)]
    assert nccl_tuner_csv(found, "allreduce", 2).splitlines()[1:] == ["allreduce,1,16,ring,simple,2,-1,2,-1,-1"]


def test_what_cannot_be_said_is_refused():
    with pytest.raises(CheckFailed, match="ring or double-binary-tree"):
        nccl_tuner_csv(nccl_table_entries([trial(0, Candidate("bfb"), {1024: 1.0})], "allreduce"), "allreduce", 4)
    with pytest.raises(CheckFailed, match="alltoall"):
        nccl_tuner_csv([entry(1, "ring", "Simple", 1)], "alltoall", 4)
