"""The format of the base database: round trip, and tampering of every kind."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.bases import database
from chorale.synth.topology.bases.database import BaseEntry, Claim, read_entries, write_entries

WAY_OUT = (
    "restore the file from the distribution, or write it anew with chorale.synth.topology.bases.database.write_entries"
)


@pytest.mark.parametrize("file_name", database.BASE_FILES)
def test_files_are_as_they_were_written(file_name):
    content = database.base_file_content(file_name)
    assert write_entries(read_entries(content, file_name).values()) == content


def altered(**changes: object) -> bytes:
    """Return the special bases with the entry diamond changed, its id as it was."""
    document = json.loads(database.base_file_content("special.json"))
    entry = next(entry for entry in document["entries"] if entry["name"] == "diamond")
    entry.update(changes)
    for key in [key for key, value in entry.items() if value is None]:
        del entry[key]
    return json.dumps(document).encode()


def test_unchanged_is_accepted():
    assert list(read_entries(altered(), "x.json")) == list(
        read_entries(database.base_file_content("special.json"), "x.json")
    )


def changed_rows() -> dict[str, object]:
    schedule = json.loads(database.base_file_content("special.json"))["entries"][0]["schedule"]
    schedule["rows"][5][2] ^= 1
    return schedule


@pytest.mark.parametrize(
    "changes",
    [
        {"claim": {"method": "own", "steps": 2, "bandwidth_factor": "7/8"}},
        {"claim": {"method": "own", "steps": 3, "bandwidth_factor": "3/4"}},
        {"source": "somebody"},
        {"schedule": changed_rows()},
        {"schedule": None},
        {"id": "0" * 64},
    ],
)
def test_a_tampered_entry_is_named(changes):
    with pytest.raises(InvalidInput) as caught:
        read_entries(altered(**changes), "special.json")
    message = str(caught.value)
    assert message.startswith("entry diamond of special.json must have the content that its id names; got id ")
    assert message.endswith(WAY_OUT)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": None},
        {"nodes": "eight"},
        {"nodes": -8},
        {"degree": 3},
        {"edges": [[0, 1, 2]]},
        {"edges": [[0, 3], [1, 0]]},
        {"edges": 4},
        {"claim": {"steps": 3}},
        {"claim": {"method": "own", "steps": 3, "bandwidth_factor": "7/0"}},
        {"group": [1, 2, 3, 4]},
        {"extra": 1},
        {"schedule": {"chunks_per_shard": 2}},
        {"schedule": {"chunks_per_shard": 2, "rows": [["x"]]}},
        {"edges": None, "schedule": None, "group": [8, 1, 1], "generators": [1, 2]},
    ],
)
def test_a_malformed_entry_is_named(changes):
    with pytest.raises(InvalidInput) as caught:
        read_entries(altered(**changes), "special.json")
    assert "\n" not in str(caught.value)
    assert "diamond" in str(caught.value) or "bandwidth_factor" in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"null", b"{}", b'{"format": "chorale-bases/2", "entries": []}', b"\xff",
     b'{"format": "chorale-bases/1", "entries": [3]}', b'{"format": "chorale-bases/1", "entries": null}'],
)  # fmt: skip
def test_a_file_that_is_none(content):
    with pytest.raises(InvalidInput, match=r"broken\.json must be"):
        read_entries(content, "broken.json")


def test_a_name_must_be_unique():
    document = json.loads(database.base_file_content("special.json"))
    document["entries"].append(document["entries"][0])
    with pytest.raises(InvalidInput, match="must have names of their own; got diamond"):
        read_entries(json.dumps(document).encode(), "special.json")


@given(st.integers(1, 12), st.integers(1, 4), st.fractions(min_value=0, max_value=3))
def test_round_trip(nodes, steps, factor):
    entry = BaseEntry(
        name=f"cycle-{nodes}",
        nodes=nodes,
        degree=1,
        claim=Claim("bfb", steps, factor),
        source="a test",
        group=(nodes, 1, 1, 1),
        generators=(1,),
    )
    assert read_entries(write_entries([entry]), "x.json") == {entry.name: entry}
