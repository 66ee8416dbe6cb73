"""Names in common spellings, and what is said of others."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import STANDARD, CollectiveName
from chorale.synth.errors import InvalidInput, UnknownName
from chorale.synth.methods.catalog import METHOD_ALIASES, METHODS, method_named
from chorale.synth.names import name_among, plain, unknown_name
from chorale.synth.targets.registry import TARGET_ALIASES, TARGETS


@given(st.sampled_from(STANDARD), st.sampled_from(["-", "_", " ", ""]), st.booleans())
def test_case_and_separators_do_not_matter(name: CollectiveName, separator: str, is_upper: bool) -> None:
    text = name.value[:3] + separator + name.value[3:]
    assert name_among("collective", text.upper() if is_upper else text, CollectiveName) == name


def test_no_two_names_are_told_apart_by_that_only() -> None:
    for names, aliases in ((METHODS, METHOD_ALIASES), (TARGETS, TARGET_ALIASES)):
        assert len({plain(name) for name in names}) == len(names)
        assert set(aliases.values()) <= set(names)
        assert all(plain(alias) == alias and alias not in map(plain, names) for alias in aliases)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bfs", "unknown method 'bfs'; did you mean 'bfb'? choose from bfb, ring"),
        ("xyzzy", "unknown method 'xyzzy'; choose from bfb, ring"),
        ("", "unknown method ''; choose from bfb"),
        ("a\nb" * 200, "..."),
    ],
)
def test_unknown_names_are_one_line(text: str, words: str) -> None:
    with pytest.raises(UnknownName) as caught:
        method_named(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, InvalidInput)


def test_the_error_survives_a_process_border() -> None:
    error = unknown_name("runner", "locl", ["local", "mpi"])
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "unknown runner 'locl'; did you mean 'local'? choose from local, mpi"
