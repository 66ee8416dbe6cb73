"""The table for NCCL's tuner plug-in, read back as the plug-in reads it."""

from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.nccl.parameters import COLLECTIVES
from chorale.synth.programs.library_call import LibrarySettings
from chorale.tuner.reports.library_files import METHODS, nccl_tuner_csv

LONGEST_LINE = 254
PROTOCOLS = {"Simple": "simple", "LL": "ll", "LL128": "ll128"}
Entry = tuple[int, LibrarySettings]


def entry(size_bytes: int, algorithm: str, protocol: str, ctas: int) -> Entry:
    return size_bytes, LibrarySettings(algorithm, protocol, ctas)


def fields_of(choice: Entry) -> list[str]:
    settings = choice[1]
    return [settings.algorithm, PROTOCOLS[settings.protocol], str(settings.ctas)]


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


chosen = st.lists(
    st.builds(
        entry,
        st.integers(1, 2**40),
        st.sampled_from(sorted(METHODS.values())),
        st.sampled_from(["Simple", "LL"]),
        st.integers(1, 2),
    ),
    min_size=1,
    unique_by=lambda choice: choice[0],
).map(lambda found: sorted(found, key=lambda choice: choice[0]))


@given(chosen, st.sampled_from(sorted(COLLECTIVES)))
def test_every_measured_size_gets_its_own_choice_and_nothing_else_is_said(found, collective):
    table = nccl_tuner_csv(found, collective, 4)
    name = COLLECTIVES[collective]
    for choice in found:
        assert matching(table, name, choice[0], 4) == fields_of(choice)
    assert matching(table, name, found[0][0] - 1, 4) is None
    assert matching(table, name, found[-1][0] + 1, 4) is None
    assert matching(table, name, found[0][0], 5) is None


@given(chosen, st.data())
def test_sizes_between_go_to_a_neighbour_without_gaps(found, data):
    table = nccl_tuner_csv(found, "allreduce", 4)
    size_bytes = data.draw(st.integers(found[0][0], found[-1][0]))
    below = max((c for c in found if c[0] <= size_bytes), key=lambda c: c[0])
    above = min((c for c in found if c[0] >= size_bytes), key=lambda c: c[0])
    near = below if size_bytes**2 <= below[0] * above[0] else above
    assert matching(table, "allreduce", size_bytes, 4) == fields_of(near)


def test_equal_neighbours_are_one_row():
    found = [entry(size, "ring", "Simple", 2) for size in (1, 4, 16)]
    assert nccl_tuner_csv(found, "allreduce", 2).splitlines()[1:] == ["allreduce,1,16,ring,simple,2,-1,2,-1,-1"]
