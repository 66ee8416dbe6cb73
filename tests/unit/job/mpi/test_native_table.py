"""The table's reader in C++ says of every call what the one in Python says."""

import ctypes
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chorale.job.mpi import preload
from chorale.job.mpi.checking import content_for_ranks
from chorale.job.mpi.preload import NATIVE
from chorale.job.table.layout import ANY_DTYPE, GroupEntries, JobEntry, Table
from chorale.runners.engine.build import NativeTarget, build_native
from chorale.synth.errors import Unavailable
from tests.properties import random_cases
from tests.unit.job.table.test_layout import ring_table

DIGEST, PROGRAM = next(iter(ring_table().programs.items()))
GROUPS = st.sampled_from([None, (0, 1, 2, 3), (1, 0, 2, 3), (0, 2), (3,)])
ENTRIES = st.builds(
    JobEntry,
    st.sampled_from(["allreduce", "broadcast"]),
    st.sampled_from([ANY_DTYPE, "float32", "int8"]),
    GROUPS,
    st.sampled_from([None, 0, 2]),
    st.integers(0, 9),
    st.none() | st.integers(5, 14),
    st.sampled_from([None, DIGEST]),
)
CALLS = st.tuples(
    GROUPS.filter(bool),
    st.sampled_from(["allreduce", "broadcast", "reduce"]),
    st.sampled_from([None, 0, 1, 2]),
    st.sampled_from(["float32", "int8", "mixed"]),
    st.integers(0, 15),
)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    lookup = Path(__file__).parents[3] / "native" / "table_lookup.cpp"
    sources = (NATIVE / "table.cpp", lookup)
    target = NativeTarget("libtable_lookup.so", sources, ("-shared", "-fPIC"), (NATIVE,))
    return ctypes.CDLL(str(build_native(target, tmp_path_factory.mktemp("native"))))


def answer(native: ctypes.CDLL, path: Path, call: tuple[tuple[int, ...], str, int | None, str, int]) -> tuple[int, str]:
    group, collective, root, dtype, size_bytes = call
    text = ctypes.create_string_buffer(512)
    ranks = (ctypes.c_int * len(group))(*group)
    names = (collective.encode(), -1 if root is None else root, dtype.encode(), ctypes.c_int64(size_bytes))
    status = native.chorale_table_find(str(path).encode(), ranks, len(group), *names, text, len(text))
    return status, text.value.decode()


@random_cases(60)
@given(entries=st.lists(ENTRIES, max_size=6), calls=st.lists(CALLS, min_size=1, max_size=20))
def test_both_say_the_same(
    native: ctypes.CDLL, tmp_path_factory: pytest.TempPathFactory, entries: list[JobEntry], calls: list
) -> None:
    table = Table({}, 4, tuple(entries), {DIGEST: PROGRAM})
    path = tmp_path_factory.getbasetemp() / "table"
    path.write_bytes(content_for_ranks(table, "0"))
    for call in calls:
        found = GroupEntries.of(table, call[0]).find(*call[1:])
        expected = (1, found.program) if isinstance(found, JobEntry) else (0, found.value)
        assert answer(native, path, call) == expected


def test_a_folder_with_odd_characters_is_left_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preload, "temporary_folder", lambda: tmp_path)
    assert preload._loadable(Path("/data/chorale")) == Path("/data/chorale")
    for name in ("my folder", "a:b", "$ORIGIN"):
        assert preload._loadable(Path("/data") / name) == tmp_path / "native"
    monkeypatch.setattr(preload, "temporary_folder", lambda: tmp_path / "a b")
    with pytest.raises(Unavailable, match="XDG_CACHE_HOME"):
        preload._loadable(Path("/data/my folder"))
