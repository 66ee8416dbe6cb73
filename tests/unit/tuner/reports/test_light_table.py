"""Tables without rich are those that rich prints, and are left to it where they would not be."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from chorale.tuner.reports.lazy_rich import LazyConsole
from chorale.tuner.reports.light_table import LightTable, facts_table, is_plain

words = st.text("ab1-/:.×…[]", min_size=1, max_size=12)
cells = st.lists(words, max_size=9).map(" ".join)


@st.composite
def tables(draw: Callable[..., object]) -> LightTable:
    columns = draw(st.integers(1, 4))
    row = st.tuples(*[cells] * columns)
    has_lines = draw(st.booleans())
    return LightTable(
        columns,
        draw(cells),
        draw(st.none() | row) if has_lines else None,
        draw(st.sampled_from(["left", "center"])),
        draw(st.frozensets(st.integers(0, columns - 1))),
        has_lines,
        draw(st.lists(row, max_size=4)),
    )


@given(tables(), st.sampled_from([40, 80, 120]))
def test_what_is_drawn_is_what_rich_prints(table: LightTable, columns: int):
    drawn = table.drawn(columns)
    if drawn is not None:
        file = io.StringIO()
        Console(file=file, width=columns, markup=False, highlight=False, emoji=False).print(table.to_rich(), crop=False)
        assert drawn + "\n" == file.getvalue()


def test_a_cell_is_wrapped_and_what_cannot_be_wrapped_is_left_to_rich():
    table = facts_table("what")
    table.add_row("name", "word " * 30)
    assert len((table.drawn(40) or "").splitlines()) == 8
    table.add_row("long", "x" * 60)
    assert table.drawn(40) is None
    assert table.drawn(80) is not None


@pytest.mark.parametrize("text", ["日本", "a\tb", "a\nb", "\x1b[1m", "\u200b", "e\u0301", "\xad"])
def test_text_of_other_widths_is_not_plain(text: str):
    assert not is_plain(text)


def test_every_plain_character_is_one_column_wide():
    assert all(cell_len(chr(code)) == 1 for code in range(0x3000) if is_plain(chr(code)))


@pytest.mark.parametrize(
    "text", ["short", "word " * 40 + "end", "  indented " + "word " * 30 + "end", "two\n\nlines", "a:ring:b", "日本"]
)
@pytest.mark.parametrize("options", [{}, {"soft_wrap": True}])
def test_lines_are_the_same_with_and_without_rich(
    text: str, options: dict[str, bool], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("COLUMNS", raising=False)
    console = LazyConsole(markup=False, highlight=False, emoji=False)
    console.print(text, **options)
    light = capsys.readouterr().out
    assert console.console.width == 80  # made by now, so that rich prints the next
    console.print(text, **options)
    assert capsys.readouterr().out == light
