"""Files by which libraries choose among their own algorithms, read back by the rules of those who read them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.job.table.model import Table
from chorale.synth.errors import CheckFailed, InvalidInput, Unavailable
from chorale.tuner.reports.library_files import (
    ALGORITHM_IDS,
    default_tree,
    mpich_selection,
    nccl_table_csv,
    open_mpi_json,
    open_mpi_rules,
)
from tests.unit.tuner.reports.library_files.tables import own, ring_table, table_of


def rccl_choice(text: str, collective: str, size_bytes: int, ranks: int) -> tuple[str, str, int] | None:
    """Return what RCCL's built-in tuner takes, by the rules of its src/plugin/tuner/csv_tuner.cc.

    Lines of 255 characters at most; those that begin with # or are empty are left out, and so are lines with fewer
    than 8 fields, an empty field, or names that are not known; sizes are unsigned and inclusive at both ends; -1 for
    nodes, ranks, operations and registration matches all; the first line that matches decides.
    """
    for line in text.splitlines():
        assert len(line) < 256
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in line.split(",")]
        assert 8 <= len(fields) <= 12
        assert all(fields)
        assert fields[0] in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
        assert fields[3] in ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
        assert fields[4] in ("ll", "ll128", "simple")
        assert 0 <= int(fields[1]) <= int(fields[2]) < 2**64
        assert fields[6] == "-1"
        assert fields[8:] == ["-1", "-1"]
        if fields[0] == collective and int(fields[1]) <= size_bytes <= int(fields[2]) and int(fields[7]) in (-1, ranks):
            return fields[3], fields[4], int(fields[5])
    return None


def open_mpi_choice(text: str, collective: int, size_bytes: int, ranks: int) -> int:
    """Return the number of the algorithm, by the rules of Open MPI's coll_tuned_dynamic_file.c and _rules.c.

    Numbers follow one another, # begins a comment: collectives; of each its number and the count of sizes of
    communicators; of each its ranks and the count of rules; of each bytes, algorithm, topology and segment. The last
    entry whose ranks, and the last rule whose bytes, are not above those of the call decide; 0 is the fixed choice.
    """
    words = [int(word) for line in text.splitlines() for word in line.split("#")[0].split()]
    numbers = iter(words)
    answer = 0
    for _ in range(next(numbers)):
        number, communicators = next(numbers), next(numbers)
        before = -1
        for _ in range(communicators):
            size, rules = next(numbers), next(numbers)
            assert size > before
            before = size
            chosen, last = 0, -1
            for position in range(rules):
                first, algorithm, topology, segment = (next(numbers) for _ in range(4))
                assert first > last
                assert position or first == 0
                assert (topology, segment) == (0, 0)
                last = first
                if first <= size_bytes:
                    chosen = algorithm
            if number == collective and size <= ranks:
                answer = chosen
    assert next(numbers, None) is None
    return answer


def open_mpi_6_choice(text: str, collective: str, size_bytes: int, ranks: int) -> str | None:
    """Return the algorithm by the page "Tuning Collectives" of Open MPI 6: what matches first decides."""
    document = json.loads(text)
    assert document["rule_file_version"] == 3
    assert document["module"] == "tuned"
    for group in document["collectives"].get(collective, ()):
        if group["comm_size_min"] <= ranks <= group["comm_size_max"]:
            for rule in group["rules"]:
                if (
                    rule["msg_size_min"]
                    <= size_bytes
                    <= (2**63 if rule["msg_size_max"] == "inf" else rule["msg_size_max"])
                ):
                    return str(rule["alg"])
            return None
    return None


DEFAULTS: dict[str, Any] = {
    "collective=allreduce": {"comm_type=intra": {"algorithm=default": {}}, "comm_type=inter": {"algorithm=other": {}}},
    "collective=allgather": {"comm_type=intra": {"algorithm=default": {}}},
    "collective=reduce_scatter_block": {"comm_type=intra": {"algorithm=default": {}}},
}


def mpich_choice(tree: dict[str, Any], size_bytes: int, ranks: int, commutes: bool = True) -> str:
    """Return the algorithm, by the rules of MPICH's csel.c: the first condition that holds leads on.

    A condition that compares must be followed by another one, the last by `any`.
    """
    keys = list(tree)
    for key in keys:
        if key.startswith("algorithm="):
            return key.removeprefix("algorithm=")
        number = int(key.rpartition("=" if "<=" in key else "<")[2]) if "<" in key and "pow2" not in key else None
        assert number is None or number < 2**31
        assert number is None or keys[-1].endswith("=any")
        holds = {
            "comm_size<=": lambda n: ranks <= n, "comm_size<": lambda n: ranks < n,
            "avg_msg_size<=": lambda n: size_bytes <= n, "total_msg_size<=": lambda n: size_bytes <= n,
        }  # fmt: skip
        condition = key.rstrip("0123456789")
        if condition in holds:
            true = holds[condition](number)
        else:
            true = {
                "is_commutative=yes": commutes, "is_commutative=no": not commutes, "is_op_built_in=yes": True,
                "count<pow2": False,
            }.get(key, key.endswith("=any"))  # fmt: skip
        if true:
            return mpich_choice(tree[key], size_bytes, ranks, commutes)
    raise AssertionError(f"no condition holds: {keys}")


@st.composite
def ranges(draw: st.DrawFn, names: tuple[str, ...]) -> list[tuple[int, int | None, str]]:
    """Ranges that do not overlap, with gaps, the last perhaps without an end."""
    bounds = sorted(draw(st.sets(st.integers(0, 2**40), min_size=2, max_size=8)))
    pairs = list(zip(bounds[::2], bounds[1::2], strict=False))
    found: list[tuple[int, int | None, str]] = [(a, b - 1, draw(st.sampled_from(names))) for a, b in pairs]
    if draw(st.booleans()):
        found[-1] = (found[-1][0], None, found[-1][2])
    return found


def sizes_of(found: list[tuple[int, int | None, str]]) -> list[int]:
    edges = [edge for first, last, _ in found for edge in (first, first - 1, last or 2**41, (last or 2**41) + 1)]
    return [size for size in edges if size >= 0]


def wanted(found: list[tuple[int, int | None, str]], size: int) -> str | None:
    return next((name for first, last, name in found if first <= size and (last is None or size <= last)), None)


def table_for(found: list[tuple[int, int | None, str]], collective: str = "allreduce") -> Table:
    return table_of(*(own(f"library:{name}", first, last, collective) for first, last, name in found))


@given(ranges(("tree", "ring", "nvls")))
def test_rccl_and_nccl_choose_what_the_table_says(found):
    for own_channels in (0, -1):
        text = nccl_table_csv(table_for(found), own_channels=own_channels)
        for size in sizes_of(found):
            name = wanted(found, size)
            chosen = None if name is None else (name, "simple", own_channels)
            assert rccl_choice(text, "allreduce", size, 8) == chosen
            assert rccl_choice(text, "allreduce", size, 4) is None
            assert rccl_choice(text, "allgather", size, 8) is None


def test_rows_are_of_algorithms_that_nccl_has_for_the_collective():
    entries = [
        own(f"library:nccl:{name}", 1024 * at, 1024 * at + 1023, collective)
        for collective in ("allreduce", "allgather", "reduce_scatter", "broadcast", "reduce")
        for at, name in enumerate(("ring", "tree", "double-binary-tree", "nvls", "pat"))
    ]
    rows = [line.split(",") for line in nccl_table_csv(table_of(*entries)).splitlines()[1:]]
    assert {(row[0], row[3]) for row in rows} == {
        *(("allreduce", name) for name in ("ring", "tree", "nvls")),
        *((collective, name) for collective in ("allgather", "reducescatter") for name in ("ring", "nvls", "pat")),
        *(("broadcast", "ring"), ("reduce", "ring")),
    }


@given(ranges(tuple(ALGORITHM_IDS["allgather"])))
def test_open_mpi_chooses_what_the_table_says(found):
    table = table_for(found, "allgather")
    classic, json_text = open_mpi_rules(table), open_mpi_json(table)
    for size in sizes_of(found):
        name = wanted(found, size)
        number = 0 if name is None else ALGORITHM_IDS["allgather"][name]
        assert open_mpi_choice(classic, 0, size, 8) == number
        assert open_mpi_6_choice(json_text, "allgather", size, 8) == name
        for other in (4, 7, 9, 100):
            assert open_mpi_choice(classic, 0, size, other) == 0
            assert open_mpi_6_choice(json_text, "allgather", size, other) is None
        assert open_mpi_choice(classic, 2, size, 8) == 0


@given(ranges(("ring", "recursive_doubling", "reduce_scatter_allgather")))
def test_mpich_chooses_what_the_table_says(found):
    tree = json.loads(mpich_selection(table_for(found), DEFAULTS))
    assert set(tree) == set(DEFAULTS)
    assert tree["collective=allreduce"]["comm_type=inter"] == {"algorithm=other": {}}
    own_tree = tree["collective=allreduce"]["comm_type=intra"]
    for size in (size for size in sizes_of(found) if size < 2**31):
        name = wanted(found, size)
        assert mpich_choice(own_tree, size, 8) == ("default" if name is None else f"MPIR_Allreduce_intra_{name}")
        assert mpich_choice(own_tree, size, 8, commutes=False) == "default"
        assert mpich_choice(own_tree, size, 7) == mpich_choice(own_tree, size, 9) == "default"


def test_a_program_of_a_method_that_the_library_has_counts_as_its_algorithm() -> None:
    table = ring_table()
    assert rccl_choice(nccl_table_csv(table), "allreduce", 2048, 4) == ("ring", "ll", 2)
    assert open_mpi_choice(open_mpi_rules(table), 2, 2048, 4) == 4
    tree = json.loads(mpich_selection(table, DEFAULTS))["collective=allreduce"]["comm_type=intra"]
    assert mpich_choice(tree, 2048, 4) == "MPIR_Allreduce_intra_ring"


def test_types_must_be_chosen_between_and_something_must_be_said() -> None:
    two = table_of(own("library:ring", 0, 9, dtype="float32"), own("library:tree", 0, 9, dtype="float64"))
    with pytest.raises(InvalidInput, match="--dtype"):
        nccl_table_csv(two)
    assert rccl_choice(nccl_table_csv(two, "float64"), "allreduce", 3, 8) == ("tree", "simple", 0)
    for table in (table_of(own("bfb", 0, 9)), table_of(own("library:nonsense", 0, 9)), table_of()):
        for write in (nccl_table_csv, open_mpi_rules, open_mpi_json):
            with pytest.raises(CheckFailed, match="no entry"):
                write(table)


def test_mpich_algorithms_for_powers_of_two_need_them() -> None:
    entry = own("library:recursive_doubling", 0, None, "allgather")
    assert "recursive_doubling" in mpich_selection(table_of(entry), DEFAULTS)
    with pytest.raises(CheckFailed, match="power of two"):
        mpich_selection(table_of(entry, ranks=6), DEFAULTS)


def test_the_default_tree_is_found_in_the_library() -> None:
    text = json.dumps(DEFAULTS).encode()
    other = b'{"collective=allreduce": {"composition=x": {}}}'
    device = b'{"collective=allreduce": {"algorithm=device": {}}}'
    assert default_tree(b"\x7fELF\0" + device + b"\0" + other + b'\0{"collective=\0' + text + b"\0tail") == DEFAULTS
    with pytest.raises(Unavailable):
        default_tree(b"\x7fELF\0" + other)
